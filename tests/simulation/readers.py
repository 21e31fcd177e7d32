"""Readers at random offsets of random brokers. Every result is compared with the oracle's log."""

import asyncio
from typing import NamedTuple

from tests.simulation.oracle import TrueLog
from tests.simulation.world import Host, World

from lakestream.data.log.log import Offsets, ReadResult
from lakestream.errors import Corrupt, LakestreamError, Missing, OutOfRange, Unavailable
from lakestream.metadata.claims import BatchKind
from lakestream.model import PartitionId
from lakestream.records.batch import CONTROL
from lakestream.records.crc32c import crc32c
from lakestream.records.file_region import as_bytes
from lakestream.testing.batches import records_of
from lakestream.testing.fault_injection import log_uniform

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
            action = world.rng.choice((self.read_anywhere, self.read_anywhere, self.read_bounds, self.wait))
            await action(world.any_broker(), world.any_partition())
            await asyncio.sleep(log_uniform(world.rng, 0.05, world.scenario.think_s_max))

    async def read_anywhere(self, broker: Host, partition: PartitionId) -> None:
        log = self.world.oracle.log(partition)
        await self.read(broker, partition, self.world.rng.randint(0, log.end + 1))

    async def read(self, broker: Host, partition: PartitionId, offset: int) -> ReadResult | None:
        """Reads once and checks the result. Returns None after an expected error."""
        world, log = self.world, self.world.oracle.log(partition)
        end_before = log.end
        try:
            result = await broker.call(lambda log: log.read(partition, offset, world.rng.choice(READ_BYTES)))
        except LakestreamError as error:
            self.check_error(partition, offset, end_before, error)
            return None
        world.tally["reads"] += 1
        self._check_records(partition, log, offset, end_before, result)
        return result

    async def read_bounds(self, broker: Host, partition: PartitionId) -> None:
        log = self.world.oracle.log(partition)
        end_before, began = log.end, self.world.loop.now
        try:
            bounds = await broker.call(lambda log: log.bounds(partition))
        except LakestreamError as error:
            self.check_error(partition, 0, end_before, error)
            return
        self._check_bounds(broker, partition, log, bounds)
        if bounds.end < end_before and began >= self.world.deposed_until:
            self.world.oracle.report("reads are current", f"end of {partition} is {bounds.end} after {end_before}")

    async def wait(self, broker: Host, partition: PartitionId) -> None:
        world, log = self.world, self.world.oracle.log(partition)
        offset, timeout_ms = log.end, world.rng.choice((10, 500, 20_000))
        began, stalled = world.loop.now, broker.machine.stalled_s
        try:
            grew = await broker.call(lambda log: log.wait(partition, offset, timeout_ms))
        except LakestreamError as error:
            self.check_error(partition, 0, 0, error)
            return
        world.tally["waits"] += 1
        if grew and log.end <= offset:
            world.oracle.report("a wait ends with new records", f"{partition} did not grow beyond {offset}")
        took = world.loop.now - began - (broker.machine.stalled_s - stalled)
        if took > timeout_ms / 1000 + 60.0:
            world.oracle.report("requests end in time", f"a wait of {timeout_ms} ms took {took:.0f} s")

    def check_error(self, partition: PartitionId, offset: int, end_before: int, error: LakestreamError) -> None:
        oracle, log = self.world.oracle, self.world.oracle.log(partition)
        self.world.tally[f"read errors {type(error).__name__}"] += 1
        if isinstance(error, Corrupt):
            if not any(name in str(error) for name in self.world.damaged):
                oracle.report("no false errors", f"{partition}:{offset}: {error}")
        elif isinstance(error, Missing):
            if not log.deleted:
                oracle.report("existing topics are found", f"{partition} exists, but {error}")
        elif isinstance(error, OutOfRange):
            if 0 <= offset <= end_before and not log.deleted:
                oracle.report(
                    "valid requests are not rejected", f"{partition}:{offset} when the end was {end_before}: {error}"
                )
        elif not isinstance(error, Unavailable):
            oracle.report("only documented errors", f"read of {partition}:{offset} raised {error!r}")

    def _check_bounds(self, broker: Host, partition: PartitionId, log: TrueLog, bounds: Offsets) -> None:
        oracle = self.world.oracle
        if not 0 <= bounds.start <= bounds.stable <= bounds.end <= log.end:
            oracle.report("bounds match the log", f"{bounds} of {partition}, which ends at {log.end}")
        before = self._ends.get((broker, partition), 0)
        if bounds.end < before:
            oracle.report("the end moves forward", f"end of {partition} went from {before} to {bounds.end}")
        self._ends[broker, partition] = max(before, bounds.end)

    def _check_records(
        self, partition: PartitionId, log: TrueLog, offset: int, end_before: int, result: ReadResult
    ) -> None:
        oracle = self.world.oracle
        seen: set[int] = set()
        try:
            rows = rows_of(result)
        except Corrupt as error:
            oracle.report(
                "damaged bytes are not returned", f"a read of {partition}:{offset} returned wrong bytes: {error}"
            )
            return
        for row in rows:
            if row.offset in seen or (seen and row.offset < max(seen)):
                oracle.report(
                    "reads return each record once", f"a read of {partition}:{offset} returned {row.offset} again"
                )
            seen.add(row.offset)
            true = log.records.get(row.offset)
            if true is None or (true.key, true.value) != (row.key, row.value):
                expected = true and (true.key, true.value)
                oracle.report(
                    "reads return the stored records",
                    f"{partition}:{row.offset} is {(row.key, row.value)}, not {expected}",
                )
        tables = oracle.tables
        table_next = tables.next_offset(partition)
        for missing in range(offset, result.offset_next):
            true = log.records.get(missing)
            if (
                true is None
                or true.kind >= BatchKind.COMMIT
                or missing in seen
                or tables.is_deleted(partition, missing)
            ):
                continue
            if true.kind is BatchKind.TRANSACTIONAL and missing < table_next and not self.world.is_committed(true):
                continue
            oracle.report("reads skip no record", f"a read of {partition}:{offset} skipped {missing} ({true.value!r})")
        if not result.batches and result.offset_next == offset < end_before:
            began_deposed = self.world.loop.now < self.world.deposed_until + 60.0
            if not began_deposed:
                oracle.report("reads are current", f"nothing at {partition}:{offset}, though the end was {end_before}")


def rows_of(result: ReadResult) -> list[Row]:
    """Returns the records of a read without markers."""
    return [row for _, buffers in result.batches for row in rows_in(as_bytes(buffers))]


def rows_in(data: bytes) -> list[Row]:
    """Returns the records of one batch and verifies its checksum. Offsets of a batch from a table may have gaps."""
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
    """Returns whether the batch has no records: it covers offsets without any."""
    return data[RECORD_COUNT] == bytes(4)
