"""Opening a log of a million records in 5,000 claims and more, its fold as old as it ever gets."""

import time

from benchmarks.common.measure import Run, alone, evict, measured, median
from benchmarks.common.report import Row, row
from benchmarks.common.stage import Stage
from benchmarks.log import load
from benchmarks.log.stage import log_on_disk, make_logs
from lakestream.batch import RecordBatch
from lakestream.model import KiB
from lakestream.settings import LogSettings

CLAIMS = 5_000
RECORDS = 200


async def run(stage: Stage) -> list[Row]:
    folder = stage.fresh()
    count = CLAIMS + LogSettings().fold_every_claims - 1  # the last fold lies as many claims back as it may
    async with log_on_disk(folder) as (log, _, metadata):
        (partition,) = await make_logs(metadata, 1)
        for data in load.batches(count, KiB, records=RECORDS):
            await log.append(partition, RecordBatch.parse(data))
    bounds_ms: list[float] = []

    async def work() -> Run:
        evict(folder)
        with measured() as cost:
            async with log_on_disk(folder) as (log, _, _):
                start_s = time.perf_counter()
                bounds = await log.bounds(partition)
                bounds_ms.append((time.perf_counter() - start_s) * 1e3)
        assert bounds.end == count * RECORDS
        return Run(1, cost)

    runs, quiet = await alone(work, 4 * stage.times)
    bounds_ms.sort()
    return [
        row(
            "opening",
            f"open a log of {count * RECORDS:,} records in {count:,} claims, SQLite",
            bounds_ms[len(bounds_ms) // 2],
            "ms",
            at_most=50,
            quiet=quiet,
            note=f"from asking for its bounds, page cache empty; worst {bounds_ms[-1]:.0f} ms;"
            f" with opening and closing the store {median(runs, lambda run: run.cost.seconds * 1e3):.0f} ms",
        )
    ]
