"""Cost of a batch of 1 KiB with writes to 1, 100 or 5,000 partitions at the same time."""

from benchmarks.common.environment import Stage
from benchmarks.common.measure import Run, measured, median, run_alone
from benchmarks.common.report import Row, row
from benchmarks.log import load
from benchmarks.log.environment import bucket, create_logs, log_on_bucket, log_on_disk
from benchmarks.log.load import IN_FLIGHT
from lakestream.data.log.log import Log
from lakestream.metadata.store import MetadataStore
from lakestream.model import KiB

COUNTS = (1, 100, 5_000)
OBJECT_ROUNDS = 20
"""In the profile `cost` all batches in flight complete four times per second, independent of their number."""


async def run(stage: Stage) -> list[Row]:
    rows = []
    total = 50_000 if stage.quick else 100_000  # about 20 for each of 5,000 partitions
    on_disk: dict[int, tuple[list[Run], bool]] = {}
    on_bucket: dict[int, tuple[list[Run], bool]] = {}
    async with bucket(stage.new_folder()) as where:
        for count in COUNTS:
            batches = list(load.batches(1 + min(20_000, total // count), KiB, records=1))

            async def disk(count: int = count, batches: list[bytes] = batches) -> Run:
                async with log_on_disk(stage.new_folder()) as (log, _, metadata):
                    return await _appended(log, metadata, count, batches)

            async def objects(count: int = count, batches: list[bytes] = batches) -> Run:
                async with log_on_bucket(stage.new_folder(), where) as (log, metadata):
                    return await _appended(log, metadata, count, batches[: 1 + OBJECT_ROUNDS * IN_FLIGHT])

            on_disk[count] = await run_alone(disk, stage.times)
            if count > 1:
                on_bucket[count] = await run_alone(objects, min(3, stage.times))
    for profile, measurements in (("latency profile, SQLite", on_disk), ("cost profile, S3 and SQLite", on_bucket)):
        for count, (runs, quiet) in measurements.items():
            rate = median(runs, lambda run: run.per_s)
            rows.append(
                row(
                    "partitions",
                    f"append 1 KiB batches to {count:,} partitions, {profile}",
                    _cpu_us(runs),
                    "µs CPU/batch",
                    quiet=quiet,
                    note=f"{rate:,.0f} batches/s",
                )
            )
        growth = _cpu_us(measurements[5_000][0]) / _cpu_us(measurements[100][0])
        rows.append(
            row(
                "partitions",
                f"CPU per batch, 5,000 partitions compared with 100, {profile}",
                growth,
                "times",
                at_most=1.5,
                quiet=measurements[5_000][1] and measurements[100][1],
            )
        )
    return rows


async def _appended(log: Log, metadata: MetadataStore, count: int, batches: list[bytes]) -> Run:
    """Appends all batches to each partition. The first one opens the log, and is not measured."""
    partitions = await create_logs(metadata, count)
    await load.produce(log, load.work_for(partitions, batches[:1]))
    with measured() as cost:
        await load.produce(log, load.work_for(partitions, batches[1:]))
    return Run(count * (len(batches) - 1), cost)


def _cpu_us(runs: list[Run]) -> float:
    return median(runs, lambda run: run.cost.cpu_s / run.amount * 1e6)
