"""Members of a classic group, as clients behave: they join, share out, read, commit; they crash, leave, and sleep
through their sessions without knowing it.

Static ones keep their name when they start anew. The leader shares out by turns; what a member has is written as text.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tests.simulation.kafka import frames
from tests.simulation.kafka.committed import Session
from tests.simulation.kafka.coordinated import Coordinated, Kind, Place, by_topic
from tests.simulation.kafka.judge import NONE, Judge
from tests.simulation.kafka.ledger import Ledger
from tests.simulation.kafka.link import LOST
from tests.simulation.world import World

from lakestream.testing.faults import spread

ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, UNKNOWN_MEMBER, REBALANCING, MEMBER_ID_REQUIRED = 22, 23, 25, 27, 79
FENCED_INSTANCE, UNSTABLE_OFFSET = 82, 88
SESSION_S, REBALANCE_S = 8.0, 6.0
PROTOCOL = "by turns"


class Member(Coordinated):
    def __init__(
        self, world: World, judge: Judge, ledger: Ledger, name: str, group: str, topic: str, instance: str | None = None
    ) -> None:
        super().__init__(world, judge, name)
        self.ledger = ledger
        self.group = group
        self.topic = topic
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.places: list[Place] = []
        self.session: Session | None = None
        """What it reads, since it was given it."""
        self.turns = world.mood.batches * 2
        self.tries = 100
        """To become a member."""
        self._strays: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        return self.world.witness.topics[self.topic].topic.partition_count

    async def run(self) -> None:
        await self._live()
        if self._strays:
            await asyncio.wait(self._strays)
        self.leave()

    async def _live(self) -> None:
        luck = self.world.luck
        while self.turns > 0 and self.tries > 0:
            if self.session is None and not await self._begin():
                self.tries -= 1
                continue
            self.turns -= 1
            what = luck.random()
            if what < 0.06:
                self._sleep_on(self.session)
                self._crash()
            elif what < 0.1:
                await self.leave_group()
            elif what < 0.15:
                await asyncio.sleep(spread(luck, SESSION_S, 4 * SESSION_S))  # and does not know it
                await self._work()
            elif what < 0.35:
                await self._heartbeat()
            else:
                await self._work()
            await self.think(min(self.world.mood.think_s_max, SESSION_S / 4))
        await self.leave_group()

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> bool:
        """Join, learn what it has, and how far that was read."""
        if not await self._join():
            return False
        offsets = await self._offsets()
        if offsets is None:
            return False
        self.session = Session(self, self.ledger, offsets)
        return True

    async def _join(self) -> bool:
        joined = await self._group_ask(
            frames.JOIN_GROUP,
            {
                "session_timeout": timedelta(seconds=SESSION_S),
                "rebalance_timeout": timedelta(seconds=REBALANCE_S),
                "protocol_type": "consumer",
                "protocols": [{"name": PROTOCOL, "metadata": self.topic.encode()}],
                "reason": None,
            },
        )
        if joined is LOST:
            return False
        if joined.error_code == MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return False
        if not await self._goes_on(joined.error_code):
            return False
        self.member_id, self.generation = joined.member_id, joined.generation_id
        return await self._sync(self._shared_out(joined) if joined.leader == self.member_id else {})

    def _shared_out(self, joined: Any) -> dict[str, bytes]:
        if getattr(joined, "skip_assignment", False):
            return {}
        members = sorted(member.member_id for member in joined.members)
        shares: dict[str, list[str]] = {member: [] for member in members}
        for number in range(self.count):
            shares[members[(number + self.generation) % len(members)]].append(str(number))
        return {member: ",".join(numbers).encode() for member, numbers in shares.items()}

    async def _sync(self, assignments: Mapping[str, bytes]) -> bool:
        synced = await self._group_ask(
            frames.SYNC_GROUP,
            {
                "generation_id": self.generation,
                "protocol_type": "consumer",
                "protocol_name": PROTOCOL,
                "assignments": [
                    {"member_id": member, "assignment": assignment} for member, assignment in assignments.items()
                ],
            },
        )
        if synced is LOST or not await self._goes_on(synced.error_code):
            return False
        numbers = [int(number) for number in bytes(synced.assignment).decode().split(",") if number]
        self.places = [Place(self.topic, number) for number in numbers]
        self.ledger.assigned(self.group, self.generation, self.instance or self.member_id, self.places)
        self.ledger.seated(self.group, self.instance, self.member_id)
        return True

    async def _heartbeat(self) -> bool:
        answer = await self._group_ask(frames.HEARTBEAT, {"generation_id": self.generation})
        return answer is not LOST and await self._goes_on(answer.error_code)

    async def leave_group(self) -> None:
        if self.member_id:
            identity = {"member_id": self.member_id, "group_instance_id": self.instance, "reason": None}
            await self.ask_coordinator(
                Kind.GROUP, self.group, frames.LEAVE_GROUP, {"group_id": self.group, "members": [identity]}
            )
            self.world.tally["group members left"] += 1
        self._crash()

    def _sleep_on(self, session: Session | None) -> None:
        """It seems to have crashed, and another comes in its place; some time it goes on, and commits."""
        if session is None or not session.positions or self.world.luck.random() < 0.3:
            return
        self.world.tally["group zombies"] += 1
        self._commit_late(self.member_id, self.generation, dict(session.positions))

    def _commit_late(self, who: str, generation: int, offsets: dict[Place, int]) -> None:
        async def wake_up() -> None:
            await asyncio.sleep(spread(self.world.luck, 0.05, 3 * SESSION_S))
            await self._committed(who, generation, offsets)

        self._strays.append(asyncio.get_running_loop().create_task(wake_up()))

    def _crash(self) -> None:
        """Whoever comes in its place knows nothing but its instance id."""
        self.member_id = ""
        self.lose()
        self.leave()

    def lose(self) -> None:
        self.session = None
        self.places = []

    async def _goes_on(self, code: int) -> bool:
        """Whether all is well; else it does what clients do."""
        if code == NONE:
            self.works()
            return True
        self.world.tally[f"group error {int(code)}"] += 1
        if await self.is_passing(Kind.GROUP, self.group, code):
            return False  # it goes on with what it has
        self.lose()
        if code in (UNKNOWN_MEMBER, FENCED_INSTANCE):
            self.member_id = ""
        elif code not in (ILLEGAL_GENERATION, REBALANCING):
            self.world.witness.accuse("errors that clients retry", f"{self.name} of {self.group} was told {code!r}")
        return False

    async def _group_ask(self, key: int, values: Mapping[str, Any]) -> Any:
        identity = {"group_id": self.group, "member_id": self.member_id, "group_instance_id": self.instance}
        return await self.ask_coordinator(Kind.GROUP, self.group, key, {**identity, **values})

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _offsets(self) -> dict[Place, int] | None:
        """How far its partitions were read. None: it could not be found out."""
        acked = {place: self.ledger.committed_before(self.group, place) for place in self.places}
        if not self.places:
            return {}
        topics = [{"name": self.topic, "partition_indexes": tuple(place.number for place in self.places)}]
        asked = {"group_id": self.group, "topics": topics}
        answer = await self.ask_coordinator(
            Kind.GROUP,
            self.group,
            frames.OFFSET_FETCH,
            {**asked, "groups": [{**asked, "member_id": None, "member_epoch": -1}], "require_stable": True},
        )
        if answer is LOST:
            return None
        (said,) = getattr(answer, "groups", [answer])
        if not await self._goes_on(said.error_code):
            return None
        offsets = {}
        for topic in said.topics:
            for part in topic.partitions:
                if part.error_code == UNSTABLE_OFFSET:
                    self.world.tally["group offsets unstable"] += 1
                    await self.back_off()
                    return None
                place = Place(topic.name, part.partition_index)
                self.ledger.offset_heard(self.group, place, part.committed_offset, acked[place])
                offsets[place] = max(part.committed_offset, 0)
        return offsets

    async def _work(self) -> None:
        """Read on, and commit what was read."""
        if self.session is None:
            return
        await self.session.poll()
        if self.session is not None and self.world.luck.random() < 0.6:
            await self._commit(self.session.positions)

    async def _commit(self, offsets: Mapping[Place, int]) -> None:
        if offsets:
            code = await self._committed(self.member_id, self.generation, dict(offsets))
            if code is not None:
                await self._goes_on(code)

    async def _committed(self, member_id: str, generation: int, offsets: dict[Place, int]) -> int | None:
        newest, holder = self.ledger.generation(self.group), self.ledger.holder(self.group, self.instance)
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
        code = int(next(part.error_code for topic in answer.topics for part in topic.partitions))
        if code == NONE:
            self.ledger.committed(self.group, generation, newest, offsets)
            if holder not in (None, member_id):
                self.world.witness.accuse(
                    "a zombie commits nothing", f"{member_id} of {self.instance}, which {holder} is by now"
                )
        return code


def committed_values(offsets: Mapping[Place, int]) -> dict[Place, dict[str, Any]]:
    return {
        place: {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
        for place, offset in offsets.items()
    }
