"""A group of the classic protocol, spoken to in short words. For the tests of its rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lakestream.coordination.groups import classic
from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.values import (
    Answer,
    Group,
    Instant,
    Join,
    Joined,
    Leaver,
    Rules,
    Step,
    Sync,
    Synced,
)
from lakestream.metadata.groups import GroupRecord, Protocol, State

SESSION_MS, REBALANCE_MS, OPENING_MS = 10_000, 60_000, 500
RULES = Rules(opening_ms=OPENING_MS)


def protocols(*names: str, metadata: bytes = b"m") -> tuple[Protocol, ...]:
    return tuple(Protocol(name, metadata) for name in names)


@dataclass
class Talk:
    """What was said to a group, and what it answered."""

    group: Group = field(default_factory=Group)
    rules: Rules = RULES
    now_ms: int = 1_000
    tickets: int = 0
    ids: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)
    stored: int = 0
    """How many steps had to be stored."""

    @property
    def record(self) -> GroupRecord:
        return self.group.record

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, 1_000_000 + self.now_ms)

    def take(self, step: Step[Group]) -> None:
        self.group = step.group
        self.stored += step.to_store
        for ticket, answer in step.told:
            assert ticket not in self.answers, "nobody is answered twice"
            self.answers[ticket] = answer

    def wish(self, member_id: str = "", instance: str | None = None, known: bool = False, **more: Any) -> Join:
        self.tickets += 1
        self.ids += 1
        wish = Join(
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
            asks_id_first=not known,
        )
        return wish._replace(**more)

    def ask_join(self, member_id: str = "", instance: str | None = None, **more: Any) -> int:
        """The ticket: the answer may come later."""
        wish = self.wish(member_id, instance, **more)
        self.take(classic.join(self.group, wish, self.now, self.rules))
        return wish.ticket

    def joined(self, ticket: int) -> Joined:
        answer = self.answers[ticket]
        assert isinstance(answer, Joined)
        return answer

    def synced(self, ticket: int) -> Synced:
        answer = self.answers[ticket]
        assert isinstance(answer, Synced)
        return answer

    def join_new(self, **more: Any) -> int:
        """A new member with an id at once, as old clients and static members come."""
        return self.ask_join(known=True, **more)

    def ask_sync(self, member_id: str, given: dict[str, str] | None = None, *, generation: int | None = None) -> int:
        self.tickets += 1
        sync = Sync(
            self.tickets,
            member_id,
            None,
            self.record.generation if generation is None else generation,
            None,
            None,
            {member: text.encode() for member, text in (given or {}).items()},
        )
        self.take(classic.sync(self.group, sync, self.now, self.rules))
        return sync.ticket

    def beat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> Refusal | None:
        generation = self.record.generation if generation is None else generation
        return classic.heartbeat(self.record, member_id, instance, generation)

    def leave(self, *leavers: str | Leaver) -> Sequence[Refusal | None]:
        named = [Leaver(one) if isinstance(one, str) else one for one in leavers]
        left = classic.leave(self.group, named, self.now)
        self.take(left.step)
        return left.refusals

    def expire(self, *members: str) -> None:
        self.take(classic.expire(self.group, members, self.now))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.take(classic.tick(self.group, self.now, self.rules))

    def stable(self, count: int = 2, **more: Any) -> list[str]:
        """So many members, each of which has something. The first leads."""
        tickets = [self.join_new(**more) for _ in range(count)]
        while self.state is State.PREPARING:
            self.wait(OPENING_MS)
        members = [self.joined(ticket).member_id for ticket in tickets]
        self.ask_sync(members[0], {member: f"of {member}" for member in members})
        for member in members[1:]:
            self.ask_sync(member)
        assert self.state is State.STABLE
        return members

    def load(self) -> "Talk":
        """As the next coordinator finds it: what only the last one knew is lost."""
        found = classic.resumed(self.record, self.now)
        return Talk(found, self.rules, self.now_ms, self.tickets, self.ids, dict(self.answers), self.stored)
