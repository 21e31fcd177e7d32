"""Consume in bulk: 1 KiB records of 8 partitions, as fast as one consumer takes them.

- **tail**: what was written last, by ten consumers one after the other. It fits into what a broker keeps in memory.
- **following**: one consumer at the end of a log that is being produced in bulk, both together.
- **cold**: a whole log after a restart, none of it in any memory. The server reads another log before, to be warm.

Asked: server CPU per GB, of the tail and cold, not above Apache Kafka's, which hands files to the kernel (sendfile). A
Kafka that syncs reads the same way, so there is only one here.
"""

import itertools

from benchmarks.common.measure import evict
from benchmarks.common.report import Row
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.load.tasks import Consume, Produce
from benchmarks.kafka.loads import Loaded, cpu_s_per_gb, loaded, mb_per_s
from benchmarks.kafka.produce import CODECS, PARTITIONS, RECORDS
from benchmarks.kafka.rounds import Bench, peak_memory, prepare, rounds
from benchmarks.kafka.sides import KAFKA, LAKESTREAM, Server, servers

TAIL = 96_000
"""Records: less than the 128 MiB that Lakestream keeps in memory."""
CONSUMERS = 10
WARM = "warm"
WARM_READERS = 3
"""Of some GB: a fetch is of megabytes, so it takes that much until a JVM has seen many of them."""


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA), bench.stage.fresh()) as sides:
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

    async def work(server: Server) -> Loaded:
        return await loaded(server, _consume(server, topic, count, CONSUMERS), amount=CONSUMERS * count * SIZE)

    found = await rounds(bench, sides, work, warm_ups=2)
    what = f"consume the tail, {codec}"
    note = f"the last {count * SIZE / 1e6:.0f} MB, {CONSUMERS} consumers one after the other"
    return [
        found.row("consume", what, mb_per_s, "MB/s", note=note),
        found.row("consume", f"server CPU of it, tail, {codec}", cpu_s_per_gb, "s/GB", at_most=1.0),
    ]


async def _following(bench: Bench, sides: list[Server], codec: str) -> list[Row]:
    count, numbers = bench.scaled(RECORDS), itertools.count()

    async def work(server: Server) -> Loaded:
        topic = f"following-{codec}-{next(numbers)}"
        await server.make_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, count * SIZE)
        tasks = _produce(server, topic, count, codec), _consume(server, topic, count)
        found = await loaded(server, *tasks, amount=count * SIZE)
        await server.delete_topic(topic)
        return found

    found = await rounds(bench, sides, work)
    return [
        found.row("consume", f"produce and follow, {codec}", mb_per_s, "MB/s", note="each record counts once"),
        found.row("consume", f"server CPU of both, {codec}", cpu_s_per_gb, "s/GB"),
    ]


async def _cold(bench: Bench, sides: list[Server], codec: str) -> list[Row]:
    count, topic = bench.scaled(RECORDS), f"cold-{codec}"
    for server in sides:
        await _fill(server, topic, count, codec)

    async def work(server: Server) -> Loaded:
        server.stop()
        await server.start()
        await loaded(server, _consume(server, WARM, count, WARM_READERS), amount=WARM_READERS * count * SIZE)
        evict(server.folder)
        return await loaded(server, _consume(server, topic, count), amount=count * SIZE)

    found = await rounds(bench, sides, work, warm_ups=0)  # each starts anew
    return [
        found.row("consume", f"consume a cold log, {codec}", mb_per_s, "MB/s"),
        found.row("consume", f"server CPU of it, cold, {codec}", cpu_s_per_gb, "s/GB", at_most=1.0),
    ]


async def _fill(server: Server, topic: str, count: int, codec: str) -> None:
    await server.make_topics([topic], PARTITIONS)
    await loaded(server, _produce(server, topic, count, codec), amount=count * SIZE)


def _produce(server: Server, topic: str, count: int, codec: str) -> Produce:
    return Produce(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, codec=codec)


def _consume(server: Server, topic: str, count: int, consumers: int = 1) -> Consume:
    return Consume(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, consumers=consumers)
