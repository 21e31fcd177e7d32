"""How long the 50 members of a group take to join again, from the first that asks to the last that knows its share.

Without the heartbeats by which clients hear of it, which are theirs. Asked: not longer than with Apache Kafka.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Rebalance
from benchmarks.kafka.loads import Loaded, loaded
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

MEMBERS = 50
PARTITIONS = 50
ROUNDS = 80


async def run(bench: Bench) -> list[Row]:
    count, numbers = bench.scaled(ROUNDS), itertools.count()

    async def work(server: Server) -> Loaded:
        topic = f"rebalance-{next(numbers)}"
        await server.make_topics([topic], PARTITIONS)
        task = Rebalance(bootstrap=server.bootstrap, topic=topic, group=topic, members=MEMBERS, rounds=count)
        found = await loaded(server, task, amount=count)
        await server.delete_topic(topic)
        return found

    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.fresh()) as sides:
        found = await rounds(bench, sides, work)
    what = f"rebalance of {MEMBERS} members"
    return [
        found.row("rebalance", what, lambda run: run.told[0].p50_ms, "ms p50", at_most=1.0),
        found.row("rebalance", what, lambda run: run.told[0].p99_ms, "ms p99"),
        found.row("rebalance", "server CPU of it", lambda run: 1000 * run.cost.cpu_s / run.amount, "ms"),
    ]
