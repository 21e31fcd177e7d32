"""Does anything get slower or larger with the age of a topic? Its table has 10,000 files from 1,000 commits.

Asked: the next commits, of ten files each, take below 300 ms; and a broker that was asked for the ends of this topic
and for a record in its middle is not larger than one that was asked the same of the same records in ten files from one
commit. Told besides: the same after a replay of it all, when caches are as full as they get.
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
from benchmarks.kafka.load.client import WAIT_S_MAX, consumer
from benchmarks.kafka.load.tasks import Consume
from benchmarks.kafka.loads import loaded
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.sides import lakestream
from benchmarks.table.generated import Shape, make, making
from benchmarks.table.history import first_record

TOPIC: Final = "aged"
COMMITS: Final = 1_000
COMMIT_FILES: Final = 10
FILE_RECORDS: Final = 10
TIMED: Final = 30
REST_S: Final = 3.0


async def run(bench: Bench) -> list[Row]:
    commits = bench.scaled(COMMITS)
    old = Shape(commits=commits, files=commits * COMMIT_FILES, file_records=FILE_RECORDS)
    young = Shape(commits=1, files=10, file_records=(old.files + TIMED * COMMIT_FILES) * FILE_RECORDS // 10)
    aged, fresh = bench.stage.fresh(), bench.stage.fresh()
    took_ms = sorted(await _timed(aged, old))
    await make(fresh, TOPIC, young)
    return [_commit_row(took_ms, old), *await _memory_rows(aged, fresh, young)]


async def _timed(folder: Path, shape: Shape) -> list[float]:
    """Milliseconds of the commits behind all those of the shape."""
    took_ms: list[float] = []
    async with making(folder, TOPIC, shape) as made:
        await made.all()
        for _ in range(TIMED):
            files, ranges = await made.files(COMMIT_FILES)
            start_s = time.perf_counter()
            await made.commit(files, ranges)
            took_ms.append(1e3 * (time.perf_counter() - start_s))
    return took_ms


def _commit_row(took_ms: Sequence[float], shape: Shape) -> Row:
    return row(
        "age",
        f"commit with {shape.files:,} files and {shape.commits:,} commits behind it",
        statistics.median(took_ms),
        "ms",
        at_most=300,
        note=f"p90 {percentile(took_ms, 0.9):.0f}, at most {took_ms[-1]:.0f} ms of {len(took_ms)}",
    )


class Resident(NamedTuple):
    """Bytes of a broker."""

    asked: int
    replayed: int


async def _memory_rows(aged: Path, fresh: Path, shape: Shape) -> list[Row]:
    old, young = await _resident(aged, shape), await _resident(fresh, shape)

    def memory(what: str, ours: int, theirs: int, at_most: float | None) -> Row:
        peer_is = "10 files, 1 commit"
        ratio = ours / theirs
        return row("age", what, ours / 1e6, "MB", peer=theirs / 1e6, peer_is=peer_is, ratio=ratio, at_most=at_most)

    return [
        memory("broker memory after a read in the middle of it", old.asked, young.asked, 1.1),
        memory("broker memory after a replay of it", old.replayed, young.replayed, None),
    ]


async def _resident(folder: Path, shape: Shape) -> Resident:
    server = lakestream(folder)
    try:
        await server.start()
        await asyncio.to_thread(_ask, server.bootstrap, shape.offset_end // 2)
        await asyncio.sleep(REST_S)
        asked = server.resident_bytes()
        task = Consume(bootstrap=server.bootstrap, topic=TOPIC, partitions=1, records=shape.offset_end)
        await loaded(server, task, amount=shape.size)
        await asyncio.sleep(REST_S)
        return Resident(asked, server.resident_bytes())
    finally:
        server.kill()


def _ask(bootstrap: str, offset: int) -> None:
    reader = consumer(bootstrap)
    reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=WAIT_S_MAX)
    first_record(reader, TOPIC, offset)
