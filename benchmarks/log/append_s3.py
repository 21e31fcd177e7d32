"""Append in the `cost` profile to an S3 server, against bare obstore puts of objects of the same sizes."""

import asyncio
import os
import statistics

import obstore

from benchmarks.common.measure import Run, evict, in_turns, measured, median, warm_memory
from benchmarks.common.report import Row, row
from benchmarks.common.stage import Stage
from benchmarks.log import load
from benchmarks.log.stage import bucket, log_on_bucket, make_logs
from lakestream.model import KiB, MiB
from lakestream.settings import WalSettings

PARTITIONS = 256
"""As many as it takes, at 5 batches in flight each, to keep all uploads busy."""
BATCH = 64 * KiB


async def run(stage: Stage) -> list[Row]:
    count = 256 * MiB // BATCH // PARTITIONS
    first, *work = load.batches(1 + count, BATCH, records=64)
    total = PARTITIONS * count * BATCH
    at_once = WalSettings().uploads_max
    async with bucket(stage.fresh()) as where:

        async def ours() -> Run:
            async with log_on_bucket(stage.fresh(), where) as (log, metadata):
                partitions = await make_logs(metadata, PARTITIONS)
                await load.produce(log, load.work_for(partitions, [first]))  # opens the logs
                where.noted.sizes.clear()
                warm_memory(stage.folder, total)
                with measured() as cost:
                    await load.produce(log, load.work_for(partitions, work))
            evict(where.root)
            return Run(total, cost)

        async def bare() -> Run:
            sizes = list(where.noted.sizes)
            whole = memoryview(os.urandom(max(sizes)))
            bodies = iter([[whole[:size]] for size in sizes])

            async def put_on(worker: int) -> None:
                for number, body in enumerate(bodies):
                    await obstore.put_async(where.bare, f"bare/{worker}-{number}", body, use_multipart=False)

            warm_memory(stage.folder, total)
            with measured() as cost:
                await asyncio.gather(*(put_on(worker) for worker in range(at_once)))
            evict(where.root)
            return Run(sum(sizes), cost)

        pairs = await in_turns(ours, bare, stage.times)
        objects = f"objects of {statistics.median(where.noted.sizes) / MiB:.1f} MiB (median), {at_once} at once"
    return [
        row(
            "append-s3",
            "append 64 KiB batches, cost profile, S3 and SQLite",
            median(pairs.ours, lambda run: run.per_s / 1e6),
            "MB/s",
            peer=median(pairs.peers, lambda run: run.per_s / 1e6),
            peer_is="bare obstore puts",
            ratio=pairs.ratio,
            at_least=0.7,
            quiet=pairs.quiet,
            note=f"{objects}, {PARTITIONS} partitions; server on the same cores",
        ),
        row(
            "append-s3",
            "CPU of that append",
            median(pairs.ours, lambda run: run.cpu_s_per_gb),
            "s/GB",
            peer=median(pairs.peers, lambda run: run.cpu_s_per_gb),
            peer_is="bare puts",
            quiet=pairs.quiet,
        ),
    ]
