"""Cost of an old topic, whose table has 10,000 files from 1,000 commits.

Target: the next commits, of ten files each, take less than 300 ms. A broker that has served the log end of this topic
and a record in its middle uses at most 1.1 times the memory of a broker that has served the same from a table of the
same records in ten files from one commit. Without a target: the same after a replay of all records, with full caches.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import TopicPartition

from benchmarks.common.measure import percentile
from benchmarks.common.report import Row, row
from benchmarks.kafka.load.client import WAIT_S_MAX, create_consumer
from benchmarks.kafka.load.tasks import Consume
from benchmarks.kafka.loads import run_load
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.servers import lakestream
from benchmarks.table.generated import Shape, build_topic, topic_builder
from benchmarks.table.history import first_record

TOPIC: Final = "aged"
COMMITS: Final = 1_000
COMMIT_FILES: Final = 10
FILE_RECORDS: Final = 10
TIMED_COMMITS: Final = 30
REST_S: Final = 3.0


async def run(bench: Bench) -> list[Row]:
    commits = bench.scaled(COMMITS)
    old = Shape(commits=commits, files=commits * COMMIT_FILES, file_records=FILE_RECORDS)
    young = Shape(commits=1, files=10, file_records=(old.files + TIMED_COMMITS * COMMIT_FILES) * FILE_RECORDS // 10)
    aged, fresh = bench.stage.new_folder(), bench.stage.new_folder()
    took_ms = sorted(await _commit_times_ms(aged, old))
    await build_topic(fresh, TOPIC, young)
    return [_commit_row(took_ms, old), *await _memory_rows(aged, fresh, young)]


async def _commit_times_ms(folder: Path, shape: Shape) -> list[float]:
    """Returns the milliseconds of the commits after those of the shape."""
    took_ms: list[float] = []
    async with topic_builder(folder, TOPIC, shape) as builder:
        await builder.write_all()
        for _ in range(TIMED_COMMITS):
            files, ranges = await builder.files(COMMIT_FILES)
            start_s = time.perf_counter()
            await builder.commit(files, ranges)
            took_ms.append(1e3 * (time.perf_counter() - start_s))
    return took_ms


def _commit_row(took_ms: Sequence[float], shape: Shape) -> Row:
    return row(
        "age",
        f"commit to a table of {shape.files:,} files and {shape.commits:,} earlier commits",
        statistics.median(took_ms),
        "ms",
        at_most=300,
        note=f"p90 {percentile(took_ms, 0.9):.0f}, at most {took_ms[-1]:.0f} ms of {len(took_ms)}",
    )


class Resident(NamedTuple):
    """Resident memory of a broker in bytes."""

    after_read: int
    replayed: int


async def _memory_rows(aged: Path, fresh: Path, shape: Shape) -> list[Row]:
    old, young = await _resident(aged, shape), await _resident(fresh, shape)

    def memory_row(what: str, ours: int, theirs: int, at_most: float | None) -> Row:
        peer_is = "10 files, 1 commit"
        ratio = ours / theirs
        return row("age", what, ours / 1e6, "MB", peer=theirs / 1e6, peer_is=peer_is, ratio=ratio, at_most=at_most)

    return [
        memory_row("broker memory after a read in the middle of the topic", old.after_read, young.after_read, 1.1),
        memory_row("broker memory after a replay of the topic", old.replayed, young.replayed, None),
    ]


async def _resident(folder: Path, shape: Shape) -> Resident:
    server = lakestream(folder)
    try:
        await server.start()
        await asyncio.to_thread(_read_middle, server.bootstrap, shape.offset_end // 2)
        await asyncio.sleep(REST_S)
        after_read = server.resident_bytes()
        task = Consume(bootstrap=server.bootstrap, topic=TOPIC, partitions=1, records=shape.offset_end)
        await run_load(server, task, amount=shape.size)
        await asyncio.sleep(REST_S)
        return Resident(after_read, server.resident_bytes())
    finally:
        server.kill()


def _read_middle(bootstrap: str, offset: int) -> None:
    reader = create_consumer(bootstrap)
    reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=WAIT_S_MAX)
    first_record(reader, TOPIC, offset)
