"""Consume in bulk: 1 KiB records of 8 partitions, as fast as one consumer reads them.

- **tail**: the newest records, which fit into a broker's memory, read by ten consumers one after the other.
- **following**: one consumer at the end of a log, while a producer writes to it in bulk.
- **cold**: a whole log after a restart, with nothing cached. The server serves another log first, to warm up.

Target: server CPU per GB of tail and cold reads at most that of Apache Kafka, which uses sendfile. A Kafka that syncs
its writes reads in the same way, so only one Kafka is measured.
"""

import itertools

from benchmarks.common.measure import evict
from benchmarks.common.report import Row
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.load.tasks import Consume, Produce
from benchmarks.kafka.loads import LoadRun, cpu_s_per_gb, mb_per_s, run_load
from benchmarks.kafka.produce import CODECS, PARTITIONS, RECORDS
from benchmarks.kafka.rounds import Bench, peak_memory, prepare, rounds
from benchmarks.kafka.servers import KAFKA, LAKESTREAM, Server, servers

TAIL = 96_000
"""Records: less than the 128 MiB cache of Lakestream."""
CONSUMERS = 10
WARM = "warm"
WARM_READERS = 3
"""Reads of some GB: a fetch returns megabytes, so a JVM needs that many bytes to compile its frequent code."""


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA), bench.stage.new_folder()) as sides:
        for codec in CODECS:
            rows += await _tail(bench, sides, codec)
        for codec in CODECS:
            rows += await _following(bench, sides, codec)
        rows.append(peak_memory("consume", "peak memory while producing and consuming", sides))
        for server in sides:
            await _fill(server, WARM, bench.scaled(RECORDS), "none")
        for codec in CODECS:
            rows += await _cold(bench, sides, codec)
    return rows


async def _tail(bench: Bench, sides: list[Server], codec: str) -> list[Row]:
    count, topic = bench.scaled(TAIL), f"tail-{codec}"
    for server in sides:
        await _fill(server, topic, count, codec)

    async def work(server: Server) -> LoadRun:
        return await run_load(server, _consume(server, topic, count, CONSUMERS), amount=CONSUMERS * count * SIZE)

    results = await rounds(bench, sides, work, warm_ups=2)
    what = f"consume the tail, {codec}"
    note = f"the last {count * SIZE / 1e6:.0f} MB, {CONSUMERS} consumers one after the other"
    return [
        results.row("consume", what, mb_per_s, "MB/s", note=note),
        results.row("consume", f"server CPU of tail consume, {codec}", cpu_s_per_gb, "s/GB", at_most=1.0),
    ]


async def _following(bench: Bench, sides: list[Server], codec: str) -> list[Row]:
    count, numbers = bench.scaled(RECORDS), itertools.count()

    async def work(server: Server) -> LoadRun:
        topic = f"following-{codec}-{next(numbers)}"
        await server.create_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, count * SIZE)
        tasks = _produce(server, topic, count, codec), _consume(server, topic, count)
        run = await run_load(server, *tasks, amount=count * SIZE)
        await server.delete_topic(topic)
        return run

    results = await rounds(bench, sides, work)
    return [
        results.row("consume", f"produce and follow, {codec}", mb_per_s, "MB/s", note="each record counts once"),
        results.row("consume", f"server CPU of produce and follow, {codec}", cpu_s_per_gb, "s/GB"),
    ]


async def _cold(bench: Bench, sides: list[Server], codec: str) -> list[Row]:
    count, topic = bench.scaled(RECORDS), f"cold-{codec}"
    for server in sides:
        await _fill(server, topic, count, codec)

    async def work(server: Server) -> LoadRun:
        server.stop()
        await server.start()
        await run_load(server, _consume(server, WARM, count, WARM_READERS), amount=WARM_READERS * count * SIZE)
        evict(server.folder)
        return await run_load(server, _consume(server, topic, count), amount=count * SIZE)

    results = await rounds(bench, sides, work, warm_ups=0)  # each starts from the beginning
    return [
        results.row("consume", f"consume a cold log, {codec}", mb_per_s, "MB/s"),
        results.row("consume", f"server CPU of cold consume, {codec}", cpu_s_per_gb, "s/GB", at_most=1.0),
    ]


async def _fill(server: Server, topic: str, count: int, codec: str) -> None:
    await server.create_topics([topic], PARTITIONS)
    await run_load(server, _produce(server, topic, count, codec), amount=count * SIZE)


def _produce(server: Server, topic: str, count: int, codec: str) -> Produce:
    return Produce(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, codec=codec)


def _consume(server: Server, topic: str, count: int, consumers: int = 1) -> Consume:
    return Consume(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, consumers=consumers)
