"""Latency of one append at a moderate rate, from the call to its result."""

import asyncio
import time

from benchmarks.common.environment import Stage
from benchmarks.common.measure import measured, percentile
from benchmarks.common.report import Row, row
from benchmarks.log import load
from benchmarks.log.environment import create_logs, log_on_disk
from lakestream.data.log.log import Log
from lakestream.model import KiB, PartitionId
from lakestream.records.batch import RecordBatch

PARTITIONS = 16


async def run(stage: Stage) -> list[Row]:
    rows = []
    for rate in (200, 2_000):
        seconds = 2 if stage.quick else 10
        took_ms: list[float] = []

        async def append(log: Log, partition: PartitionId, data: bytes, took_ms: list[float] = took_ms) -> None:
            start_s = time.perf_counter()
            await log.append(partition, RecordBatch.parse(data))
            took_ms.append((time.perf_counter() - start_s) * 1e3)

        async with log_on_disk(stage.new_folder()) as (log, _, metadata):
            partitions = await create_logs(metadata, PARTITIONS)
            batches = list(load.batches(rate * seconds // PARTITIONS + 1, KiB, records=1))
            await load.produce(log, load.work_for(partitions, batches[:1]))
            with measured() as cost:
                async with asyncio.TaskGroup() as tasks:
                    next_s = time.perf_counter()
                    for data in batches[1:]:
                        for partition in partitions:
                            tasks.create_task(append(log, partition, data))
                            next_s += 1 / rate
                            await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
        took_ms.sort()
        rows.append(
            row(
                "latency",
                f"latency of append, 1 KiB batches at {rate:,}/s, latency profile",
                percentile(took_ms, 0.5),
                "ms p50",
                quiet=cost.is_quiet,
                note=f"p99 {percentile(took_ms, 0.99):.1f}, worst {took_ms[-1]:.1f} ms;"
                f" {cost.cpu_s / cost.seconds:.2f} cores",
            )
        )
    return rows
