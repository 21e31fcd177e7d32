"""Transactions of one record to each of two partitions, by one producer and by twenty.

Target: at least half as many per second as Apache Kafka, which responds before records are on a disk.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Transact
from benchmarks.kafka.loads import LoadRun, run_load
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

PARTITIONS = 2
TRANSACTIONS = {1: 800, 20: 4_000}
"""Numbers of transactions by number of producers."""


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.new_folder()) as sides:
        for producers in TRANSACTIONS:
            rows += await _rows_of(bench, sides, producers)
    return rows


async def _rows_of(bench: Bench, sides: list[Server], producers: int) -> list[Row]:
    count, numbers = bench.scaled(TRANSACTIONS[producers]), itertools.count()

    async def work(server: Server) -> LoadRun:
        topic = f"transactions-{producers}-{next(numbers)}"
        await server.create_topics([topic], PARTITIONS)
        task = Transact(
            bootstrap=server.bootstrap,
            topic=topic,
            partitions=PARTITIONS,
            prefix=topic,
            producers=producers,
            transactions=count,
        )
        run = await run_load(server, task, amount=count)
        await server.delete_topic(topic)
        return run

    results = await rounds(bench, sides, work)
    what = f"transactions, {producers} producer{'s' if producers > 1 else ''}"
    return [
        results.row("transactions", what, lambda run: run.per_s, "/s", at_least=0.5),
        results.row("transactions", f"{what}, begin to commit", lambda run: run.results[0].p99_ms, "ms p99"),
        results.row(
            "transactions", f"{what}, server CPU per transaction", lambda run: 1000 * run.cost.cpu_s / run.amount, "ms"
        ),
    ]
