"""Resident memory of a process that serves 5,000 active partitions, its caches full."""

from collections.abc import Iterator

from benchmarks.common.measure import resident_bytes
from benchmarks.common.report import Row, row
from benchmarks.common.stage import Stage
from benchmarks.log import load
from benchmarks.log.stage import log_on_disk, make_logs
from lakestream.model import KiB, MiB
from lakestream.settings import LogSettings

PARTITIONS = 5_000


async def run(stage: Stage) -> list[Row]:
    settings = LogSettings()
    # More claims than a view keeps, so that every tail is as long as it gets.
    count = 4 if stage.quick else 2 * settings.tail_claims_max + 6
    before = resident_bytes()
    async with log_on_disk(stage.fresh(), settings) as (log, _, metadata):
        partitions = await make_logs(metadata, PARTITIONS)
        work = {partition: _Batches(count) for partition in partitions}
        await load.produce(log, work, in_flight=1)
        used = resident_bytes()
    return [
        row(
            "memory",
            f"resident with {PARTITIONS:,} active partitions",
            used / 1e6,
            "MB",
            at_most=300,
            note=f"after {count} claims of 1 KiB in each; an empty process has {before / 1e6:.0f} MB;"
            f" {settings.cache_bytes_max // MiB} MiB of it may be cached records",
        )
    ]


class _Batches:
    """Built as they are sent, so that they do not count."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[bytes]:
        return load.batches(self._count, KiB, records=1)
