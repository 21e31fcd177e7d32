"""Append of 64 KiB batches over 64 partitions to segment files, against a bare loop of the same writes and syncs."""

import itertools
import os
import statistics
from pathlib import Path

from benchmarks.common.measure import Run, evict, in_turns, measured, median, warm_memory
from benchmarks.common.report import Row, row
from benchmarks.common.stage import Stage
from benchmarks.log import load
from benchmarks.log.stage import log_on_disk, make_logs
from lakestream.model import KiB, MiB

PARTITIONS = 64
BATCH = 64 * KiB


async def run(stage: Stage) -> list[Row]:
    count = 256 * MiB // BATCH // PARTITIONS  # short, or memory has gone cold again before it is used
    first, *work = load.batches(1 + count, BATCH, records=64)
    total = PARTITIONS * count * BATCH
    sizes: list[int] = []

    async def ours() -> Run:
        folder = stage.fresh()
        async with log_on_disk(folder) as (log, segments, metadata):
            partitions = await make_logs(metadata, PARTITIONS)
            await load.produce(log, load.work_for(partitions, [first]))  # opens the logs
            segments.sizes.clear()
            warm_memory(stage.folder, total)
            with measured() as cost:
                await load.produce(log, load.work_for(partitions, work))
            sizes[:] = segments.sizes
        evict(folder)
        return Run(total, cost)

    async def bare() -> Run:
        path = stage.fresh() / "bare"
        warm_memory(stage.folder, total)
        with measured() as cost:
            _write(path, sizes, work)
        evict(path.parent)
        path.unlink()
        return Run(sum(sizes), cost)

    pairs = await in_turns(ours, bare, 2 * stage.times)
    name, note = (
        "append-disk",
        f"frames of {statistics.median(sizes) / MiB:.1f} MiB (median), {PARTITIONS} partitions, 5 in flight",
    )
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
            "CPU of that append",
            median(pairs.ours, lambda run: run.cpu_s_per_gb),
            "s/GB",
            peer=median(pairs.peers, lambda run: run.cpu_s_per_gb),
            peer_is="bare loop, all of it in the kernel",
            at_most=0.6,
            quiet=pairs.quiet,
        ),
    ]


def _write(path: Path, sizes: list[int], batches: list[bytes]) -> None:
    """The same batches, as many in a write as our frames had; what a frame has besides is a piece of one."""
    # In the order in which all partitions send them.
    rest_of_all = itertools.cycle(batch for batch in batches for _ in range(PARTITIONS))
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        for size in sizes:
            whole, rest = divmod(size, BATCH)
            buffers = list(itertools.islice(rest_of_all, whole))
            written = os.writev(file, [*buffers, batches[0][:rest]])
            assert written == size, "a local disk takes it whole"
            os.fdatasync(file)
    finally:
        os.close(file)
