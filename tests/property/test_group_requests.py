"""One group gets requests of both protocols in any order, valid and invalid ones, from members that follow no rules.

- Each request gets a result or one of the protocol's error codes; no other_event error is raised.
- Each waiting request gets one response, and the group remembers it until then.
- A partition never has two owners at the same epoch, and epochs and generations do not go back.
- The record keeps its invariants, and the next coordinator reads from the store what the last one wrote.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups import offset_rules, transitions
from lakestream.coordination.groups.consumer_protocol import read_assignment, subscribed_topics, write_assignment
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    JOIN,
    LEAVE,
    LEAVE_STATIC,
    UNCHANGED_MS,
    AnyGroup,
    ConsumerGroup,
    Group,
    GroupLimits,
    GroupResult,
    HeartbeatRequest,
    HeartbeatResult,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
    Transition,
)
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.coordination.groups.transitions import TransitionContext
from lakestream.metadata.group_records import (
    AnyGroupRecord,
    Committed,
    ConsumerGroupRecord,
    GroupRecord,
    GroupState,
    MemberProtocol,
    Partitions,
    Progress,
    group_of,
    packed_group,
    size_of,
)
from lakestream.metadata.store import Record
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

SESSION_MS: Final = 10_000
NAMES: Final = ("t", "u", "missing")
PROTOCOLS: Final = ("range", "sticky", "cooperative-sticky")
GARBAGE: Final = (b"", b"\0", b"\xff\xff\0\0", b"\0\1\xff\xff\xff\xff", b"\0\0\0\0\0\1\0\1\xff")


def epoch_of(record: AnyGroupRecord) -> int:
    return record.generation if isinstance(record, GroupRecord) else record.epoch


@dataclass
class World:
    rng: random.Random
    group: AnyGroup = field(default_factory=Group)
    stored: AnyGroupRecord = field(default_factory=GroupRecord)
    image: TopicsImage = field(default_factory=lambda: TopicsImage({"t": Topic("T0", 4)}))
    now_ms: int = 0
    tickets: int = 0
    waiting: set[int] = field(default_factory=set)
    joins: dict[int, JoinRequest] = field(default_factory=dict)
    known_ids: list[str] = field(default_factory=lambda: ["n1", "n2", "n3"])
    epochs: list[int] = field(default_factory=lambda: [1])
    """That members were given: they come back with these, also when they are old."""
    highest: int = 0
    owners: dict[tuple[int, PartitionId], tuple[str, str]] = field(default_factory=dict)

    @property
    def on(self) -> TransitionContext:
        return TransitionContext(
            self.image, Instant(self.now_ms, self.now_ms), GroupLimits(initial_delay_ms=300, members_max=6)
        )

    def ticket(self) -> int:
        self.tickets += 1
        self.waiting.add(self.tickets)
        return self.tickets

    # ── what is drawn ────────────────────────────────────────────────────────────────────────────────────────────────

    def chance(self, of: float) -> bool:
        return self.rng.random() < of

    def member_id(self) -> str:
        if self.chance(0.7) and self.group.record.members:
            return self.rng.choice(list(self.group.record.members))
        if isinstance(self.group, Group) and self.group.pending and self.chance(0.7):
            return self.rng.choice(list(self.group.pending))
        return self.rng.choice(self.known_ids)

    def instance_id(self, member_id: str) -> str | None:
        member = self.group.record.members.get(member_id)
        if member is not None and self.chance(0.9):
            return member.instance_id
        return self.rng.choice((None, None, None, "i", "j"))

    def epoch(self, member_id: str) -> int:
        record = self.group.record
        epoch = epoch_of(record)
        if isinstance(record, ConsumerGroupRecord) and (member := record.members.get(member_id)) is not None:
            epoch = self.rng.choice((member.epoch, member.epoch, member.epoch, member.epoch_before))
        return epoch if self.chance(0.8) else self.rng.choice((-2, -1, 0, epoch - 1, epoch + 1, *self.epochs[-3:]))

    def partitions(self) -> Partitions:
        all_of_them = [PartitionId(topic.topic_id, n) for topic in self.image.topics.values() for n in range(5)]
        return frozenset(self.rng.sample(all_of_them, self.rng.randrange(min(4, len(all_of_them) + 1))))

    def shares(self) -> bytes:
        if self.chance(0.03):
            return self.rng.choice(GARBAGE)
        return write_assignment(self.rng.randrange(5), self.image.named(self.partitions()))

    def topic_names(self) -> tuple[str, ...]:
        return tuple(self.rng.choices(NAMES, k=self.rng.randrange(3)))

    def subscription(self) -> bytes:
        if self.chance(0.03):
            return self.rng.choice(GARBAGE)
        version = self.rng.randrange(5)
        names = [name.encode() for name in self.topic_names()]
        data = version.to_bytes(2, "big") + len(names).to_bytes(4, "big")
        data += b"".join(len(name).to_bytes(2, "big") + name for name in names)
        data += self.rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\1x"))
        if version >= 1:
            data += write_assignment(1, self.image.named(self.partitions()))[2:-4]
        if version >= 2:
            data += b"\0\0\0\1"
        return data + self.rng.choice((b"\xff\xff", b"\0\1r")) if version >= 3 else data

    def protocols(self) -> tuple[MemberProtocol, ...]:
        names = self.rng.choices(PROTOCOLS, k=self.rng.choice((1, 1, 2, 2, 3)))
        if self.chance(0.02):
            names = []
        return tuple(MemberProtocol(name, self.subscription()) for name in names)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        kind = self.rng.choices(
            (
                self.join,
                self.sync,
                self.heartbeat,
                self.consumer_heartbeat,
                self.reconcile,
                self.leave,
                self.commit,
                self.other_event,
            ),
            (0.20, 0.16, 0.10, 0.22, 0.10, 0.05, 0.05, 0.12),
        )[0]
        kind()

    def join(self) -> None:
        member_id = self.member_id() if self.chance(0.6) else ""
        known = self.group.record.members.get(member_id)
        protocols = self.protocols()
        if isinstance(self.group, Group) and known is not None and self.chance(0.4):
            protocols = self.group.record.members[member_id].protocols  # a duplicate of its last request
        request = JoinRequest(
            self.ticket(),
            member_id,
            f"c{self.tickets}",
            self.instance_id(member_id),
            "client",
            "/host",
            SESSION_MS if self.chance(0.97) else 1,
            self.rng.choice((0, 1_000, 30_000)),
            "consumer" if self.chance(0.93) else self.rng.choice(("connect", "")),
            protocols,
            self.chance(0.5),
            self.chance(0.5),
        )
        self.joins[request.ticket] = request
        self.apply(transitions.join(self.group, request, self.on))

    def sync(self) -> None:
        record = self.group.record
        leads = isinstance(record, GroupRecord) and record.leader is not None and self.chance(0.6)
        member_id = record.leader if isinstance(record, GroupRecord) and leads else self.member_id()
        assert member_id is not None
        request = SyncRequest(
            self.ticket(),
            member_id,
            self.instance_id(member_id),
            self.epoch(member_id),
            self.rng.choice((None, None, "consumer", "connect")),
            self.rng.choice((None, None, *PROTOCOLS)),
            {member: self.shares() for member in [*record.members, "unknown"] if self.chance(0.8)},
        )
        self.apply(transitions.sync(self.group, request, self.on))

    def heartbeat(self) -> None:
        member_id = self.member_id()
        step, error = transitions.heartbeat(
            self.group, member_id, self.instance_id(member_id), self.epoch(member_id), self.on
        )
        assert error is None or isinstance(error, GroupError)
        self.apply(step)

    def consumer_heartbeat(self) -> None:
        member_id = self.member_id()
        epoch = self.rng.choice((JOIN, JOIN, LEAVE, self.epoch(member_id), self.epoch(member_id)))
        instance_id = self.instance_id(member_id)
        if epoch < LEAVE_STATIC or (epoch == LEAVE_STATIC and instance_id is None):
            return  # rejected before the group is read
        if epoch == JOIN:
            member_id = self.rng.choice((member_id, f"n{self.tickets}"))
        request = HeartbeatRequest(
            member_id,
            epoch,
            instance_id,
            self.rng.choice((None, "rack")),
            "client",
            "/host",
            self.rng.choice((1_000, 30_000) if epoch == JOIN else (UNCHANGED_MS, 1_000)),
            self.topic_names() if epoch == JOIN or self.chance(0.3) else None,
            self.rng.choice((None, None, None, "", "[tu]", "(")),
            self.rng.choice((None, None, None, "uniform", "range", "unknown")),
            frozenset() if epoch == JOIN else self.owned(member_id),
            self.ticket(),
        )
        self.known_ids.append(member_id)
        before = self.group
        try:
            step = transitions.consumer_heartbeat("g", self.group, request, self.on)
        except GroupRequestFailed:
            self.waiting.remove(request.ticket)
            assert self.group is before
            return
        self.apply(step)

    def owned(self, member_id: str) -> Partitions | None:
        member = self.group.record.members.get(member_id)
        has = frozenset[PartitionId]() if member is None else getattr(member, "assigned", frozenset[PartitionId]())
        return self.rng.choice((None, None, has, has, self.partitions()))

    def reconcile(self) -> None:
        self.apply(transitions.reconciled(self.group, self.on))

    def leave(self) -> None:
        ids = [self.member_id() for _ in range(self.rng.randrange(1, 4))]
        leavers = [LeavingMember(one, self.instance_id(one)) for one in ids]
        if self.chance(0.3):
            leavers.append(LeavingMember("", self.rng.choice((None, "i", "j"))))
        left = transitions.leave(self.group, leavers, self.on)
        assert len(left.errors) == len(leavers)
        self.apply(left.transition)

    def commit(self) -> None:
        """Calls the pure checks of offset requests: they return an error code or None."""
        record, member_id = self.group.record, self.rng.choice((self.member_id(), ""))
        committer = Committer(member_id, self.instance_id(member_id), self.epoch(member_id), self.chance(0.8))
        offset_rules.commit_error(record, committer)
        offset_rules.transaction_commit_error(record, committer)
        offset_rules.offset_fetch_error(record, member_id, committer.generation)
        offset_rules.offset_delete_error(record)
        committed = {
            partition: Committed(1, -1, "", self.now_ms, committer.generation) for partition in self.partitions()
        }
        expired = offset_rules.expired(record, committed, self.image.names.get, self.now_ms, 1_000)
        assert set(expired) <= set(committed)
        topics = subscribed_topics(record)
        assert topics is None or record.members or not topics

    def other_event(self) -> None:
        self.rng.choice((self.pass_time, self.pass_time, self.change_topics, self.take_over, self.abandon))()

    def pass_time(self) -> None:
        ms = self.rng.choice((100, 300, 1_000, 30_000))
        self.now_ms += ms
        if self.chance(0.1):  # this broker was paused
            self.group = transitions.extend_deadlines(self.group, ms)
        silent = [
            one for one in self.group.record.members if not self.group.has_waiting_request(one) and self.chance(0.1)
        ]
        self.apply(transitions.expire(self.group, silent, self.on))
        deadline_ms = self.group.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.apply(transitions.tick(self.group, self.on))

    def change_topics(self) -> None:
        name = self.rng.choice("tu")
        others = {other: topic for other, topic in self.image.topics.items() if other != name}
        topic = Topic(f"{name.upper()}{self.rng.randrange(2)}", self.rng.randrange(1, 6))
        self.image = TopicsImage(others if self.chance(0.2) else {**others, name: topic})

    def take_over(self) -> None:
        """Replaces the coordinator: the next one has the stored record, and clients send their requests again."""
        self.group = transitions.resumed(group_of(Record("g", packed_group(self.stored), 1, 0)), self.on.now)
        self.waiting.clear()
        self.joins.clear()
        self.check()

    def abandon(self) -> None:
        """A client closes its connection while its JoinGroup waits."""
        if self.joins:
            request = self.joins.pop(self.rng.choice(list(self.joins)))
            self.apply(transitions.cancel_join(self.group, request, self.on))

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, step: Transition[AnyGroup]) -> None:
        if isinstance(self.group, ConsumerGroup) and isinstance(step.group, ConsumerGroup):
            assert step.to_store or step.group.record == self.group.record
        if isinstance(step.group, Group):
            self.owners.clear()  # the leader assigns now, and a group that is upgraded again starts at the same epoch
        self.group = step.group
        if step.to_store:
            self.stored = step.group.record
        for ticket, result in step.replies:
            self.waiting.remove(ticket)  # KeyError: answered twice
            self.joins.pop(ticket, None)
            self.note(result)
        self.check()

    def note(self, result: GroupResult) -> None:
        if result.member_id:
            self.known_ids.append(result.member_id)
        if result.error is not None:
            return
        record = self.group.record
        if isinstance(result, JoinResult | HeartbeatResult):
            epoch = result.generation if isinstance(result, JoinResult) else result.epoch
            assert epoch <= epoch_of(self.stored), "a response has an epoch that is not stored"
            self.epochs.append(epoch)
        if not isinstance(record, ConsumerGroupRecord) or isinstance(result, JoinResult):
            return
        member = record.members.get(result.member_id)
        if member is None:  # it left
            return
        if isinstance(result, SyncResult):
            assigned = self.image.partitions(read_assignment(result.assignment))
        else:
            assigned = result.assigned or frozenset()
            assert JOIN < result.epoch <= member.epoch or result.epoch == LEAVE_STATIC
            if result.epoch < member.epoch:
                return  # a later request of the same member, answered together with this one, advanced its epoch
        for partition in assigned:
            assert partition in member.assigned
            ids = (result.member_id, member.instance_id or result.member_id)  # either may change, never both together
            before = self.owners.get((member.epoch, partition), ids)
            assert set(before) & set(ids), "two members had one partition at the same epoch"
            self.owners[member.epoch, partition] = ids

    def check(self) -> None:
        epoch = epoch_of(self.group.record)
        assert epoch >= self.highest
        self.highest = max(self.highest, epoch_of(self.stored))
        if isinstance(self.group, ConsumerGroup):
            self.check_consumer_group(self.group)
        else:
            self.check_classic_group(self.group)

    def check_consumer_group(self, group: ConsumerGroup) -> None:
        record = group.record
        assert self.waiting == {pending.ticket for pending in group.pending_heartbeats}
        assert len(self.waiting) == len(group.pending_heartbeats)
        assert group.size == size_of(record.members)
        assert set(group.deadlines_ms) <= set(record.members)
        assert record.target_epoch <= record.epoch
        if group.image is self.image and record.target_epoch == record.epoch:
            expected = {
                PartitionId(one.topic_id, n) for one in record.topics.values() for n in range(one.partition_count)
            }
            assert expected == {one for member in record.members.values() for one in member.target}
        held = [one for member in record.members.values() for one in member.reserved]
        assert len(held) == len(set(held)), "two members own one partition"
        for member in record.members.values():
            assert LEAVE_STATIC <= member.epoch <= record.target_epoch
            assert bool(member.revoking) == (member.progress is Progress.REVOKING)
            assert not member.assigned & member.revoking
            if member.epoch == record.target_epoch > JOIN and member.progress is Progress.STABLE:
                assert member.assigned == member.target
        instances = [member.instance_id for member in record.members.values() if member.instance_id]
        assert len(instances) == len(set(instances))
        if record.members:
            assert any(member.classic is None for member in record.members.values())
        sides = [{one.name for one in side.protocols} for m in record.members.values() if (side := m.classic)]
        assert not sides or set.intersection(*sides), "the members have a common protocol for a downgrade"
        assert group_of(Record("g", packed_group(record), 1, 0)) == record

    def check_classic_group(self, group: Group) -> None:
        record = group.record
        members = set(record.members)
        assert (record.state is GroupState.EMPTY) == (not members)
        # A group that was just downgraded to the classic protocol has no leader yet.
        if record.state is not GroupState.PREPARING:
            assert (record.leader in members) or (record.leader is None and not members)
        assert set(group.joining) | set(group.syncing) | set(group.unsynced) <= members
        assert sorted(self.waiting) == sorted([*group.joining.values(), *group.syncing.values()])
        assert not self.waiting or group.deadline_ms is not None, "every wait has a deadline"
        assert not group.joining or record.state is GroupState.PREPARING
        assert not group.syncing or record.state is GroupState.COMPLETING
        assert group.size == sum(member.size for member in record.members.values())
        names = Counter(name for one in record.members.values() for name in {known.name for known in one.protocols})
        assert dict(group.supported) == dict(names)
        assert not members or len(members) in names.values(), "the members have a common protocol"
        if record.state in (GroupState.COMPLETING, GroupState.STABLE):
            assert names[record.protocol or ""] == len(members)
        instances = [member.instance_id for member in record.members.values() if member.instance_id]
        assert len(instances) == len(set(instances))


@given(st.integers(0, 2**32))
def test_group_stays_consistent_with_requests_of_both_protocols_in_any_order(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(120):
        world.step()
    world.reconcile()
    for _ in range(4):  # without more requests, all waiting requests get a response
        world.now_ms += 10 * 60_000
        world.apply(transitions.tick(world.group, world.on))
    world.reconcile()
    assert not world.waiting
