"""Members of a group of the new protocol (KIP-848): they beat, are given partitions and give them back; the coordinator
shares out. They crash, leave (static ones also for a while), and sleep through their sessions without knowing it.

They name topics by their ids in all that they ask, so a topic that is deleted and made again is another one to them.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.committed import Session
from tests.simulation.kafka.coordinated import Kind, Place, by_topic
from tests.simulation.kafka.judge import GONE, NONE, Judge, Topic
from tests.simulation.kafka.ledger import Ledger
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.members import REBALANCE_S, UNKNOWN_MEMBER, UNSTABLE_OFFSET, Member, committed_values
from tests.simulation.world import World

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
GROUP_NOT_FOUND, FENCED_EPOCH, UNRELEASED_INSTANCE, STALE_EPOCH, FENCED_INSTANCE = 69, 110, 111, 113, 82
UNCHANGED = timedelta(milliseconds=-1)
MAKES_ITS_ID_FROM = 1


class Follower(Member):
    def __init__(
        self,
        world: World,
        judge: Judge,
        ledger: Ledger,
        name: str,
        group: str,
        topics: tuple[str, ...],
        instance: str | None = None,
    ) -> None:
        super().__init__(world, judge, ledger, name, group, topics[0], instance)
        self.topics = topics
        luck = world.luck
        self.versions = {
            frames.CONSUMER_GROUP_HEARTBEAT: luck.choice((0, 1)),
            frames.OFFSET_COMMIT: 10,
            frames.OFFSET_FETCH: 10,
            frames.FETCH: luck.choice((13, 17)),
        }
        self.by_pattern = self.versions[frames.CONSUMER_GROUP_HEARTBEAT] >= 1 and luck.random() < 0.3
        self.assignor = luck.choice((None, "uniform", "range"))
        self.generation = JOIN
        """Its epoch."""

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> bool:
        if not await self.beat():
            return False
        if self.session is None:
            self.session = Session(self, self.ledger, {})
        return True

    async def _heartbeat(self) -> bool:
        return await self.beat()

    async def beat(self) -> bool:
        """Say what it has, hear what it shall have."""
        joins = self.generation == JOIN
        if joins and not self.member_id and self.versions[frames.CONSUMER_GROUP_HEARTBEAT] >= MAKES_ITS_ID_FROM:
            self.member_id = f"{self.world.luck.getrandbits(128):032x}"
        asked_s, owned = self.world.loop.now, list(self.places)
        answer = await self._beat(joins or self.world.luck.random() < 0.1)
        if answer is LOST or not await self._goes_on(answer.error_code):
            return False
        self.ledger.still_has(self.group, self.member_id, owned, asked_s)
        self.member_id, self.generation = answer.member_id, answer.member_epoch
        if self.session is None:
            self.session = Session(self, self.ledger, {})
        self.ledger.seated(self.group, self.instance, self.member_id)
        if answer.assignment is not None:
            await self._take(self._named(answer.assignment.topic_partitions), asked_s)
        return True

    async def _beat(self, in_full: bool) -> Any:
        has: dict[Place, dict[str, Any]] = {place: {} for place in self.places}
        names = None if self.by_pattern else self.topics
        return await self._group_ask(
            frames.CONSUMER_GROUP_HEARTBEAT,
            {
                "instance_id": self.instance,
                "member_epoch": self.generation,
                "rack_id": None,
                "rebalance_timeout": timedelta(seconds=REBALANCE_S) if in_full else UNCHANGED,
                "subscribed_topic_names": names if in_full else None,
                "subscribed_topic_regex": "|".join(self.topics) if in_full and self.by_pattern else None,
                "server_assignor": self.assignor if in_full else None,
                "topic_partitions": [
                    {"topic_id": one["topic_id"], "partitions": tuple(part["number"] for part in one["partitions"])}
                    for one in by_topic(has, "number")
                ],
            },
        )

    def _named(self, topics: Any) -> list[Place]:
        names = {topic_id: name for name in self.topics for topic_id in self.world.witness.names.get(name, {})}
        return [
            Place(names[topic.topic_id.hex], number, topic.topic_id.hex)
            for topic in topics
            for number in topic.partitions
        ]

    async def _take(self, given: list[Place], asked_s: float) -> None:
        """Give back what is no longer its own, then begin with what is new."""
        lost = {place for place in self.places if place not in given}
        if lost and self.world.luck.random() < 0.3:
            return  # it is still at work with that; it is told again
        session = self.session
        assert session is not None
        read = {place: offset for place, offset in session.positions.items() if place in lost}
        if read:
            self._commit_late(self.member_id, self.generation, read)  # sent now, under way for a while
        if read and self.world.luck.random() < 0.5:
            await self._commit(read)
            if self.session is not session:
                return  # it is a member no longer
        new = [place for place in given if place not in self.places]
        self.places = given
        session.positions = {place: offset for place, offset in session.positions.items() if place not in lost}
        self.ledger.assigned(self.group, self.generation, self.instance or self.member_id, given)
        self.ledger.took(self.group, self.member_id, new, asked_s)

    async def leave_group(self) -> None:
        if self.member_id and self.generation > JOIN:
            away = self.instance is not None and self.world.luck.random() < 0.5
            self.generation, self.places = LEAVE_FOR_A_WHILE if away else LEAVE, []
            await self._beat(in_full=False)
            self.world.tally["group members left"] += 1
        self._crash()

    def _crash(self) -> None:
        super()._crash()
        self.generation = JOIN

    async def _goes_on(self, code: int) -> bool:
        if code == NONE:
            self.works()
            return True
        self.world.tally[f"group error {int(code)}"] += 1
        if code in (UNRELEASED_INSTANCE, UNSTABLE_OFFSET):
            await self.back_off()
        elif code in (FENCED_EPOCH, UNKNOWN_MEMBER, FENCED_INSTANCE, GROUP_NOT_FOUND):
            member_id = self.member_id
            self._crash()
            self.member_id = member_id if code == FENCED_EPOCH else ""  # who is known joins again under its id
        elif code != STALE_EPOCH and not await self.is_passing(Kind.GROUP, self.group, code):
            self.world.witness.accuse("errors that clients retry", f"{self.name} of {self.group} was told {code!r}")
        return False

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        if await self.beat() and self.session is not None and await self._open(self.session):
            await super()._work()

    async def _open(self, session: Session) -> bool:
        """Find out how far others have read what it has and does not read yet."""
        new = [place for place in self.places if place not in session.positions]
        if not new:
            return True
        acked = {place: self.ledger.committed_before(self.group, place) for place in new}
        began_s = self.world.loop.now
        topics = [
            {"topic_id": one["topic_id"], "partition_indexes": tuple(part["number"] for part in one["partitions"])}
            for one in by_topic({place: {} for place in new}, "number")
        ]
        who = {"member_id": self.member_id, "member_epoch": self.generation}
        wanted = {"group_id": self.group, "topics": topics, **who}
        answer = await self.ask_coordinator(
            Kind.GROUP, self.group, frames.OFFSET_FETCH, {"groups": [wanted], "require_stable": True}
        )
        if answer is LOST or not await self._goes_on(answer.groups[0].error_code) or self.session is not session:
            return False
        said = {
            (topic.topic_id, part.partition_index): part
            for topic in answer.groups[0].topics
            for part in topic.partitions
        }
        for place in new:
            part = said[UUID(hex=place.topic_id), place.number]
            if part.error_code == NONE:
                self.ledger.offset_heard(self.group, place, part.committed_offset, acked[place])
                session.positions[place] = max(part.committed_offset, 0)
            else:
                self._check_gone(place, part.error_code, began_s)
        return True

    async def _committed(self, member_id: str, generation: int, offsets: dict[Place, int]) -> int | None:
        asked_s = self.world.loop.now
        answer = await self._group_ask(
            frames.OFFSET_COMMIT,
            {
                "member_id": member_id,
                "generation_id_or_member_epoch": generation,
                "topics": by_topic(committed_values(offsets)),
            },
        )
        if answer is LOST:
            return None
        codes = {
            (topic.topic_id, part.partition_index): int(part.error_code)
            for topic in answer.topics
            for part in topic.partitions
        }
        done = {}
        for place, offset in offsets.items():
            code = codes[UUID(hex=place.topic_id), place.number]
            if code == NONE:
                done[place] = offset
            elif code not in GONE:
                return code
            else:
                self._check_gone(place, code, asked_s)
        if done:
            self.ledger.committed_by(self.group, member_id, asked_s, done)
        return NONE

    def _check_gone(self, place: Place, code: int, began_s: float) -> None:
        if code not in GONE or self.judge.lives(Topic(place.topic, place.topic_id), began_s):
            self.world.witness.accuse("gone is gone", f"{self.name} was told {code} of {place}")
