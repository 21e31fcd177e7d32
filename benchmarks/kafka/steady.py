"""A steady load of 5,000 records of 1 KiB per second over 8 partitions, linger 5 ms, one producer and one consumer.

Target, compared with an Apache Kafka that syncs every write, as Lakestream does: ack and end-to-end p99 at most
its own, with at most half its server CPU.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Stamp, Watch
from benchmarks.kafka.loads import LoadRun, cores, run_load
from benchmarks.kafka.rounds import Bench, prepare, rounds
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers
from lakestream.model import MiB

PARTITIONS = 8
PER_S = 5_000
SECONDS = 24


async def run(bench: Bench) -> list[Row]:
    count, numbers = PER_S * bench.scaled(SECONDS), itertools.count()

    async def work(server: Server) -> LoadRun:
        topic = f"steady-{next(numbers)}"
        await server.create_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, 256 * MiB)
        watch = Watch(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, skip=count // 8)
        stamp = Stamp(
            bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, skip=count // 8, per_s=PER_S
        )
        run = await run_load(server, watch, stamp, amount=count)
        await server.delete_topic(topic)
        return run

    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.new_folder()) as sides:
        results = await rounds(bench, sides, work)
    what = f"{PER_S:,} records/s"
    name, against = "steady", KAFKA_SYNCED
    return [
        results.row(name, f"{what}, ack", lambda run: run.results[1].p50_ms, "ms p50", against=against),
        results.row(name, f"{what}, ack", lambda run: run.results[1].p99_ms, "ms p99", against=against, at_most=1.0),
        results.row(name, f"{what}, end to end", lambda run: run.results[0].p50_ms, "ms p50", against=against),
        results.row(
            name, f"{what}, end to end", lambda run: run.results[0].p99_ms, "ms p99", against=against, at_most=1.0
        ),
        results.row(name, f"{what}, server CPU", cores, "cores", against=against, at_most=0.5),
    ]
