"""Offsets that groups commit: 32 groups, each with one request in flight, of one partition and of ten.

Asked: 5,000 offsets a second and core of the server.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Commit
from benchmarks.kafka.loads import Loaded, loaded
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

GROUPS = 32
FEW, MANY = 1, 10
REQUESTS = 24_000
PER_S_AND_CORE = 5_000


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.fresh()) as sides:
        for partitions in (FEW, MANY):
            rows += await _of(bench, sides, partitions)
    return rows


async def _of(bench: Bench, sides: list[Server], partitions: int) -> list[Row]:
    count, numbers = bench.scaled(REQUESTS), itertools.count()

    async def work(server: Server) -> Loaded:
        topic = f"commits-{partitions}-{next(numbers)}"
        await server.make_topics([topic], partitions)
        task = Commit(
            bootstrap=server.bootstrap,
            topic=topic,
            partitions=partitions,
            prefix=topic,
            groups=GROUPS,
            commits=count,
        )
        found = await loaded(server, task, amount=count * partitions)
        await server.delete_topic(topic)
        return found

    found = await rounds(bench, sides, work)
    what = f"offsets committed, {partitions} in a request, {GROUPS} groups"
    return [
        found.row("commits", what, lambda run: run.per_s, "/s"),
        found.row("commits", "request of it", lambda run: run.told[0].p99_ms, "ms p99"),
        found.row(
            "commits",
            "a second and core of the server",
            lambda run: run.amount / run.cost.cpu_s,
            "offsets",
            at_least=PER_S_AND_CORE,
            in_itself=True,
        ),
    ]
