"""Offset commits of 32 groups, each with one request in flight, of one partition and of ten.

Target: 5,000 offsets per second and core of the server.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Commit
from benchmarks.kafka.loads import LoadRun, run_load
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

GROUPS = 32
FEW, MANY = 1, 10
REQUESTS = 24_000
PER_S_AND_CORE = 5_000


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.new_folder()) as sides:
        for partitions in (FEW, MANY):
            rows += await _rows_of(bench, sides, partitions)
    return rows


async def _rows_of(bench: Bench, sides: list[Server], partitions: int) -> list[Row]:
    count, numbers = bench.scaled(REQUESTS), itertools.count()

    async def work(server: Server) -> LoadRun:
        topic = f"commits-{partitions}-{next(numbers)}"
        await server.create_topics([topic], partitions)
        task = Commit(
            bootstrap=server.bootstrap,
            topic=topic,
            partitions=partitions,
            prefix=topic,
            groups=GROUPS,
            commits=count,
        )
        run = await run_load(server, task, amount=count * partitions)
        await server.delete_topic(topic)
        return run

    results = await rounds(bench, sides, work)
    what = f"offsets committed, {partitions} in a request, {GROUPS} groups"
    return [
        results.row("commits", what, lambda run: run.per_s, "/s"),
        results.row("commits", "latency of the commit request", lambda run: run.results[0].p99_ms, "ms p99"),
        results.row(
            "commits",
            "offsets committed per second and core of the server",
            lambda run: run.amount / run.cost.cpu_s,
            "offsets",
            at_least=PER_S_AND_CORE,
            absolute=True,
        ),
    ]
