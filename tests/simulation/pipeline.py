"""A model of the pipeline: moves what is committed into the table, advances the table's end, trims and sweeps.

Every step may fail, stall or be the last of its machine; the next run goes on where this one stopped. Two at once are
safe.
"""

import asyncio

from tests.simulation.readers import is_gap, rows_of
from tests.simulation.table import Row
from tests.simulation.world import Host, World

from lakestream.batch import RecordBatch
from lakestream.data.log.fold import Aborted
from lakestream.data.log.log import Slice
from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Unavailable
from lakestream.filed import as_bytes
from lakestream.model import PartitionId
from lakestream.testing.faults import spread

UNTIL_THE_END = 2**62


class Pipeline:
    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host

    async def run(self) -> None:
        """On its machine."""
        await self.host.start()
        luck = self.world.luck
        while not self.world.over:
            await asyncio.sleep(self._pause_s())
            for partition in self._to_move():
                await self._try(self.move(partition, luck.choice((1, 2, 3, 5, UNTIL_THE_END))))
            await self._try(self.sweep())

    def _to_move(self) -> list[PartitionId]:
        return list(self.world.partitions) if self.world.luck.random() < self.world.mood.moves else []

    def _pause_s(self) -> float:
        """When the clients are done there is little to move, but who sleeps may still wake up and claim."""
        if self.world.quiet:
            return 3600.0
        return spread(self.world.luck, 0.5, self.world.mood.move_s_max) * (5 if self.world.healed else 1)

    async def _try(self, work: "asyncio.Future[None] | object") -> None:
        try:
            await work  # type: ignore[misc]
        except (Unavailable, Conflict, Missing):
            self.world.tally["pipeline steps failed"] += 1
        except Corrupt as error:
            if not any(name in str(error) for name in self.world.damaged):
                self.world.witness.accuse("no false alarm", f"pipeline: {error}")
        except LakestreamError as error:
            self.world.witness.accuse("known errors", f"pipeline: {error!r}")

    async def move(self, partition: PartitionId, records_max: int) -> None:
        log, table = self.host.log, self.host.table
        start = await table.next_offset(partition)
        stable = (await log.bounds(partition)).stable
        end = min(stable, start + records_max)
        if end > start:
            await table.commit(partition, start, end, await self._rows(partition, start, end))
            self.world.tally["table commits"] += 1
        end = await table.next_offset(partition)
        await self.host.claims.advance_table_end(partition, end)
        upto = end if self.world.luck.random() < 0.7 else UNTIL_THE_END
        self.host.sweeper.note_dropped(await log.trim(partition, upto))

    async def _rows(self, partition: PartitionId, start: int, end: int) -> list[Row]:
        """The committed records of a range."""
        rows: list[Row] = []
        offset = start
        while offset < end:
            found = await self.host.log.read(partition, offset, 1_000)
            if found.offset_next <= offset:
                raise Unavailable(f"the log of {partition} is shorter than it was")
            aborted = self.host.log.aborted(partition, offset, found.offset_next)
            rows += [row for row in committed(found, aborted) if start <= row.offset < end]
            offset = found.offset_next
        return rows

    async def sweep(self) -> None:
        await self.host.sweeper.sweep()


def committed(found: Slice, aborted: list[Aborted]) -> list[Row]:
    rows = []
    for offset, buffers in found.batches:
        if is_gap(data := as_bytes(buffers)):
            continue
        batch = RecordBatch.parse(data)
        if batch.is_control:
            continue
        if batch.is_transactional and any(
            one.producer_id == batch.producer_id and one.offset_first <= offset <= one.offset_last for one in aborted
        ):
            continue
        rows += rows_of(Slice([(offset, buffers)], offset, found.bounds))
    return rows
