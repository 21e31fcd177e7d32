"""Append in the `cost` profile to an S3 server, compared with bare obstore puts of the same sizes."""

import asyncio
import os
import statistics

import obstore

from benchmarks.common.environment import Stage
from benchmarks.common.measure import Run, evict, measured, median, run_pairs, warm_memory
from benchmarks.common.report import Row, row
from benchmarks.log import load
from benchmarks.log.environment import bucket, create_logs, log_on_bucket
from lakestream.config.settings import WalSettings
from lakestream.model import KiB, MiB

PARTITIONS = 256
"""Enough to use all uploads, with 5 batches in flight each."""
BATCH = 64 * KiB


async def run(stage: Stage) -> list[Row]:
    count = 256 * MiB // BATCH // PARTITIONS
    first, *work = load.batches(1 + count, BATCH, records=64)
    total = PARTITIONS * count * BATCH
    uploads_max = WalSettings().uploads_max
    async with bucket(stage.new_folder()) as where:

        async def ours() -> Run:
            async with log_on_bucket(stage.new_folder(), where) as (log, metadata):
                partitions = await create_logs(metadata, PARTITIONS)
                await load.produce(log, load.work_for(partitions, [first]))  # opens the logs
                where.recording.sizes.clear()
                warm_memory(stage.folder, total)
                with measured() as cost:
                    await load.produce(log, load.work_for(partitions, work))
            evict(where.root)
            return Run(total, cost)

        async def bare() -> Run:
            sizes = list(where.recording.sizes)
            whole = memoryview(os.urandom(max(sizes)))
            bodies = iter([[whole[:size]] for size in sizes])

            async def put_on(worker: int) -> None:
                for number, body in enumerate(bodies):
                    await obstore.put_async(where.bare, f"bare/{worker}-{number}", body, use_multipart=False)

            warm_memory(stage.folder, total)
            with measured() as cost:
                await asyncio.gather(*(put_on(worker) for worker in range(uploads_max)))
            evict(where.root)
            return Run(sum(sizes), cost)

        pairs = await run_pairs(ours, bare, stage.times)
        objects = (
            f"objects of {statistics.median(where.recording.sizes) / MiB:.1f} MiB (median), {uploads_max} concurrently"
        )
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
            "CPU of append, cost profile",
            median(pairs.ours, lambda run: run.cpu_s_per_gb),
            "s/GB",
            peer=median(pairs.peers, lambda run: run.cpu_s_per_gb),
            peer_is="bare puts",
            quiet=pairs.quiet,
        ),
    ]
