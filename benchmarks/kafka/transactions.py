"""Transactions of one record to each of two partitions, by one producer and by twenty.

Asked: at least half as many a second as Apache Kafka, which answers before anything is on a disk.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Transact
from benchmarks.kafka.loads import Loaded, loaded
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

PARTITIONS = 2
TRANSACTIONS = {1: 800, 20: 4_000}
"""By how many producers."""


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.fresh()) as sides:
        for producers in TRANSACTIONS:
            rows += await _by(bench, sides, producers)
    return rows


async def _by(bench: Bench, sides: list[Server], producers: int) -> list[Row]:
    count, numbers = bench.scaled(TRANSACTIONS[producers]), itertools.count()

    async def work(server: Server) -> Loaded:
        topic = f"transactions-{producers}-{next(numbers)}"
        await server.make_topics([topic], PARTITIONS)
        task = Transact(
            bootstrap=server.bootstrap,
            topic=topic,
            partitions=PARTITIONS,
            prefix=topic,
            producers=producers,
            transactions=count,
        )
        found = await loaded(server, task, amount=count)
        await server.delete_topic(topic)
        return found

    found = await rounds(bench, sides, work)
    what = f"transactions, {producers} producer{'s' if producers > 1 else ''}"
    return [
        found.row("transactions", what, lambda run: run.per_s, "/s", at_least=0.5),
        found.row("transactions", f"{what}, begin to committed", lambda run: run.told[0].p99_ms, "ms p99"),
        found.row("transactions", "server CPU of each", lambda run: 1000 * run.cost.cpu_s / run.amount, "ms"),
    ]
