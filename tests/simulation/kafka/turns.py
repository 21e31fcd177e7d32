"""Two transactional ids that take turns in one group, as programs do that share out work among themselves: each asks
for its offsets before the other has ended. They are members of nothing, so nobody keeps them apart.

Whichever of two offsets was asked for later is the one that stays, in whatever order they end.
"""

from tests.simulation.kafka import frames
from tests.simulation.kafka.coordinated import Coordinated, Kind, Place
from tests.simulation.kafka.judge import NONE, Judge
from tests.simulation.kafka.ledger import Attempt, Ledger
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.transactors import GaveUp, Identity, Transactions
from tests.simulation.world import World

NOBODY = {"member_id": "", "generation_id": -1, "group_instance_id": None}
IDS = 2


class TakingTurns(Coordinated):
    def __init__(self, world: World, judge: Judge, ledger: Ledger, name: str, group: str, place: Place) -> None:
        super().__init__(world, judge, name)
        self.ledger = ledger
        self.group = group
        self.place = place
        self.ids = [Transactions(self, ledger, f"{group}-{i}") for i in range(IDS)]
        for one in self.ids:
            one.implicit = self.ids[-1].implicit  # a client speaks one protocol
            one.timeout_s = 600

    async def run(self) -> None:
        held: tuple[Transactions, Identity, Attempt] | None = None
        for turn in range(1, 2 * self.world.mood.batches + 1):
            it = self.ids[turn % IDS]
            asked = await self._asked(it, turn)
            if held is not None:
                await self._end(*held)
            held = None if asked is None else (it, *asked)
            if self.world.luck.random() < 0.3:
                await self._look()
            await self.think(self.world.mood.think_s_max / 4)
        for it in self.ids:
            await it.init()  # so that nothing stays open
        await self._look()
        self.leave()

    async def _asked(self, it: Transactions, offset: int) -> tuple[Identity, Attempt] | None:
        who, attempt = it.who or await it.init(), it.begin()
        try:
            await it.put_offsets(who, attempt, self.group, {self.place: offset}, NOBODY)
        except GaveUp:
            await it.init()
            return None
        return who, attempt

    async def _end(self, it: Transactions, who: Identity, attempt: Attempt) -> None:
        try:
            await it.end(who, attempt, commit=self.world.luck.random() < 0.8)
        except GaveUp:
            await it.init()

    async def _look(self) -> None:
        """How far the group is, as it is told to whoever asks."""
        known = self.ledger.committed_before(self.group, self.place)
        wanted = {
            "group_id": self.group,
            "topics": [{"name": self.place.topic, "partition_indexes": (self.place.number,)}],
            "member_id": None,
            "member_epoch": -1,
        }
        answer = await self.ask_coordinator(
            Kind.GROUP, self.group, frames.OFFSET_FETCH, {**wanted, "groups": [wanted], "require_stable": True}
        )
        if answer is LOST:
            return
        (said,) = getattr(answer, "groups", [answer])
        for part in (part for topic in said.topics for part in topic.partitions):
            if said.error_code == NONE and part.error_code == NONE:
                self.ledger.offset_heard(self.group, self.place, part.committed_offset, known)
