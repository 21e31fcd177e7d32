"""Compares the responses of coordinators with each other and with the logs. Rules of groups and transactions:

one owner per partition and generation       no two members are assigned the same partition
one owner at a time                          no partition is assigned while another member still owns it
a zombie commits nothing                     after a newer generation was assigned
committed offsets never go back              a fetched offset is at least the one acknowledged before
lost write, duplicate                        each record of a committed transaction is stored once
torn transaction                             all records of a transaction are committed, or none
aborted read, precommitted read              readers get no record of a transaction that is not committed
inconsistent offset                          a program's output covers exactly what its group has consumed
nonmonotonic poll                            offsets increase within a session
no transaction hangs                         no transaction is open at the end
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.kafka.coordinator_client import TopicPartition
from tests.simulation.kafka.response_checker import ResponseChecker, Topic
from tests.simulation.oracle import TrueLog, TrueRecord
from tests.simulation.tables import stable_of
from tests.simulation.world import World

from lakestream.metadata import keys
from lakestream.metadata.claims import BatchKind
from lakestream.metadata.groups import StoredOffsets, stored_offsets_of
from lakestream.model import PartitionId


@dataclass(slots=True, eq=False)
class Attempt:
    """A transaction from its producer's view."""

    name: str
    sent: dict[bytes, TopicPartition] = field(default_factory=dict)
    acked: set[bytes] = field(default_factory=set)
    group: str | None = None
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets acknowledged as part of the transaction."""
    outcome: bool | None = None
    """Whether the coordinator's response said committed; None without a response."""


class Assignment(NamedTuple):
    """Assignment of a partition to a member, with the times of request and response."""

    member_id: str
    requested_s: float
    assigned_s: float


