"""Cost of an idle server with 1,000 topics of one record and 1,000 connections, and its start-up time.

Target: below 400 MB resident, and ready in less than 2 s, without topics and with 1,000.
"""

import asyncio
from dataclasses import dataclass

from benchmarks.common.measure import Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Connect, Touch
from benchmarks.kafka.loads import generator, run_load
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import KAFKA, LAKESTREAM, Server, servers

TOPICS = 1_000
CONNECTIONS = 1_000
PREFIX = "idle-"
WATCHED_S = 5.0


@dataclass(frozen=True, slots=True)
class IdleRun(Run):
    """Start of a server, and a measurement of some idle seconds."""

    start_s: float
    resident: int


async def run(bench: Bench) -> list[Row]:
    topics = bench.scaled(TOPICS)

    async def empty(server: Server) -> IdleRun:
        return await _measure(server, 0, 0)

    async def full(server: Server) -> IdleRun:
        return await _measure(server, topics, CONNECTIONS)

    async with servers(bench.of(LAKESTREAM, KAFKA), bench.stage.new_folder()) as sides:
        without_topics = await rounds(bench, sides, empty, warm_ups=0)
        for server in sides:
            for first in range(0, topics, 100):
                names = [f"{PREFIX}{number}" for number in range(first, min(first + 100, topics))]
                await server.create_topics(names, partitions=1)
        with_topics = await rounds(bench, sides, full, warm_ups=0)
    stored = f"{topics:,} topics"
    what = f"{stored} and {CONNECTIONS:,} connections, idle"
    note = f"{without_topics.median(LAKESTREAM, _megabytes):.0f} MB without topics and connections"
    return [
        with_topics.row("idle", what, _megabytes, "MB", at_most=400, absolute=True, note=note),
        with_topics.row(
            "idle", "server CPU while idle", lambda run: 100 * run.cost.cpu_s / run.cost.seconds, "% of a core"
        ),
        without_topics.row("idle", "start to ready, nothing stored", _start_s, "s", at_most=2.0, absolute=True),
        with_topics.row("idle", f"start to ready, {stored}", _start_s, "s", at_most=2.0, absolute=True),
    ]


async def _measure(server: Server, topics: int, connections: int) -> IdleRun:
    server.stop()
    start_s = await server.start()
    if topics:
        await run_load(server, Touch(bootstrap=server.bootstrap, prefix=PREFIX, topics=topics), amount=topics)
    async with generator(Connect(port=server.port, connections=connections)) as connections_open:
        connections_open.go()
        await connections_open.result()
        await asyncio.sleep(1.0)
        with measured(server.pid) as cost:
            await asyncio.sleep(WATCHED_S)
        return IdleRun(connections, cost, start_s, server.resident_bytes())


def _megabytes(run: IdleRun) -> float:
    return run.resident / 1e6


def _start_s(run: IdleRun) -> float:
    return run.start_s
