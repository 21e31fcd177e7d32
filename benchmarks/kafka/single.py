"""Requests of one record: four producers, each with one request in flight.

Target, compared with an Apache Kafka that syncs every write, as Lakestream does: at least its requests per second, with
at most its server CPU per request.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Single
from benchmarks.kafka.loads import LoadRun, run_load
from benchmarks.kafka.rounds import Bench, prepare, rounds
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers
from lakestream.model import MiB

PARTITIONS = 8
PRODUCERS = 4
REQUESTS = 48_000


async def run(bench: Bench) -> list[Row]:
    count, numbers = bench.scaled(REQUESTS), itertools.count()

    async def work(server: Server) -> LoadRun:
        topic = f"single-{next(numbers)}"
        await server.create_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, 256 * MiB)
        task = Single(
            bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, producers=PRODUCERS
        )
        run = await run_load(server, task, amount=count)
        await server.delete_topic(topic)
        return run

    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.new_folder()) as sides:
        results = await rounds(bench, sides, work)
    what, against = f"requests of one record, {PRODUCERS} producers", KAFKA_SYNCED
    return [
        results.row("single", what, lambda run: run.per_s, "/s", against=against, at_least=1.0),
        results.row("single", "server CPU per request of one record", _cpu_us, "µs", against=against, at_most=1.0),
    ]


def _cpu_us(run: LoadRun) -> float:
    return run.cost.cpu_s / run.amount * 1e6
