"""Driver of one classic group without a coordinator."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lakestream.coordination.groups import classic_group
from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.messages import (
    Group,
    GroupLimits,
    GroupResult,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
    Transition,
)
from lakestream.metadata.groups import GroupRecord, GroupState, MemberProtocol

SESSION_MS, REBALANCE_MS, OPENING_MS = 10_000, 60_000, 500
LIMITS = GroupLimits(initial_delay_ms=OPENING_MS)


def protocols(*names: str, metadata: bytes = b"m") -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(name, metadata) for name in names)


@dataclass
class ClassicGroupDriver:
    """Classic group, and the results of all requests sent to it."""

    group: Group = field(default_factory=Group)
    limits: GroupLimits = LIMITS
    now_ms: int = 1_000
    tickets: int = 0
    ids: int = 0
    results: dict[int, GroupResult] = field(default_factory=dict)
    stored: int = 0
    """Number of transitions that had to be stored."""

    @property
    def record(self) -> GroupRecord:
        return self.group.record

    @property
    def state(self) -> GroupState:
        return self.record.state

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, 1_000_000 + self.now_ms)

    def apply(self, step: Transition[Group]) -> None:
        self.group = step.group
        self.stored += step.to_store
        for ticket, result in step.replies:
            assert ticket not in self.results, "a request has one result"
            self.results[ticket] = result

    def request(
        self, member_id: str = "", instance: str | None = None, known: bool = False, **more: Any
    ) -> JoinRequest:
        self.tickets += 1
        self.ids += 1
        request = JoinRequest(
            self.tickets,
            member_id,
            f"m{self.ids}",
            instance,
            "client",
            "/host",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            protocols("range"),
            requires_known_member_id=not known,
        )
        return request._replace(**more)

    def send_join(self, member_id: str = "", instance: str | None = None, **more: Any) -> int:
        """Sends a join request. Returns its ticket, because the result may be produced later."""
        request = self.request(member_id, instance, **more)
        self.apply(classic_group.join(self.group, request, self.now, self.limits))
        return request.ticket

    def joined(self, ticket: int) -> JoinResult:
        result = self.results[ticket]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, ticket: int) -> SyncResult:
        result = self.results[ticket]
        assert isinstance(result, SyncResult)
        return result

    def join_new(self, **more: Any) -> int:
        """Joins as a new member that gets its id with the first response, like old clients and static members."""
        return self.send_join(known=True, **more)

    def send_sync(
        self, member_id: str, assignments: dict[str, str] | None = None, *, generation: int | None = None
    ) -> int:
        self.tickets += 1
        sync = SyncRequest(
            self.tickets,
            member_id,
            None,
            self.record.generation if generation is None else generation,
            None,
            None,
            {member: text.encode() for member, text in (assignments or {}).items()},
        )
        self.apply(classic_group.sync(self.group, sync, self.now, self.limits))
        return sync.ticket

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance: str | None = None
    ) -> GroupError | None:
        generation = self.record.generation if generation is None else generation
        return classic_group.heartbeat(self.record, member_id, instance, generation)

    def leave(self, *leavers: str | LeavingMember) -> Sequence[GroupError | None]:
        members = [LeavingMember(leaver) if isinstance(leaver, str) else leaver for leaver in leavers]
        left = classic_group.leave(self.group, members, self.now)
        self.apply(left.transition)
        return left.errors

    def expire(self, *members: str) -> None:
        self.apply(classic_group.expire(self.group, members, self.now))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.apply(classic_group.tick(self.group, self.now, self.limits))

    def stable(self, count: int = 2, **more: Any) -> list[str]:
        """Joins `count` members and returns their ids when all have assignments. The first is the leader."""
        tickets = [self.join_new(**more) for _ in range(count)]
        while self.state is GroupState.PREPARING:
            self.wait(OPENING_MS)
        members = [self.joined(ticket).member_id for ticket in tickets]
        self.send_sync(members[0], {member: f"of {member}" for member in members})
        for member in members[1:]:
            self.send_sync(member)
        assert self.state is GroupState.STABLE
        return members

    def reload(self) -> "ClassicGroupDriver":
        """Returns the group as a new coordinator loads it, without the state that was only in memory."""
        group = classic_group.resumed(self.record, self.now)
        return ClassicGroupDriver(
            group, self.limits, self.now_ms, self.tickets, self.ids, dict(self.results), self.stored
        )
