"""Groups with members of both protocols, and conversion from one protocol to the other."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pytest

from lakestream.coordination.groups import transitions
from lakestream.coordination.groups.consumer_protocol import read_assignment, write_assignment
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    LEAVE,
    LEAVE_STATIC,
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
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.coordination.groups.transitions import TransitionContext
from lakestream.metadata.group_records import (
    ConsumerMember,
    GroupRecord,
    GroupState,
    Member,
    MemberProtocol,
    Partitions,
    Progress,
    size_of,
)
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

REBALANCE_MS = 60_000
A = TypeVar("A", bound=GroupResult)


def subscription(*owned: int, version: int = 1) -> bytes:
    owned_bytes = write_assignment(1, {"t": list(owned)})[2:-4] if version else b""
    return version.to_bytes(2, "big") + b"\0\0\0\1\0\1t\xff\xff\xff\xff" + owned_bytes


def parts(*numbers: int) -> Partitions:
    return frozenset(PartitionId("T", number) for number in numbers)


@dataclass
class MixedGroupDriver:
    """A group, and the results of all requests sent to it."""

    group: AnyGroup = field(default_factory=Group)
    image: TopicsImage = field(default_factory=lambda: TopicsImage({"t": Topic("T", 4)}))
    now_ms: int = 0
    tickets: int = 0
    results: dict[int, GroupResult] = field(default_factory=dict)

    @property
    def context(self) -> TransitionContext:
        return TransitionContext(self.image, Instant(self.now_ms, self.now_ms), GroupLimits(initial_delay_ms=0))

    def apply(self, step: Transition[AnyGroup]) -> None:
        self.group = step.group
        self.results.update({reply.ticket: reply.result for reply in step.replies})

    def _result(self, kind: type[A]) -> A:
        self.apply(transitions.reconciled(self.group, self.context))
        answer = self.results[self.tickets]
        assert isinstance(answer, kind)
        return answer

    def consumer_heartbeat(
        self, member_id: str, epoch: int = 0, owned: Partitions | None = None, instance: str | None = None
    ) -> HeartbeatResult:
        self.send_consumer_heartbeat(member_id, epoch, owned, instance)
        return self._result(HeartbeatResult)

    def send_consumer_heartbeat(
        self,
        member_id: str,
        epoch: int = 0,
        owned: Partitions | None = None,
        instance: str | None = None,
        names: tuple[str, ...] = ("t",),
    ) -> int:
        self.tickets += 1
        owned = frozenset() if epoch == 0 else owned
        joined = names if epoch == 0 else None
        request = HeartbeatRequest(
            member_id, epoch, instance, None, "", "", REBALANCE_MS, joined, owned=owned, ticket=self.tickets
        )
        self.apply(transitions.consumer_heartbeat("g", self.group, request, self.context))
        return self.tickets

    def send_join(
        self,
        member_id: str = "",
        *owned: int,
        instance: str | None = None,
        metadata: bytes | None = None,
        kind: str = "consumer",
        id_first: bool = False,
        protocols: tuple[str, ...] = ("range",),
    ) -> int:
        self.tickets += 1
        supported = subscription(*owned) if metadata is None else metadata
        member_protocols = tuple(MemberProtocol(name, supported) for name in protocols)
        request = JoinRequest(
            self.tickets,
            member_id,
            f"new-{self.tickets}",
            instance,
            "c",
            "/h",
            10_000,
            REBALANCE_MS,
            kind,
            member_protocols,
        )
        self.apply(transitions.join(self.group, request._replace(requires_known_member_id=id_first), self.context))
        return self.tickets

    def join(self, member_id: str = "", *owned: int, **more: object) -> JoinResult:
        self.send_join(member_id, *owned, **more)  # type: ignore[arg-type]
        return self._result(JoinResult)

    def sync(self, member_id: str, generation: int, protocol: str | None = None) -> SyncResult:
        self.tickets += 1
        request = SyncRequest(self.tickets, member_id, None, generation, None, protocol, {})
        self.apply(transitions.sync(self.group, request, self.context))
        return self._result(SyncResult)

    def share(self, member_id: str, generation: int) -> set[int]:
        synced = self.sync(member_id, generation)
        assert synced.error is None
        return {number for _, number in read_assignment(synced.assignment)}

    def heartbeat(self, member_id: str, generation: int) -> GroupError | None:
        step, error = transitions.heartbeat(self.group, member_id, None, generation, self.context)
        self.apply(step)
        return error

    def leave(self, *leavers: LeavingMember) -> tuple[GroupError | None, ...]:
        left = transitions.leave(self.group, leavers, self.context)
        self.apply(left.transition)
        return left.errors

    def member(self, member_id: str) -> ConsumerMember:
        assert isinstance(self.group, ConsumerGroup)
        return self.group.record.members[member_id]


def classic(
    state: GroupState = GroupState.STABLE,
    *,
    owned: tuple[int, ...] = (),
    assigned_numbers: tuple[int, ...] | None = (0, 1),
) -> MixedGroupDriver:
    """A classic group at generation 7, with one member."""
    share = b"" if assigned_numbers is None else write_assignment(1, {"t": list(assigned_numbers)})
    member = Member(
        "old", None, "c", "/h", 10_000, REBALANCE_MS, (MemberProtocol("range", subscription(*owned)),), share
    )
    record = GroupRecord(
        state=state, generation=7, protocol_type="consumer", protocol="range", leader="old", members={"old": member}
    )
    return MixedGroupDriver(transitions.resumed(record, Instant(0, 0)))


@pytest.fixture
def driver() -> MixedGroupDriver:
    """A group of the consumer protocol, with one member that owns all partitions."""
    driver = MixedGroupDriver()
    assert driver.consumer_heartbeat("new").assigned == parts(0, 1, 2, 3)
    return driver


# ── classic members in it ────────────────────────────────────────────────────────────────────────────────────────────


def test_classic_member_gets_its_assignment_from_the_coordinator(driver: MixedGroupDriver) -> None:
    joined = driver.join(protocols=("roundrobin", "range"))
    assert joined == JoinResult(None, "new-2", 2, "consumer", "roundrobin", "", ())
    assert driver.share("new-2", 2) == set(), "no partition is free yet"
    assert driver.heartbeat("new-2", 2) is None
    kept = driver.consumer_heartbeat("new", 1).assigned
    assert kept is not None
    driver.consumer_heartbeat("new", 1, kept)
    assert driver.heartbeat("new-2", 2) is GroupError.REBALANCE_IN_PROGRESS, "all partitions that it waits for are free"
    assert driver.join("new-2").generation == 2
    assert driver.share("new-2", 2) == {0, 1, 2, 3} - {one.number for one in kept}
    assert driver.heartbeat("new-2", 2) is None


def test_classic_member_revokes_before_it_gets_the_new_epoch() -> None:
    driver = classic(assigned_numbers=(0, 1, 2, 3))
    driver.consumer_heartbeat("new")
    assert driver.heartbeat("old", 7) is GroupError.REBALANCE_IN_PROGRESS
    assert driver.join("old", 0, 1, 2, 3).generation == 7, "not yet"
    kept = driver.share("old", 7)
    assert len(kept) == 2
    assert driver.consumer_heartbeat("new", 8).assigned is None
    assert driver.heartbeat("old", 7) is GroupError.REBALANCE_IN_PROGRESS
    assert driver.join("old", *kept).generation == 8
    assert driver.consumer_heartbeat("new", 8).assigned == parts(0, 1, 2, 3) - parts(*kept)
    assert driver.share("old", 8) == kept


def test_member_id_required_when_a_new_classic_member_joins(driver: MixedGroupDriver) -> None:
    before = driver.group
    assert driver.join(id_first=True).error is GroupError.MEMBER_ID_REQUIRED
    assert driver.group.record is before.record
    assert driver.join("new-2", id_first=True).error is None


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"kind": "connect"}, GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ({"metadata": b"poison"}, GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ("other",)}, GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "x", "instance": "i"}, GroupError.FENCED_INSTANCE_ID),
        ({"member_id": "x", "instance": "j"}, GroupError.UNKNOWN_MEMBER_ID),
    ],
)
def test_invalid_join_of_a_classic_member_is_rejected(
    driver: MixedGroupDriver, words: dict[str, object], error: GroupError
) -> None:
    assert driver.join(instance="i").error is None
    before = driver.group.record
    assert driver.join(**words).error is error  # type: ignore[arg-type]
    assert driver.group.record is before


def test_invalid_sync_and_heartbeat_of_a_classic_member_are_rejected(driver: MixedGroupDriver) -> None:
    driver.join()
    assert driver.sync("unknown", 2).error is GroupError.UNKNOWN_MEMBER_ID
    assert driver.sync("new", 2).error is GroupError.UNKNOWN_MEMBER_ID, "it uses the other protocol"
    assert driver.sync("new-2", 1).error is GroupError.ILLEGAL_GENERATION
    assert driver.sync("new-2", 2, "other").error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert driver.heartbeat("unknown", 2) is GroupError.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("new-2", 1) is GroupError.ILLEGAL_GENERATION
    driver.consumer_heartbeat("another")
    assert driver.sync("new-2", 2).error is GroupError.REBALANCE_IN_PROGRESS
    with pytest.raises(GroupRequestFailed, check=lambda failed: failed.error is GroupError.UNKNOWN_MEMBER_ID):
        driver.consumer_heartbeat("unknown", 3)


def test_classic_member_is_removed_when_it_does_not_sync_or_rejoin_in_time(driver: MixedGroupDriver) -> None:
    driver.join()
    driver.now_ms = REBALANCE_MS
    driver.apply(transitions.tick(driver.group, driver.context))
    assert driver.sync("new-2", 2).error is GroupError.UNKNOWN_MEMBER_ID
    joined = driver.join()
    driver.share(joined.member_id, joined.generation)
    assert driver.group.next_deadline_ms is None
    driver.consumer_heartbeat("another")
    assert driver.heartbeat(joined.member_id, joined.generation) is GroupError.REBALANCE_IN_PROGRESS
    driver.now_ms += 10
    driver.heartbeat(joined.member_id, joined.generation)
    assert driver.group.next_deadline_ms == 2 * REBALANCE_MS, "counted from the first such response"
    driver.now_ms = 2 * REBALANCE_MS
    driver.apply(transitions.tick(driver.group, driver.context))
    assert driver.heartbeat(joined.member_id, joined.generation) is GroupError.UNKNOWN_MEMBER_ID


def test_classic_members_get_new_partitions_when_all_others_are_away() -> None:
    driver = MixedGroupDriver()
    driver.consumer_heartbeat("new", instance="i")
    joined = driver.join()
    driver.share(joined.member_id, joined.generation)
    driver.consumer_heartbeat("new", LEAVE_STATIC, instance="i")
    assert driver.join(joined.member_id).generation == 2
    assert len(driver.share(joined.member_id, 2)) == 2
    driver.image = TopicsImage({"t": Topic("T", 8)})
    assert driver.heartbeat(joined.member_id, 2) is GroupError.REBALANCE_IN_PROGRESS
    assert driver.join(joined.member_id).generation == 3
    assert len(driver.share(joined.member_id, 3)) == 4


def test_leave_removes_classic_members(driver: MixedGroupDriver) -> None:
    one, two = driver.join(), driver.join(instance="i")
    assert driver.leave(
        LeavingMember("new"),
        LeavingMember("x"),
        LeavingMember("", "i"),
        LeavingMember("", "j"),
        LeavingMember(two.member_id, "i"),
    ) == (
        GroupError.UNKNOWN_MEMBER_ID,
        GroupError.UNKNOWN_MEMBER_ID,
        None,
        GroupError.UNKNOWN_MEMBER_ID,
        GroupError.UNKNOWN_MEMBER_ID,
    )
    assert driver.leave(LeavingMember(one.member_id)) == (None,)
    assert set(driver.group.record.members) == {"new"}
    assert driver.leave(LeavingMember(one.member_id)) == (GroupError.UNKNOWN_MEMBER_ID,)


def test_administrator_removes_static_members_of_both_protocols() -> None:
    driver = MixedGroupDriver()
    driver.consumer_heartbeat("new", instance="i")
    assert driver.leave(LeavingMember("", "i")) == (None,)
    assert driver.group.record.is_empty


def test_static_member_keeps_its_partitions_when_it_changes_its_protocol(driver: MixedGroupDriver) -> None:
    driver.consumer_heartbeat("static", instance="i")
    kept = driver.consumer_heartbeat("new", 1).assigned
    driver.consumer_heartbeat("new", 1, kept)
    assigned = driver.consumer_heartbeat("static", 2, instance="i").assigned
    assert assigned
    joined = driver.join(instance="i")
    assert (joined.generation, driver.share(joined.member_id, 2)) == (2, {one.number for one in assigned})
    rejoined = driver.consumer_heartbeat("rejoined", instance="i")
    assert (rejoined.epoch, rejoined.assigned) == (2, assigned), "the classic member need not have left"
    assert driver.sync(joined.member_id, 2).error is GroupError.UNKNOWN_MEMBER_ID
    driver.consumer_heartbeat("rejoined", LEAVE_STATIC, instance="i")
    assert driver.join(instance="i").error is None


# ── from one protocol to the other ───────────────────────────────────────────────────────────────────────────────────


def test_no_member_loses_partitions_in_an_upgrade() -> None:
    driver = classic()
    reply = driver.consumer_heartbeat("new")
    assert (reply.epoch, reply.assigned) == (8, parts(2, 3)), "the free partitions"
    old = driver.member("old")
    assert (old.epoch, old.progress, old.assigned, old.names) == (7, Progress.STABLE, parts(0, 1), ("t",))
    assert transitions.session_ms(old, driver.context.limits) == 10_000
    assert transitions.session_ms(driver.member("new"), driver.context.limits) == 45_000


@pytest.mark.parametrize("state", [GroupState.COMPLETING, GroupState.STABLE, GroupState.PREPARING])
def test_upgrade_keeps_partitions_that_members_owned_when_they_joined(state: GroupState) -> None:
    driver = classic(state, owned=(0, 1, 2), assigned_numbers=None if state is GroupState.COMPLETING else (0, 1))
    assert driver.consumer_heartbeat("new").assigned == parts(3)


def test_waiting_joins_succeed_when_the_group_is_upgraded() -> None:
    """REBALANCE_IN_PROGRESS would stop aiokafka."""
    driver = classic()
    waiting = driver.send_join()
    driver.consumer_heartbeat("new")
    joined = driver.results[waiting]
    assert isinstance(joined, JoinResult)
    assert (joined.error, joined.generation) == (None, 8)
    assert len(driver.share(joined.member_id, 8)) == 1, "the free partitions are shared with the other member"


def test_waiting_syncs_must_rejoin_when_the_group_is_upgraded() -> None:
    driver = classic(GroupState.COMPLETING)
    other = Member("other", None, "c", "/h", 10_000, REBALANCE_MS, (MemberProtocol("range", subscription()),))
    assert isinstance(driver.group, Group)
    members = {**driver.group.record.members, "other": other}
    driver.group = transitions.resumed(
        msgspec.structs.replace(driver.group.record, members=members), driver.context.now
    )
    driver.tickets += 1
    driver.apply(
        transitions.sync(driver.group, SyncRequest(driver.tickets, "other", None, 7, None, None, {}), driver.context)
    )
    waiting = driver.tickets
    driver.consumer_heartbeat("new")
    assert driver.results[waiting].error is GroupError.REBALANCE_IN_PROGRESS


def test_group_is_upgraded_during_a_rebalance_after_a_member_dropped_the_chosen_protocol() -> None:
    driver = MixedGroupDriver()
    driver.send_join(protocols=("range", "sticky"))
    first = driver.results[driver.tickets].member_id
    driver.send_join(protocols=("range", "sticky"))
    driver.send_join(first, protocols=("range", "sticky"))
    assert isinstance(driver.group, Group)
    assert (driver.group.record.state, driver.group.record.protocol) == (GroupState.COMPLETING, "range")
    driver.send_join(first, 0, protocols=("sticky",))
    waiting = driver.tickets
    assert driver.consumer_heartbeat("new").error is None
    assert driver.results[waiting].error is None
    assert 0 in {one.number for one in driver.member(first).reserved}, "it keeps what it owned when it joined"


@pytest.mark.parametrize("kind", ["connect", "stream"])
def test_groups_of_other_protocol_types_are_not_upgraded(kind: str) -> None:
    driver = MixedGroupDriver()
    driver.join(kind=kind)
    before = driver.group
    with pytest.raises(GroupRequestFailed, check=lambda failed: failed.error is GroupError.GROUP_ID_NOT_FOUND):
        driver.consumer_heartbeat("new")
    assert driver.group is before


def test_group_is_downgraded_when_the_last_consumer_protocol_member_leaves() -> None:
    driver = classic()
    driver.consumer_heartbeat("new")
    joined = driver.join("old")
    driver.share("old", joined.generation)
    driver.consumer_heartbeat("new", LEAVE)
    record = driver.group.record
    assert isinstance(record, GroupRecord)
    assert (record.state, record.generation, record.protocol_type) == (GroupState.PREPARING, 8, "consumer")
    assert driver.heartbeat("old", 8) is GroupError.REBALANCE_IN_PROGRESS, "it keeps its partitions until it joins"
    assert record.members["old"].session_ms == 10_000
    rejoined = driver.join("old")
    assert (rejoined.generation, rejoined.leader, len(rejoined.members)) == (9, "old", 1)


def test_pending_join_counts_when_the_group_is_downgraded(driver: MixedGroupDriver) -> None:
    ticket = driver.send_join()
    driver.apply(transitions.expire(driver.group, ["new"], driver.context))
    result = driver.results[ticket]
    assert isinstance(result, JoinResult)
    assert (result.error, result.leader) == (None, result.member_id)


def test_group_is_downgraded_when_its_last_static_member_changes_its_protocol() -> None:
    driver = MixedGroupDriver()
    driver.consumer_heartbeat("new", instance="i")
    joined = driver.join(instance="i")
    assert (joined.error, joined.leader) == (None, joined.member_id)
    assert isinstance(driver.group, Group)


def test_empty_group_gets_the_protocol_of_the_next_member(driver: MixedGroupDriver) -> None:
    driver.consumer_heartbeat("new", LEAVE)
    joined = driver.join()
    assert (joined.leader, joined.generation) == (joined.member_id, 3)
    driver.leave(LeavingMember(joined.member_id))
    assert driver.consumer_heartbeat("rejoined").epoch == 5


def test_heartbeat_is_answered_when_a_classic_member_replaces_its_static_member() -> None:
    driver = MixedGroupDriver()
    beating = driver.send_consumer_heartbeat("new", instance="i")
    joined = driver.join(instance="i")
    assert isinstance(driver.group, Group)
    assert joined.error is None
    assert driver.results[beating].error is GroupError.UNKNOWN_MEMBER_ID


def test_heartbeat_is_answered_when_the_group_is_empty_before_a_classic_member_joins() -> None:
    driver = MixedGroupDriver()
    driver.consumer_heartbeat("other")
    beating = driver.send_consumer_heartbeat("new", instance="i")
    replaced = driver.send_join(instance="i")
    driver.leave(LeavingMember("", "i"))
    driver.apply(transitions.expire(driver.group, ["other"], driver.context))
    assert driver.results[replaced].error is GroupError.UNKNOWN_MEMBER_ID
    assert driver.join().error is None
    assert isinstance(driver.group, Group)
    assert driver.results[beating].error is GroupError.UNKNOWN_MEMBER_ID


def test_both_joins_are_answered_when_a_member_joins_twice_during_a_downgrade(driver: MixedGroupDriver) -> None:
    first = driver.send_join()
    member_id = f"new-{first}"
    second = driver.send_join(member_id)
    driver.apply(transitions.expire(driver.group, ["new"], driver.context))
    assert driver.results[first].error is GroupError.REBALANCE_IN_PROGRESS
    assert driver.results[second].error is None


def test_member_that_joins_with_the_instance_id_of_another_replaces_both(driver: MixedGroupDriver) -> None:
    """Both members' partitions are reassigned, and neither counts towards the size of the group any longer."""
    driver.consumer_heartbeat("away", instance="i")
    kept = driver.consumer_heartbeat("new", 1, parts(0, 1, 2, 3)).assigned
    driver.consumer_heartbeat("new", 1, kept)
    driver.consumer_heartbeat("away", 2, parts(), instance="i")
    driver.consumer_heartbeat("away", LEAVE_STATIC, instance="i")
    assert driver.consumer_heartbeat("new", instance="i").assigned == parts(0, 1, 2, 3)
    assert isinstance(driver.group, ConsumerGroup)
    assert driver.group.size == size_of(driver.group.record.members)


def test_upgrade_by_a_static_member_with_the_same_subscription_starts_an_epoch() -> None:
    """Epoch 0 in a response would make the client join for ever; the classic leader's assignment is no target."""
    driver = MixedGroupDriver(image=TopicsImage({"other": Topic("O", 2)}))
    joined = driver.join(instance="i")
    driver.tickets += 1
    shares = {joined.member_id: write_assignment(1, {"other": [0, 1]})}
    driver.apply(
        transitions.sync(
            driver.group, SyncRequest(driver.tickets, joined.member_id, "i", 1, None, None, shares), driver.context
        )
    )
    assert driver.consumer_heartbeat("new", instance="i") == HeartbeatResult(None, "new", 2, frozenset())
