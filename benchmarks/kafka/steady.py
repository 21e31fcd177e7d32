"""A steady 5,000 records of 1 KiB a second over 8 partitions, linger 5 ms, one producer and one consumer.

Asked, beside an Apache Kafka that syncs every write, as we do: ack and end-to-end p99 not above its own, with at most
half its server CPU.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Stamp, Watch
from benchmarks.kafka.loads import Loaded, cores, loaded
from benchmarks.kafka.rounds import Bench, prepare, rounds
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers
from lakestream.model import MiB

PARTITIONS = 8
PER_S = 5_000
SECONDS = 24


async def run(bench: Bench) -> list[Row]:
    count, numbers = PER_S * bench.scaled(SECONDS), itertools.count()

    async def work(server: Server) -> Loaded:
        topic = f"steady-{next(numbers)}"
        await server.make_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, 256 * MiB)
        watch = Watch(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, skip=count // 8)
        stamp = Stamp(
            bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, skip=count // 8, per_s=PER_S
        )
        found = await loaded(server, watch, stamp, amount=count)
        await server.delete_topic(topic)
        return found

    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.fresh()) as sides:
        found = await rounds(bench, sides, work)
    what = f"{PER_S:,} records/s"
    name, against = "steady", KAFKA_SYNCED
    return [
        found.row(name, f"{what}, ack", lambda run: run.told[1].p50_ms, "ms p50", against=against),
        found.row(name, f"{what}, ack", lambda run: run.told[1].p99_ms, "ms p99", against=against, at_most=1.0),
        found.row(name, f"{what}, end to end", lambda run: run.told[0].p50_ms, "ms p50", against=against),
        found.row(name, f"{what}, end to end", lambda run: run.told[0].p99_ms, "ms p99", against=against, at_most=1.0),
        found.row(name, f"{what}, server CPU", cores, "cores", against=against, at_most=0.5),
    ]
