"""What a batch of 1 KiB costs when 1, 100 or 5,000 partitions are written at the same time."""

from benchmarks.common.measure import Run, alone, measured, median
from benchmarks.common.report import Row, row
from benchmarks.common.stage import Stage
from benchmarks.log import load
from benchmarks.log.load import IN_FLIGHT
from benchmarks.log.stage import bucket, log_on_bucket, log_on_disk, make_logs
from lakestream.data.log.log import Log
from lakestream.metadata.store import MetadataStore
from lakestream.model import KiB

COUNTS = (1, 100, 5_000)
OBJECT_TURNS = 20
"""In the cost profile all that is in flight is answered four times a second, however little it is."""


async def run(stage: Stage) -> list[Row]:
    rows = []
    total = 50_000 if stage.quick else 100_000  # some 20 for each of 5,000 partitions
    on_disk: dict[int, tuple[list[Run], bool]] = {}
    on_bucket: dict[int, tuple[list[Run], bool]] = {}
    async with bucket(stage.fresh()) as where:
        for count in COUNTS:
            batches = list(load.batches(1 + min(20_000, total // count), KiB, records=1))

            async def disk(count: int = count, batches: list[bytes] = batches) -> Run:
                async with log_on_disk(stage.fresh()) as (log, _, metadata):
                    return await _appended(log, metadata, count, batches)

            async def objects(count: int = count, batches: list[bytes] = batches) -> Run:
                async with log_on_bucket(stage.fresh(), where) as (log, metadata):
                    return await _appended(log, metadata, count, batches[: 1 + OBJECT_TURNS * IN_FLIGHT])

            on_disk[count] = await alone(disk, stage.times)
            if count > 1:
                on_bucket[count] = await alone(objects, min(3, stage.times))
    for profile, found in (("latency profile, SQLite", on_disk), ("cost profile, S3 and SQLite", on_bucket)):
        for count, (runs, quiet) in found.items():
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
        growth = _cpu_us(found[5_000][0]) / _cpu_us(found[100][0])
        rows.append(
            row(
                "partitions",
                f"the same, 5,000 partitions to 100, {profile}",
                growth,
                "times",
                at_most=1.5,
                quiet=found[5_000][1] and found[100][1],
            )
        )
    return rows


async def _appended(log: Log, metadata: MetadataStore, count: int, batches: list[bytes]) -> Run:
    """The first batch of each partition opens its log, and is not counted."""
    partitions = await make_logs(metadata, count)
    await load.produce(log, load.work_for(partitions, batches[:1]))
    with measured() as cost:
        await load.produce(log, load.work_for(partitions, batches[1:]))
    return Run(count * (len(batches) - 1), cost)


def _cpu_us(runs: list[Run]) -> float:
    return median(runs, lambda run: run.cost.cpu_s / run.amount * 1e6)