class Ledger:
    def __init__(self, world: World, checker: ResponseChecker) -> None:
        self.world = world
        self._checker = checker
        self._oracle = world.oracle
        self._owners: dict[tuple[str, int, TopicPartition], str] = {}
        self._newest: dict[str, int] = {}
        """Group → the newest generation with an assignment."""
        self._instance_members: dict[tuple[str, str], str] = {}
        self._acked: dict[tuple[str, TopicPartition], int] = {}
        self._assignments: dict[tuple[str, TopicPartition], list[Assignment]] = {}
        self.recreated_topics: set[str] = set()
        """Topics that are deleted and created again."""
        self.attempts: list[Attempt] = []
        self.programs: dict[str, tuple[str, str]] = {}
        """Group → its source topic and its sink topic."""

    def log(self, tp: TopicPartition) -> TrueLog:
        return self._oracle.log(self.partition(tp))

    def partition(self, tp: TopicPartition) -> PartitionId:
        return self._checker.logs(Topic(tp.topic, tp.topic_id), tp.number)[-1]

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def generation(self, group: str) -> int:
        return self._newest.get(group, -1)

    def assigned(self, group: str, generation: int, owner: str, tps: Iterable[TopicPartition]) -> None:
        self._newest[group] = max(self.generation(group), generation)
        self.world.tally["group assignments"] += 1
        for tp in tps:
            before = self._owners.setdefault((group, generation, tp), owner)
            if before != owner:
                self._oracle.report(
                    "one owner per partition and generation",
                    f"{tp} of group {group} is {before}'s and {owner}'s in generation {generation}",
                )

    def instance_joined(self, group: str, instance: str | None, member_id: str) -> None:
        """Notes the present member of an instance id."""
        if instance is not None:
            self._instance_members[group, instance] = member_id

    def instance_member(self, group: str, instance: str | None) -> str | None:
        return None if instance is None else self._instance_members.get((group, instance))

    def partitions_assigned(
        self, group: str, member_id: str, tps: Iterable[TopicPartition], requested_s: float
    ) -> None:
        """Notes an assignment to a member of the consumer protocol."""
        for tp in tps:
            assignments = self._assignments.setdefault((group, tp), [])
            assignments.append(Assignment(member_id, requested_s, self.world.loop.now))

    def check_still_owned(self, group: str, member_id: str, tps: Iterable[TopicPartition], requested_s: float) -> None:
        """Checks a successful heartbeat of a member with these partitions: no other member may own one of them."""
        for tp in tps:
            if (owner := self._later_owner(group, member_id, tp, requested_s)) is not None:
                self._oracle.report(
                    "one owner at a time", f"{tp} of group {group} is {member_id}'s, and was assigned to {owner}"
                )

    def _later_owner(self, group: str, member_id: str, tp: TopicPartition, at_s: float) -> str | None:
        """Returns another member that requested and got the partition after this member and before `at_s`."""
        assignments = self._assignments.get((group, tp), [])
        mine = max((one.assigned_s for one in assignments if one.member_id == member_id), default=None)
        if mine is None:
            return None
        others = (
            one.member_id
            for one in assignments
            if one.member_id != member_id and mine < one.requested_s < one.assigned_s < at_s
        )
        return next(others, None)

    def committed_by(
        self, group: str, member_id: str, requested_s: float, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Checks an acknowledged commit of a member of the consumer protocol."""
        self.world.tally["group commits"] += 1
        for tp, offset in offsets.items():
            if (owner := self._later_owner(group, member_id, tp, requested_s)) is not None:
                self._oracle.report(
                    "a zombie commits nothing", f"{member_id} of group {group} in {tp}, which was assigned to {owner}"
                )
            self._acked[group, tp] = max(offset, self.committed_before(group, tp))

    def committed_before(self, group: str, tp: TopicPartition) -> int:
        return self._acked.get((group, tp), -1)

    def committed(self, group: str, generation: int, newest_before: int, offsets: Mapping[TopicPartition, int]) -> None:
        """Checks an acknowledged commit. `newest_before`: the newest generation when the request was sent."""
        self.world.tally["group commits"] += 1
        if generation < newest_before:
            self._oracle.report(
                "a zombie commits nothing",
                f"{dict(offsets)} of group {group} in generation {generation}, after {newest_before} was assigned",
            )
        for tp, offset in offsets.items():
            self._acked[group, tp] = max(offset, self.committed_before(group, tp))

    def offset_fetched(self, group: str, tp: TopicPartition, offset: int, acked_before: int) -> None:
        if offset < acked_before:
            self._oracle.report(
                "committed offsets never go back",
                f"{tp} of group {group} was returned as {offset} after {acked_before} was acknowledged",
            )

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, attempt: Attempt, generation: int, commit: bool) -> None:
        """Notes the outcome of a transaction from the coordinator's response."""
        self.world.tally[f"transactions {'committed' if commit else 'aborted'}"] += 1
        attempt.outcome = commit
        if commit and attempt.group is not None:
            for tp, offset in attempt.offsets.items():
                before = self.committed_before(attempt.group, tp)
                self._acked[attempt.group, tp] = max(offset, before)

    def record_read(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """Checks a record that a reader of committed records received."""
        log = self.log(tp)
        true = log.records.get(offset)
        if true is None or true.value != value:
            stored = None if true is None else true.value
            self._oracle.report("reads return the stored records", f"{tp}:{offset} is {value!r}, not {stored!r}")
        elif (committed := is_committed(log, true)) is None:
            self._oracle.report("precommitted read", f"{value!r} at {tp}:{offset} is of an open transaction")
        elif not committed:
            self._oracle.report("aborted read", f"{value!r} at {tp}:{offset} was aborted")

    def range_read(self, tp: TopicPartition, offset: int, offset_next: int, returned: set[int]) -> None:
        """Checks that a read returned all committed records of a range."""
        log = self.log(tp)
        for at in range(offset, offset_next):
            true = log.records.get(at)
            if at not in returned and true is not None and true.kind < BatchKind.COMMIT and is_committed(log, true):
                self._oracle.report("lost write", f"a read of {tp}:{offset} skipped {at} ({true.value!r})")

    # ── checks at the end ────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        for live in self._oracle.topics.values():
            for partition in live.topic.partitions():
                log = self._oracle.log(partition)
                if (stable := stable_of(log)) < log.end:
                    self._oracle.report("no transaction hangs", f"{partition} ends at {log.end}, stable is {stable}")
        for attempt in self.attempts:
            self._check_attempt(attempt)
        for group, (source, sink) in self.programs.items():
            self._check_program(group, source, sink)

    def _check_attempt(self, attempt: Attempt) -> None:
        outcomes = {
            value: self._is_committed(value, tp)
            for value, tp in attempt.sent.items()
            if not self._is_deleted(value, tp)
        }
        acked = attempt.acked & outcomes.keys()
        committed_values = {value for value, committed in outcomes.items() if committed}
        lost = sorted(value for value in acked if outcomes[value] is None)
        if lost:
            self._oracle.report("lost write", f"{lost[0]!r} of {attempt.name} was acknowledged and is not stored")
        elif attempt.outcome and acked - committed_values:
            missing = sorted(acked - committed_values)
            self._oracle.report(
                "lost write", f"{missing[0]!r} of {attempt.name}, which was committed, is not committed"
            )
        elif attempt.outcome is False and committed_values:
            self._oracle.report(
                "aborted read", f"{sorted(committed_values)[0]!r} of {attempt.name}, which was aborted, is committed"
            )
        elif committed_values and acked - committed_values:
            self._oracle.report(
                "torn transaction",
                f"{len(committed_values)} of {len(outcomes)} records of {attempt.name} are committed",
            )

    def _is_deleted(self, value: bytes, tp: TopicPartition) -> bool:
        """Returns whether the record may have been deleted with its topic."""
        logs = [self._oracle.log(partition) for partition in self._checker.logs(Topic(tp.topic, None), tp.number)]
        if not any(log.deleted for log in logs):
            return False
        return not any(record.value == value for log in logs if not log.deleted for record in log.records.values())

    def _is_committed(self, value: bytes, tp: TopicPartition) -> bool | None:
        """Returns whether a record is committed, or None if it is not stored."""
        log = self.log(tp)
        records = [record for record in log.records.values() if record.value == value]
        return bool(is_committed(log, records[0])) if records else None

    def _stored_offsets(self, group: str) -> StoredOffsets:
        folder, server = keys.offsets_folder(group).path, self.world.server
        records = (server.get(f"{folder}/{name}") for name in server.names(folder).between("", keys.OWNER_NAME))
        return stored_offsets_of(record for record in records if record is not None)

    def _check_program(self, group: str, source: str, sink: str) -> None:
        """Checks that a program's output has each consumed record once, and no other."""
        outputs: Counter[str] = Counter()
        for partition in self._oracle.topics[sink].topic.partitions():
            log = self._oracle.log(partition)
            outputs.update(
                record.value.decode().split("<")[1].split(">")[0]
                for record in log.records.values()
                if record.value is not None
                and record.value.startswith(f"{group}<".encode())
                and is_committed(log, record)
            )
        for partition in self._oracle.topics[source].topic.partitions():
            self._check_outputs(group, TopicPartition(source, partition.number), outputs)

    def _check_outputs(self, group: str, tp: TopicPartition, outputs: Mapping[str, int]) -> None:
        stored = self._stored_offsets(group).latest().get(self.partition(tp))
        done = 0 if stored is None else max(stored.committed.offset, 0)
        log = self.log(tp)
        for offset, record in log.records.items():
            counts = record.kind < BatchKind.COMMIT and is_committed(log, record)
            times = outputs.get(source_of(tp, offset), 0)
            details = f"{tp}:{offset} was processed {times} times by {group}, which has committed offset {done}"
            if times > 1:
                self._oracle.report("duplicate", details)
            elif offset >= done and times:
                self._oracle.report("inconsistent offset", details)
            elif offset < done and counts and not times:
                self._oracle.report("lost write", details)
            elif times and not counts:
                self._oracle.report("aborted read", details)
        self.world.tally["records transformed"] += sum(offset < done for offset in log.records)


def source_of(tp: TopicPartition, offset: int) -> str:
    """Returns the text in a program's output that names its input record."""
    return f"{tp.topic}:{tp.number}:{offset}"


def is_committed(log: TrueLog, record: TrueRecord) -> bool | None:
    """Returns whether a record is committed by the markers of its log, or None if its transaction is open."""
    return True if record.kind is BatchKind.PLAIN else log.marks.get((record.producer_id, record.transaction))
