"""Time of a rebalance of 50 members, from the first JoinGroup request to the last assignment.

The heartbeats by which clients detect it are not included, because clients choose their interval. Target: not longer
than with Apache Kafka.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Rebalance
from benchmarks.kafka.loads import LoadRun, run_load
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

MEMBERS = 50
PARTITIONS = 50
ROUNDS = 80


async def run(bench: Bench) -> list[Row]:
    count, numbers = bench.scaled(ROUNDS), itertools.count()

    async def work(server: Server) -> LoadRun:
        topic = f"rebalance-{next(numbers)}"
        await server.create_topics([topic], PARTITIONS)
        task = Rebalance(bootstrap=server.bootstrap, topic=topic, group=topic, members=MEMBERS, rounds=count)
        run = await run_load(server, task, amount=count)
        await server.delete_topic(topic)
        return run

    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.new_folder()) as sides:
        results = await rounds(bench, sides, work)
    what = f"rebalance of {MEMBERS} members"
    return [
        results.row("rebalance", what, lambda run: run.results[0].p50_ms, "ms p50", at_most=1.0),
        results.row("rebalance", what, lambda run: run.results[0].p99_ms, "ms p99"),
        results.row("rebalance", "server CPU of a rebalance", lambda run: 1000 * run.cost.cpu_s / run.amount, "ms"),
    ]
