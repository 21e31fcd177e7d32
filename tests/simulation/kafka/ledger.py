"""What coordinators told their clients, held against one another and against the logs: the checkers of groups and
transactions, by the names of the anomalies.

    one owner per partition and generation       no two members were given the same partition
    one owner at a time                          nobody is given what another has, who is still a member
    a zombie commits nothing                     once others were given a newer generation
    committed offsets never go back              whoever asks hears of what was acknowledged before, or of more
    lost write, duplicate                        of transactions that were committed, each record is there, once
    torn transaction                             all of its records count, or none
    aborted read, precommitted read              nobody is given a record of a transaction that was not committed
    inconsistent offset                          a program's output is that of what its group has read, and of no more
    nonmonotonic poll                            within a session offsets only grow
    no transaction hangs                         when all is over, none is open in any log
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from tests.simulation.kafka.coordinated import Place
from tests.simulation.kafka.judge import Judge, Topic
from tests.simulation.tables import stable_of
from tests.simulation.witness import TrueLog, TrueRecord
from tests.simulation.world import World

from lakestream.metadata import keys
from lakestream.metadata.claims import Kind
from lakestream.metadata.groups import Committed
from lakestream.model import PartitionId

_decode_offset = msgspec.msgpack.Decoder(Committed).decode


@dataclass(slots=True, eq=False)
class Attempt:
    """A transaction as its producer knows it."""

    name: str
    sent: dict[bytes, Place] = field(default_factory=dict)
    acked: set[bytes] = field(default_factory=set)
    group: str | None = None
    offsets: dict[Place, int] = field(default_factory=dict)
    """Acknowledged as a part of it."""
    told: bool | None = None
    """Whether it was committed, as its coordinator said; None: nobody said."""


class Tenure(NamedTuple):
    """A member had a partition from when it was told, which was after it had asked."""

    member_id: str
    asked_s: float
    told_s: float


class Ledger:
    def __init__(self, world: World, judge: Judge) -> None:
        self.world = world
        self._judge = judge
        self._witness = world.witness
        self._owners: dict[tuple[str, int, Place], str] = {}
        self._newest: dict[str, int] = {}
        """Group → the newest generation in which somebody was given something."""
        self._holders: dict[tuple[str, str], str] = {}
        self._acked: dict[tuple[str, Place], int] = {}
        self._tenures: dict[tuple[str, Place], list[Tenure]] = {}
        self.passing: set[str] = set()
        """Topics that are deleted, and made again."""
        self.attempts: list[Attempt] = []
        self.programs: dict[str, tuple[str, str]] = {}
        """Group → the topic that it reads, and the one that it writes to."""

    def log(self, place: Place) -> TrueLog:
        return self._witness.log(self.partition(place))

    def partition(self, place: Place) -> PartitionId:
        return self._judge.logs(Topic(place.topic, place.topic_id), place.number)[-1]

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def generation(self, group: str) -> int:
        return self._newest.get(group, -1)

    def assigned(self, group: str, generation: int, owner: str, places: Iterable[Place]) -> None:
        self._newest[group] = max(self.generation(group), generation)
        self.world.tally["group assignments"] += 1
        for place in places:
            before = self._owners.setdefault((group, generation, place), owner)
            if before != owner:
                self._witness.accuse(
                    "one owner per partition and generation",
                    f"{place} of group {group} is {before}'s and {owner}'s in generation {generation}",
                )

    def seated(self, group: str, instance: str | None, member_id: str) -> None:
        """Under an instance id this is the member by now."""
        if instance is not None:
            self._holders[group, instance] = member_id

    def holder(self, group: str, instance: str | None) -> str | None:
        return None if instance is None else self._holders.get((group, instance))

    def took(self, group: str, member_id: str, places: Iterable[Place], asked_s: float) -> None:
        """A member of the new protocol heard just now, when it asked then, that it has these."""
        for place in places:
            tenures = self._tenures.setdefault((group, place), [])
            tenures.append(Tenure(member_id, asked_s, self.world.loop.now))

    def still_has(self, group: str, member_id: str, places: Iterable[Place], asked_s: float) -> None:
        """It was told that it is a member, after it had said then that it has these."""
        for place in places:
            if (heir := self._heir(group, member_id, place, asked_s)) is not None:
                self._witness.accuse(
                    "one owner at a time", f"{place} of group {group} is {member_id}'s, and was given to {heir}"
                )

    def _heir(self, group: str, member_id: str, place: Place, at_s: float) -> str | None:
        """Who asked for it, and was given it by then, after that member had it."""
        tenures = self._tenures.get((group, place), [])
        mine = max((one.told_s for one in tenures if one.member_id == member_id), default=None)
        if mine is None:
            return None
        others = (
            one.member_id for one in tenures if one.member_id != member_id and mine < one.asked_s < one.told_s < at_s
        )
        return next(others, None)

    def committed_by(self, group: str, member_id: str, asked_s: float, offsets: Mapping[Place, int]) -> None:
        """Acknowledged to a member of the new protocol, who asked for it then."""
        self.world.tally["group commits"] += 1
        for place, offset in offsets.items():
            if (heir := self._heir(group, member_id, place, asked_s)) is not None:
                self._witness.accuse(
                    "a zombie commits nothing", f"{member_id} of group {group} in {place}, which {heir} was given"
                )
            self._acked[group, place] = max(offset, self.committed_before(group, place))

    def committed_before(self, group: str, place: Place) -> int:
        return self._acked.get((group, place), -1)

    def committed(self, group: str, generation: int, newest_before: int, offsets: Mapping[Place, int]) -> None:
        """Acknowledged. `newest_before`: the newest generation when it was asked for."""
        self.world.tally["group commits"] += 1
        if generation < newest_before:
            self._witness.accuse(
                "a zombie commits nothing",
                f"{dict(offsets)} of group {group} in generation {generation}, after {newest_before} was given out",
            )
        for place, offset in offsets.items():
            self._acked[group, place] = max(offset, self.committed_before(group, place))

    def offset_heard(self, group: str, place: Place, offset: int, acked_before: int) -> None:
        if offset < acked_before:
            self._witness.accuse(
                "committed offsets never go back",
                f"{place} of group {group} is said to be at {offset}, after {acked_before} was acknowledged",
            )

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, attempt: Attempt, generation: int, commit: bool) -> None:
        """Its coordinator said so."""
        self.world.tally[f"transactions {'committed' if commit else 'aborted'}"] += 1
        attempt.told = commit
        if commit and attempt.group is not None:
            for place, offset in attempt.offsets.items():
                known = self.committed_before(attempt.group, place)
                self._acked[attempt.group, place] = max(offset, known)

    def read(self, place: Place, offset: int, value: bytes) -> None:
        """A reader of committed records was given it."""
        log = self.log(place)
        true = log.records.get(offset)
        if true is None or true.value != value:
            found = None if true is None else true.value
            self._witness.accuse("every reader sees the same", f"{place}:{offset} is {value!r}, not {found!r}")
        elif (fate := fate_of(log, true)) is None:
            self._witness.accuse("precommitted read", f"{value!r} at {place}:{offset} is of an open transaction")
        elif not fate:
            self._witness.accuse("aborted read", f"{value!r} at {place}:{offset} was aborted")

    def read_all(self, place: Place, offset: int, offset_next: int, given: set[int]) -> None:
        """Everything from one offset to the other that counts was given."""
        log = self.log(place)
        for at in range(offset, offset_next):
            true = log.records.get(at)
            if at not in given and true is not None and true.kind < Kind.COMMIT and fate_of(log, true):
                self._witness.accuse("lost write", f"a read of {place}:{offset} left out {at} ({true.value!r})")

    # ── when all is over ─────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        for named in self._witness.topics.values():
            for partition in named.topic.partitions():
                log = self._witness.log(partition)
                if (stable := stable_of(log)) < log.end:
                    self._witness.accuse("no transaction hangs", f"{partition} ends at {log.end}, stable is {stable}")
        for attempt in self.attempts:
            self._check_attempt(attempt)
        for group, (source, sink) in self.programs.items():
            self._check_program(group, source, sink)

    def _check_attempt(self, attempt: Attempt) -> None:
        fates = {
            value: self._fate(value, place) for value, place in attempt.sent.items() if not self._is_gone(value, place)
        }
        acked = attempt.acked & fates.keys()
        counts = {value for value, fate in fates.items() if fate}
        lost = sorted(value for value in acked if fates[value] is None)
        if lost:
            self._witness.accuse("lost write", f"{lost[0]!r} of {attempt.name} was acknowledged, and is nowhere")
        elif attempt.told and acked - counts:
            left = sorted(acked - counts)
            self._witness.accuse("lost write", f"{left[0]!r} of {attempt.name}, which was committed, does not count")
        elif attempt.told is False and counts:
            self._witness.accuse("aborted read", f"{sorted(counts)[0]!r} of {attempt.name}, which was aborted, counts")
        elif counts and acked - counts:
            self._witness.accuse("torn transaction", f"{len(counts)} of {len(fates)} records of {attempt.name} count")

    def _is_gone(self, value: bytes, place: Place) -> bool:
        """With its topic, or it may be."""
        logs = [self._witness.log(one) for one in self._judge.logs(Topic(place.topic, None), place.number)]
        if not any(log.gone for log in logs):
            return False
        return not any(record.value == value for log in logs if not log.gone for record in log.records.values())

    def _fate(self, value: bytes, place: Place) -> bool | None:
        """Whether it counts; None: it is not there."""
        log = self.log(place)
        found = [record for record in log.records.values() if record.value == value]
        return bool(fate_of(log, found[0])) if found else None

    def _check_program(self, group: str, source: str, sink: str) -> None:
        """What it wrote is made of what it has read, each once."""
        made: Counter[str] = Counter()
        for partition in self._witness.topics[sink].topic.partitions():
            log = self._witness.log(partition)
            made.update(
                record.value.decode().split("<")[1].split(">")[0]
                for record in log.records.values()
                if record.value is not None and record.value.startswith(f"{group}<".encode()) and fate_of(log, record)
            )
        for partition in self._witness.topics[source].topic.partitions():
            self._check_made(group, Place(source, partition.number), made)

    def _check_made(self, group: str, place: Place, made: Mapping[str, int]) -> None:
        stored = self.world.server.get(keys.offset_key(group, self.partition(place)).path)
        done = 0 if stored is None else max(_decode_offset(stored.value).offset, 0)
        log = self.log(place)
        for offset, record in log.records.items():
            counts = record.kind < Kind.COMMIT and fate_of(log, record)
            times = made.get(made_of(place, offset), 0)
            story = f"{place}:{offset} was worked on {times} times by {group}, which has read up to {done}"
            if times > 1:
                self._witness.accuse("duplicate", story)
            elif offset >= done and times:
                self._witness.accuse("inconsistent offset", story)
            elif offset < done and counts and not times:
                self._witness.accuse("lost write", story)
            elif times and not counts:
                self._witness.accuse("aborted read", story)
        self.world.tally["records transformed"] += sum(offset < done for offset in log.records)


def made_of(place: Place, offset: int) -> str:
    return f"{place.topic}:{place.number}:{offset}"


def fate_of(log: TrueLog, record: TrueRecord) -> bool | None:
    """Whether a record counts, as the markers of its log say; None: that is open."""
    return True if record.kind is Kind.PLAIN else log.marks.get((record.producer_id, record.transaction))
