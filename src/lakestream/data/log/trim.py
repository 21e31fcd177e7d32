"""Removes claims from the chain whose records are in the table.

Before: pipeline/micro_batch.py, after a commit.  After: garbage_collector.py, which deletes the bytes.
"""

from typing import Final

from lakestream.data.log import rules
from lakestream.data.log.partition_view import PartitionView, PartitionViews, partition_deleted
from lakestream.metadata.claims import Claim, Claims
from lakestream.model import PartitionId

TRIM_CLAIMS: Final = 1_000


class Trimmer:
    def __init__(self, claims: Claims, views: PartitionViews) -> None:
        self._claims = claims
        self._views = views

    async def trim(self, partition: PartitionId, upto: int) -> list[Claim]:
        """Drops the claims that lie wholly below `upto` and in the table; returns them.

        First the state is saved, then the floor is raised, then the claims are deleted. A crash in between loses
        nothing, and a broker that was paused meanwhile reads a floor above its own.
        """
        view = await self._views.get(partition)
        await self._views.refresh(view)
        table_end = await self._claims.table_end(partition)
        if view.saved_offset < min(upto, table_end):
            await self._save_state(view)
        bound = rules.trim_bound(upto, table_end, view.saved_offset)
        dropped: list[Claim] = []
        while claims := await self._trim_some(view, bound):
            dropped += claims
        return dropped

    async def _save_state(self, view: PartitionView) -> None:
        await self._views.save_state(view)

    async def _trim_some(self, view: PartitionView, bound: int) -> list[Claim]:
        chain = await self._claims.scan(view.partition, view.floor, bound, limit=TRIM_CLAIMS)
        if chain.floor is None:
            raise partition_deleted(view.partition)
        if chain.floor > view.floor:  # another process trims too: continue from its floor
            view.floor = chain.floor
            return await self._trim_some(view, bound)
        point = rules.trim_point(chain.claims, view.floor, bound)
        dropped = [stored.claim for stored in chain.claims if stored.claim.offset_end <= point]
        if dropped:
            await self._claims.raise_floor(view.partition, point)
            # The newest claim stays although it is below the floor: a create at its start by a broker that was paused
            # must be refused.
            last = dropped[-1].offset_start if point >= view.offset_end else point
            await self._claims.delete_below(view.partition, last)
            view.floor = max(view.floor, point)
        return dropped
