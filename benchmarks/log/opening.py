"""Time to open a log of a million records in more than 5,000 claims, with the oldest possible stored state."""

import time

from benchmarks.common.environment import Stage
from benchmarks.common.measure import Run, evict, measured, median, run_alone
from benchmarks.common.report import Row, row
from benchmarks.log import load
from benchmarks.log.environment import create_logs, log_on_disk
from lakestream.config.settings import LogSettings
from lakestream.model import KiB
from lakestream.records.batch import RecordBatch

CLAIMS = 5_000
RECORDS = 200


async def run(stage: Stage) -> list[Row]:
    folder = stage.new_folder()
    count = CLAIMS + LogSettings().fold_every_claims - 1  # the last stored state is as many claims back as possible
    async with log_on_disk(folder) as (log, _, metadata):
        (partition,) = await create_logs(metadata, 1)
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

    runs, quiet = await run_alone(work, 4 * stage.times)
    bounds_ms.sort()
    return [
        row(
            "opening",
            f"open a log of {count * RECORDS:,} records in {count:,} claims, SQLite",
            bounds_ms[len(bounds_ms) // 2],
            "ms",
            at_most=50,
            quiet=quiet,
            note=f"read of its bounds, page cache empty; worst {bounds_ms[-1]:.0f} ms;"
            f" including open and close of the store {median(runs, lambda run: run.cost.seconds * 1e3):.0f} ms",
        )
    ]
