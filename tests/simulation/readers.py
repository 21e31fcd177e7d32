"""Readers at random offsets of random brokers. Whatever they are given is held against the witness's log."""

import asyncio
from typing import NamedTuple

from tests.simulation.witness import TrueLog
from tests.simulation.world import Host, World

from lakestream.batch import CONTROL
from lakestream.checksum import crc32c
from lakestream.data.log.log import Bounds, Slice
from lakestream.errors import Corrupt, LakestreamError, Missing, OutOfRange, Unavailable
from lakestream.filed import as_bytes
from lakestream.metadata.claims import Kind
from lakestream.model import PartitionId
from lakestream.testing.batches import records_of
from lakestream.testing.faults import spread

READ_BYTES = (1, 300, 100_000)
RECORD_COUNT = slice(57, 61)
ATTRIBUTES = slice(21, 23)
CRC_START, CRC_END = 17, 21


class Row(NamedTuple):
    offset: int
    value: bytes
    key: bytes | None = None


class Reader:
    def __init__(self, world: World) -> None:
        self.world = world
        self._ends: dict[tuple[Host, PartitionId], int] = {}

    async def run(self) -> None:
        world = self.world
        while not world.healed:
            what = world.luck.choice((self.read_somewhere, self.read_somewhere, self.look, self.wait))
            await what(world.any_broker(), world.any_partition())
            await asyncio.sleep(spread(world.luck, 0.05, world.mood.think_s_max))

    async def read_somewhere(self, broker: Host, partition: PartitionId) -> None:
        log = self.world.witness.log(partition)
        await self.read(broker, partition, self.world.luck.randint(0, log.end + 1))

    async def read(self, broker: Host, partition: PartitionId, offset: int) -> Slice | None:
        """One read, checked. None: it failed for a good reason."""
        world, log = self.world, self.world.witness.log(partition)
        end_before = log.end
        try:
            found = await broker.ask(lambda it: it.read(partition, offset, world.luck.choice(READ_BYTES)))
        except LakestreamError as error:
            self.check_error(partition, offset, end_before, error)
            return None
        world.tally["reads"] += 1
        self._check_slice(partition, log, offset, end_before, found)
        return found

    async def look(self, broker: Host, partition: PartitionId) -> None:
        log = self.world.witness.log(partition)
        end_before, began = log.end, self.world.loop.now
        try:
            bounds = await broker.ask(lambda it: it.bounds(partition))
        except LakestreamError as error:
            self.check_error(partition, 0, end_before, error)
            return
        self._check_bounds(broker, partition, log, bounds)
        if bounds.end < end_before and began >= self.world.deposed_until:
            self.world.witness.accuse("who looks sees", f"end of {partition} is {bounds.end} after {end_before}")

    async def wait(self, broker: Host, partition: PartitionId) -> None:
        world, log = self.world, self.world.witness.log(partition)
        offset, timeout_ms = log.end, world.luck.choice((10, 500, 20_000))
        began, stalled = world.loop.now, broker.machine.stalled_s
        try:
            grew = await broker.ask(lambda it: it.wait(partition, offset, timeout_ms))
        except LakestreamError as error:
            self.check_error(partition, 0, 0, error)
            return
        world.tally["waits"] += 1
        if grew and log.end <= offset:
            world.witness.accuse("who is woken finds", f"{partition} did not grow beyond {offset}")
        took = world.loop.now - began - (broker.machine.stalled_s - stalled)
        if took > timeout_ms / 1000 + 60.0:
            world.witness.accuse("every wait ends", f"a wait of {timeout_ms} ms took {took:.0f} s")

    def check_error(self, partition: PartitionId, offset: int, end_before: int, error: LakestreamError) -> None:
        witness, log = self.world.witness, self.world.witness.log(partition)
        self.world.tally[f"read errors {type(error).__name__}"] += 1
        if isinstance(error, Corrupt):
            if not any(name in str(error) for name in self.world.damaged):
                witness.accuse("no false alarm", f"{partition}:{offset}: {error}")
        elif isinstance(error, Missing):
            if not log.gone:
                witness.accuse("gone is gone", f"{partition} is there, but {error}")
        elif isinstance(error, OutOfRange):
            if 0 <= offset <= end_before and not log.gone:
                witness.accuse("no wrong refusal", f"{partition}:{offset} when the end was {end_before}: {error}")
        elif not isinstance(error, Unavailable):
            witness.accuse("known errors", f"read of {partition}:{offset} raised {error!r}")

    def _check_bounds(self, broker: Host, partition: PartitionId, log: TrueLog, bounds: Bounds) -> None:
        witness = self.world.witness
        if not 0 <= bounds.start <= bounds.stable <= bounds.end <= log.end:
            witness.accuse("bounds", f"{bounds} of {partition}, which ends at {log.end}")
        known = self._ends.get((broker, partition), 0)
        if bounds.end < known:
            witness.accuse("the end moves forward", f"end of {partition} went from {known} to {bounds.end}")
        self._ends[broker, partition] = max(known, bounds.end)

    def _check_slice(self, partition: PartitionId, log: TrueLog, offset: int, end_before: int, found: Slice) -> None:
        witness = self.world.witness
        seen: set[int] = set()
        try:
            rows = rows_of(found)
        except Corrupt as error:
            witness.accuse(
                "damage is never served", f"a read of {partition}:{offset} gave bytes that are wrong: {error}"
            )
            return
        for row in rows:
            if row.offset in seen or (seen and row.offset < max(seen)):
                witness.accuse("none twice in one answer", f"a read of {partition}:{offset} gave {row.offset} again")
            seen.add(row.offset)
            true = log.records.get(row.offset)
            if true is None or (true.key, true.value) != (row.key, row.value):
                expected = true and (true.key, true.value)
                witness.accuse(
                    "every reader sees the same",
                    f"{partition}:{row.offset} is {(row.key, row.value)}, not {expected}",
                )
        tables = witness.tables
        table_next = tables.next_offset(partition)
        for missing in range(offset, found.offset_next):
            true = log.records.get(missing)
            if true is None or true.kind >= Kind.COMMIT or missing in seen or tables.is_deleted(partition, missing):
                continue
            if true.kind is Kind.TRANSACTIONAL and missing < table_next and not self.world.is_committed(true):
                continue
            witness.accuse("none is missing", f"a read of {partition}:{offset} left out {missing} ({true.value!r})")
        if not found.batches and found.offset_next == offset < end_before:
            began_deposed = self.world.loop.now < self.world.deposed_until + 60.0
            if not began_deposed:
                witness.accuse("who looks sees", f"nothing at {partition}:{offset}, though the end was {end_before}")


def rows_of(found: Slice) -> list[Row]:
    """The records of a slice, markers left out."""
    return [row for _, buffers in found.batches for row in rows_in(as_bytes(buffers))]


def rows_in(data: bytes) -> list[Row]:
    """Of one batch as it was given, its checksum held against it. Out of a table its offsets may have gaps."""
    if is_gap(data):
        return []
    if crc32c(data[CRC_END:]) != int.from_bytes(data[CRC_START:CRC_END], "big"):
        raise Corrupt("a batch with a wrong checksum")
    if int.from_bytes(data[ATTRIBUTES], "big") & CONTROL:
        return []
    base = int.from_bytes(data[:8], "big")
    rows = []
    for record in records_of(data):
        assert record.value is not None, "every record of the simulation has a value"
        rows.append(Row(base + record.offset_delta, record.value, record.key))
    return rows


def is_gap(data: bytes) -> bool:
    """A batch without records stands for offsets that nobody has."""
    return data[RECORD_COUNT] == bytes(4)
