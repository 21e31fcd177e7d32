"""Resident memory of a process that serves 5,000 active partitions, with full caches."""

from collections.abc import Iterator

from benchmarks.common.environment import Stage
from benchmarks.common.measure import resident_bytes
from benchmarks.common.report import Row, row
from benchmarks.log import load
from benchmarks.log.environment import create_logs, log_on_disk
from lakestream.config.settings import LogSettings
from lakestream.model import KiB, MiB

PARTITIONS = 5_000


async def run(stage: Stage) -> list[Row]:
    settings = LogSettings()
    # More claims than a partition view caches, so that every tail has its maximum length.
    count = 4 if stage.quick else 2 * settings.tail_claims_max + 6
    before = resident_bytes()
    async with log_on_disk(stage.new_folder(), settings) as (log, _, metadata):
        partitions = await create_logs(metadata, PARTITIONS)
        work = {partition: _Batches(count) for partition in partitions}
        await load.produce(log, work, in_flight=1)
        used = resident_bytes()
    return [
        row(
            "memory",
            f"resident memory with {PARTITIONS:,} active partitions",
            used / 1e6,
            "MB",
            at_most=300,
            note=f"after {count} claims of 1 KiB in each; an empty process has {before / 1e6:.0f} MB;"
            f" {settings.cache_bytes_max // MiB} MiB of it are the maximum for cached records",
        )
    ]


class _Batches:
    """Builds batches when they are sent, so that their memory is not measured."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[bytes]:
        return load.batches(self._count, KiB, records=1)
