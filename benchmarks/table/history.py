"""Reads of Kafka consumers from the table, without a peer: a replay from the beginning, and a single seek.

- **replay**: 1 GB of 8 partitions to one consumer, with nothing cached. Target: 100 MB per second of the broker's CPU.
- **seek**: one record in the middle of 10 GB in 1,000 files of one partition. The files are not in the page cache, and
  the broker has cached nothing of the topic: it was just started, or has served the history of another topic. Target
  for both: at most 500 ms, from the request of a connected client.
"""

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.common.measure import evict, run_alone
from benchmarks.common.report import Row, row
from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed, checked, create_consumer
from benchmarks.kafka.load.tasks import Consume
from benchmarks.kafka.loads import LoadRun, run_load
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.servers import Server, lakestream
from benchmarks.table.generated import Shape, build_topic

REPLAYED, WARM, LARGE = "replayed", "warm", "large"
SEEKS: Final = 5


async def run(bench: Bench) -> list[Row]:
    folder = bench.stage.new_folder()
    files = bench.scaled(8)
    replayed = Shape(commits=files, files=files, file_records=16_384, partitions=8)
    large = Shape(commits=100, files=bench.scaled(1_000), file_records=10_240)
    await build_topic(folder, WARM, Shape(commits=1, files=1, file_records=1_024))
    await build_topic(folder, REPLAYED, replayed)
    rows = await _replay(bench, folder, replayed)
    await build_topic(folder, LARGE, large)
    return [*rows, *await _seek(folder, large)]


async def _replay(bench: Bench, folder: Path, shape: Shape) -> list[Row]:
    count = shape.partitions * shape.offset_end

    async with _broker(folder) as server:
        task = Consume(bootstrap=server.bootstrap, topic=REPLAYED, partitions=shape.partitions, records=count)

        async def work() -> LoadRun:
            evict(folder)
            server.stop()
            await server.start()
            await asyncio.to_thread(first_record, create_consumer(server.bootstrap), WARM, 0)  # loads the kernels
            return await run_load(server, task, amount=shape.size)

        await work()
        runs, quiet = await run_alone(work, bench.runs)
        resident = server.peak_bytes() / 1e6
    per_core = statistics.median(run.amount / run.cost.cpu_s / 1e6 for run in runs)
    per_s = statistics.median(run.per_s / 1e6 for run in runs)
    what = f"replay of {shape.size / 1e9:.1f} GB from the table"
    note = f"{per_s:.0f} MB/s to one consumer; peak memory {resident:.0f} MB"
    return [row("history", what, per_core, "MB per CPU second", at_least=100, quiet=quiet, note=note)]


async def _seek(folder: Path, shape: Shape) -> list[Row]:
    """Measures seeks after each start of the broker."""
    rows: list[Row] = []
    async with _broker(folder) as server:
        for warm, state in ((True, "has served history"), (False, "was just started")):
            took_ms: list[float] = []
            for _ in range(SEEKS):
                server.stop()
                evict(folder)
                await server.start()
                if warm:
                    await asyncio.to_thread(first_record, create_consumer(server.bootstrap), WARM, 0)
                offset = random.randrange(shape.offset_end // 4, 3 * shape.offset_end // 4)
                connected = await asyncio.to_thread(create_consumer, server.bootstrap)
                took_ms.append(1e3 * await asyncio.to_thread(first_record, connected, LARGE, offset))
            what = f"seek into {shape.size / 1e9:.1f} GB in {shape.files:,} files; the broker {state}"
            note = f"slowest of {SEEKS}: {max(took_ms):.0f} ms"
            rows.append(row("history", what, statistics.median(took_ms), "ms", at_most=500, note=note))
    return rows


def first_record(reader: Consumer, topic: str, offset: int) -> float:
    """Reads the record at the offset; returns the seconds until it arrived."""
    start_s = time.perf_counter()
    reader.assign([TopicPartition(topic, 0, offset)])
    try:
        while (message := reader.poll(1.0)) is None:
            if time.perf_counter() - start_s > WAIT_S_MAX:
                raise LoadFailed(f"no record of {topic} arrived in {WAIT_S_MAX:.0f} s")
        (received,) = checked([message])
        if received.offset() != offset:
            raise LoadFailed(f"topic {topic}: requested offset {offset}, received {received.offset()}")
        return time.perf_counter() - start_s
    finally:
        reader.close()


@asynccontextmanager
async def _broker(folder: Path) -> AsyncIterator[Server]:
    server = lakestream(folder)
    try:
        await server.start()
        yield server
    finally:
        server.kill()
