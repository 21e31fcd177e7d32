"""What Kafka consumers read out of the table: a replay from the beginning, and a single seek. There is no peer.

- **replay**: 1 GB of 8 partitions to one consumer, none of it in any memory. Asked: 100 MB for each second of CPU that
  the broker takes.
- **seek**: one record in the middle of 10 GB in 1,000 files of one partition. The files are not in the page cache, and
  the broker knows nothing of the topic: it was just started, or has served another topic's history before. Asked of
  both: below 500 ms, from the request of a client that is connected.
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

from benchmarks.common.measure import alone, evict
from benchmarks.common.report import Row, row
from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed, checked, consumer
from benchmarks.kafka.load.tasks import Consume
from benchmarks.kafka.loads import Loaded, loaded
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.sides import Server, lakestream
from benchmarks.table.generated import Shape, make

REPLAYED, WARM, LARGE = "replayed", "warm", "large"
SEEKS: Final = 5


async def run(bench: Bench) -> list[Row]:
    folder = bench.stage.fresh()
    files = bench.scaled(8)
    replayed = Shape(commits=files, files=files, file_records=16_384, partitions=8)
    large = Shape(commits=100, files=bench.scaled(1_000), file_records=10_240)
    await make(folder, WARM, Shape(commits=1, files=1, file_records=1_024))
    await make(folder, REPLAYED, replayed)
    rows = await _replay(bench, folder, replayed)
    await make(folder, LARGE, large)
    return [*rows, *await _seek(folder, large)]


async def _replay(bench: Bench, folder: Path, shape: Shape) -> list[Row]:
    count = shape.partitions * shape.offset_end

    async with _broker(folder) as server:
        task = Consume(bootstrap=server.bootstrap, topic=REPLAYED, partitions=shape.partitions, records=count)

        async def work() -> Loaded:
            evict(folder)
            server.stop()
            await server.start()
            await asyncio.to_thread(first_record, consumer(server.bootstrap), WARM, 0)  # kernels are loaded
            return await loaded(server, task, amount=shape.size)

        await work()
        runs, quiet = await alone(work, bench.runs)
        resident = server.peak_bytes() / 1e6
    per_core = statistics.median(run.amount / run.cost.cpu_s / 1e6 for run in runs)
    per_s = statistics.median(run.per_s / 1e6 for run in runs)
    what = f"replay of {shape.size / 1e9:.1f} GB out of the table"
    note = f"{per_s:.0f} MB/s to one consumer; at most {resident:.0f} MB resident"
    return [row("history", what, per_core, "MB per CPU second", at_least=100, quiet=quiet, note=note)]


async def _seek(folder: Path, shape: Shape) -> list[Row]:
    """Each time by a broker that was just started."""
    rows: list[Row] = []
    async with _broker(folder) as server:
        for warm, state in ((True, "has served history before"), (False, "was just started")):
            took_ms: list[float] = []
            for _ in range(SEEKS):
                server.stop()
                evict(folder)
                await server.start()
                if warm:
                    await asyncio.to_thread(first_record, consumer(server.bootstrap), WARM, 0)
                offset = random.randrange(shape.offset_end // 4, 3 * shape.offset_end // 4)
                connected = await asyncio.to_thread(consumer, server.bootstrap)
                took_ms.append(1e3 * await asyncio.to_thread(first_record, connected, LARGE, offset))
            what = f"seek into {shape.size / 1e9:.1f} GB in {shape.files:,} files; the broker {state}"
            note = f"slowest of {SEEKS}: {max(took_ms):.0f} ms"
            rows.append(row("history", what, statistics.median(took_ms), "ms", at_most=500, note=note))
    return rows


def first_record(reader: Consumer, topic: str, offset: int) -> float:
    """Seconds until the record at the offset is there."""
    start_s = time.perf_counter()
    reader.assign([TopicPartition(topic, 0, offset)])
    try:
        while (message := reader.poll(1.0)) is None:
            if time.perf_counter() - start_s > WAIT_S_MAX:
                raise LoadFailed(f"no record of {topic} came in {WAIT_S_MAX:.0f} s")
        (found,) = checked([message])
        if found.offset() != offset:
            raise LoadFailed(f"asked for offset {offset} of {topic}, got {found.offset()}")
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
