"""Requests of one record: four producers, each with one request in flight.

Asked, beside an Apache Kafka that syncs every write, as we do: at least its requests a second, at less server CPU each.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Single
from benchmarks.kafka.loads import Loaded, loaded
from benchmarks.kafka.rounds import Bench, prepare, rounds
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers
from lakestream.model import MiB

PARTITIONS = 8
PRODUCERS = 4
REQUESTS = 48_000


async def run(bench: Bench) -> list[Row]:
    count, numbers = bench.scaled(REQUESTS), itertools.count()

    async def work(server: Server) -> Loaded:
        topic = f"single-{next(numbers)}"
        await server.make_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, 256 * MiB)
        task = Single(
            bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, producers=PRODUCERS
        )
        found = await loaded(server, task, amount=count)
        await server.delete_topic(topic)
        return found

    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.fresh()) as sides:
        found = await rounds(bench, sides, work)
    what, against = f"requests of one record, {PRODUCERS} producers", KAFKA_SYNCED
    return [
        found.row("single", what, lambda run: run.per_s, "/s", against=against, at_least=1.0),
        found.row("single", "server CPU of each", _cpu_us, "µs", against=against, at_most=1.0),
    ]


def _cpu_us(run: Loaded) -> float:
    return run.cost.cpu_s / run.amount * 1e6
