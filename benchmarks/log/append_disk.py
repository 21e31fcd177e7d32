"""Append of 64 KiB batches over 64 partitions to segment files, compared with a loop of the same writes and syncs."""

import itertools
import os
import statistics
from pathlib import Path

from benchmarks.common.environment import Stage
from benchmarks.common.measure import Run, evict, measured, median, run_pairs, warm_memory
from benchmarks.common.report import Row, row
from benchmarks.log import load
from benchmarks.log.environment import create_logs, log_on_disk
from lakestream.model import KiB, MiB

PARTITIONS = 64
BATCH = 64 * KiB


async def run(stage: Stage) -> list[Row]:
    count = 256 * MiB // BATCH // PARTITIONS  # short: otherwise the memory is returned to the host before its use
    first, *work = load.batches(1 + count, BATCH, records=64)
    total = PARTITIONS * count * BATCH
    sizes: list[int] = []

    async def ours() -> Run:
        folder = stage.new_folder()
        async with log_on_disk(folder) as (log, segments, metadata):
            partitions = await create_logs(metadata, PARTITIONS)
            await load.produce(log, load.work_for(partitions, [first]))  # opens the logs
            segments.sizes.clear()
            warm_memory(stage.folder, total)
            with measured() as cost:
                await load.produce(log, load.work_for(partitions, work))
            sizes[:] = segments.sizes
        evict(folder)
        return Run(total, cost)

    async def bare() -> Run:
        path = stage.new_folder() / "bare"
        warm_memory(stage.folder, total)
        with measured() as cost:
            _write(path, sizes, work)
        evict(path.parent)
        path.unlink()
        return Run(sum(sizes), cost)

    pairs = await run_pairs(ours, bare, 2 * stage.times)
    name = "append-disk"
    note = f"frames of {statistics.median(sizes) / MiB:.1f} MiB (median), {PARTITIONS} partitions, 5 in flight"
    return [
        row(
            name,
            "append 64 KiB batches, latency profile, SQLite",
            median(pairs.ours, lambda run: run.per_s / 1e6),
            "MB/s",
            peer=median(pairs.peers, lambda run: run.per_s / 1e6),
            peer_is="bare writev + fdatasync",
            ratio=pairs.ratio,
            at_least=0.5,
            quiet=pairs.quiet,
            note=note,
        ),
        row(
            name,
            "CPU of append, latency profile",
            median(pairs.ours, lambda run: run.cpu_s_per_gb),
            "s/GB",
            peer=median(pairs.peers, lambda run: run.cpu_s_per_gb),
            peer_is="bare loop, all in the kernel",
            at_most=0.6,
            quiet=pairs.quiet,
        ),
    ]


def _write(path: Path, sizes: list[int], batches: list[bytes]) -> None:
    """Writes the same batches, as many per write as the frames contained.

    A part of a batch replaces the header of a frame."""
    # In the order in which the partitions send them.
    remaining = itertools.cycle(batch for batch in batches for _ in range(PARTITIONS))
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        for size in sizes:
            whole, rest = divmod(size, BATCH)
            buffers = list(itertools.islice(remaining, whole))
            written = os.writev(file, [*buffers, batches[0][:rest]])
            assert written == size, "a local disk accepts the whole write"
            os.fdatasync(file)
    finally:
        os.close(file)
