"""Tail reads from memory, and cold reads from disk and S3 compared with bare gets of the same ranges."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import obstore

from benchmarks.common.environment import Stage
from benchmarks.common.measure import Pairs, Run, evict, measured, median, run_alone, run_pairs, warm_memory
from benchmarks.common.report import Row, row
from benchmarks.log import load
from benchmarks.log.environment import bucket, create_logs, log_on_bucket, log_on_disk
from benchmarks.log.recording_stores import Gets, read_id
from lakestream.config.settings import LogSettings
from lakestream.data.log.log import Log
from lakestream.data.wal.segments import READ_THREADS
from lakestream.model import Buffer, KiB, MiB, PartitionId, Span
from lakestream.storage.range_reads import plan_reads

READERS = 8
SLICE = MiB
BATCH = 64 * KiB
FILL = 384 * MiB
SMALL_CACHE = LogSettings(cache_bytes_max=32 * MiB)
"""Small: it is full for most of a cold run, as in a broker that has run for some time."""


async def run(stage: Stage) -> list[Row]:
    return [
        *await _tail(stage, BATCH, SLICE, "1 MiB of 64 KiB batches a read"),
        *await _tail(stage, KiB, KiB, "one batch of 1 KiB a read"),
        *await _cold_disk(stage),
        *await _cold_s3(stage),
    ]


async def _tail(stage: Stage, size: int, slice_size: int, what: str) -> list[Row]:
    """Measures readers at the end of the log, whose records are still in memory."""
    count, rounds, reads = 64, 40, 0
    async with log_on_disk(stage.new_folder()) as (log, _, metadata):
        partitions = await create_logs(metadata, READERS)
        batches = list(load.batches(count, size, records=max(1, size // KiB)))
        await load.produce(log, load.work_for(partitions, batches))

        async def work() -> Run:
            nonlocal reads
            with measured() as cost:
                reads = sum([await _read_all(log, one, slice_size) for _ in range(rounds) for one in partitions])
            return Run(rounds * READERS * count * size, cost)

        runs, quiet = await run_alone(work, stage.times)
    cpu_us = median(runs, lambda run: run.cost.cpu_s) / reads * 1e6
    return [
        row(
            "reads",
            f"tail read from memory, {what}",
            median(runs, lambda run: run.per_s / 1e6),
            "MB/s",
            quiet=quiet,
            note=f"{cpu_us:.0f} µs CPU a read",
        )
    ]


async def _cold_disk(stage: Stage) -> list[Row]:
    folder = stage.new_folder()
    async with log_on_disk(folder) as (log, _, metadata):
        partitions = await _fill(stage, log, await create_logs(metadata, 64))

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Log, Gets]]:
        evict(folder)
        warm_memory(stage.folder, FILL)
        async with log_on_disk(folder, SMALL_CACHE) as (log, segments, _):
            yield log, segments.gets

    with ThreadPoolExecutor(READ_THREADS) as threads:

        async def get(name: str, spans: Sequence[Span]) -> list[Buffer]:
            return await asyncio.get_running_loop().run_in_executor(threads, _pread, folder / "segments" / name, spans)

        pairs = await _cold(stage, partitions, opened, get, evict_peer=lambda: evict(folder))
    return [_cold_row(pairs, "cold read from local disk", "bare pread in threads")]


async def _cold_s3(stage: Stage) -> list[Row]:
    async with bucket(stage.new_folder()) as where:
        folder = stage.new_folder()
        async with log_on_bucket(folder, where) as (log, metadata):
            partitions = await _fill(stage, log, await create_logs(metadata, 64))

        @asynccontextmanager
        async def opened() -> AsyncIterator[tuple[Log, Gets]]:
            evict(where.root)
            warm_memory(stage.folder, FILL)
            where.recording.gets = Gets()
            async with log_on_bucket(folder, where, SMALL_CACHE) as (log, _):
                yield log, where.recording.gets

        async def get(name: str, spans: Sequence[Span]) -> list[Buffer]:
            reads = [read.span for read in plan_reads(spans)]
            bodies = await asyncio.gather(
                *(obstore.get_range_async(where.bare, name, start=span.start, end=span.end) for span in reads)
            )
            return [memoryview(body) for body in bodies]

        pairs = await _cold(stage, partitions, opened, get, evict_peer=lambda: evict(where.root))
    return [_cold_row(pairs, "cold read from S3", "bare ranged gets")]


async def _cold(
    stage: Stage,
    partitions: Sequence[PartitionId],
    opened: Callable[[], AbstractAsyncContextManager[tuple[Log, Gets]]],
    get: Callable[[str, Sequence[Span]], Awaitable[list[Buffer]]],
    evict_peer: Callable[[], None],
) -> Pairs:
    """Runs concurrent readers, each with its share of the logs.

    The peer then reads the same ranges with the same concurrency, in the same order."""
    gets = Gets()

    async def ours() -> Run:
        nonlocal gets
        async with opened() as (log, gets):
            for partition in partitions:
                await log.bounds(partition)  # opens the log: only the records are cold
            shares = [partitions[first::READERS] for first in range(READERS)]
            with measured() as cost:
                sizes = await asyncio.gather(*(_read_share(log, reader, share) for reader, share in enumerate(shares)))
        return Run(sum(sizes), cost)

    async def bare() -> Run:
        async def read_all(reader: int) -> int:
            size = 0
            for requests in gets.of_reader(reader):
                for buffers in await asyncio.gather(*(get(name, spans) for name, spans in requests)):
                    size += sum(map(len, buffers))
            return size

        evict_peer()
        warm_memory(stage.folder, FILL)
        with measured() as cost:
            sizes = await asyncio.gather(*(read_all(reader) for reader in range(READERS)))
        return Run(sum(sizes), cost)

    return await run_pairs(ours, bare, stage.times)


def _cold_row(pairs: Pairs, what: str, peer_is: str) -> Row:
    return row(
        "reads",
        what,
        median(pairs.ours, lambda run: run.per_s / 1e6),
        "MB/s",
        peer=median(pairs.peers, lambda run: run.per_s / 1e6),
        peer_is=peer_is,
        ratio=pairs.ratio,
        at_least=0.7,
        quiet=pairs.quiet,
        note=f"{READERS} readers, 1 MiB a read, checksums verified, page cache empty;"
        " the peer drops the bytes after the read, Lakestream caches 32 MiB of it;"
        f" CPU {median(pairs.ours, lambda run: run.cpu_s_per_gb):.2f} compared with"
        f" {median(pairs.peers, lambda run: run.cpu_s_per_gb):.2f} s/GB",
    )


async def _fill(stage: Stage, log: Log, partitions: list[PartitionId]) -> list[PartitionId]:
    count = FILL // (3 if stage.quick else 1) // BATCH // len(partitions)
    await load.produce(log, load.work_for(partitions, list(load.batches(count, BATCH, records=64))))
    return partitions


async def _read_share(log: Log, reader: int, partitions: Sequence[PartitionId]) -> int:
    """Returns the bytes read."""
    size = number = 0
    for partition in partitions:
        offset, end = 0, 1
        while offset < end:
            read_id.set((reader, number))
            number += 1
            result = await log.read(partition, offset, SLICE)
            size += sum(len(buffer) for _, buffers in result.batches for buffer in buffers)
            offset, end = result.offset_next, result.bounds.end
    return size


async def _read_all(log: Log, partition: PartitionId, slice_size: int) -> int:
    """Returns the number of reads."""
    offset, end, reads = 0, 1, 0
    while offset < end:
        result = await log.read(partition, offset, slice_size)
        offset, end = result.offset_next, result.bounds.end
        reads += 1
    return reads


def _pread(path: Path, spans: Sequence[Span]) -> list[Buffer]:
    file = os.open(path, os.O_RDONLY)
    try:
        return [os.pread(file, span.size, span.start) for span in spans]
    finally:
        os.close(file)
