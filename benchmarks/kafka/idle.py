"""What a server takes while nobody wants anything: 1,000 topics with a record each, 1,000 connections; and how soon it
is there after a start.

Asked: below 400 MB resident, and ready in under 2 s, both with nothing stored and with the 1,000 topics.
"""

import asyncio
from dataclasses import dataclass

from benchmarks.common.measure import Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.load.tasks import Connect, Touch
from benchmarks.kafka.loads import generator, loaded
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import KAFKA, LAKESTREAM, Server, servers

TOPICS = 1_000
CONNECTIONS = 1_000
PREFIX = "idle-"
WATCHED_S = 5.0


@dataclass(frozen=True, slots=True)
class Rest(Run):
    """One life of a server. The run is a look at it for some seconds at the end."""

    start_s: float
    resident: int


async def run(bench: Bench) -> list[Row]:
    topics = bench.scaled(TOPICS)

    async def empty(server: Server) -> Rest:
        return await _rest(server, 0, 0)

    async def full(server: Server) -> Rest:
        return await _rest(server, topics, CONNECTIONS)

    async with servers(bench.of(LAKESTREAM, KAFKA), bench.stage.fresh()) as sides:
        at_first = await rounds(bench, sides, empty, warm_ups=0)
        for server in sides:
            for first in range(0, topics, 100):
                names = [f"{PREFIX}{number}" for number in range(first, min(first + 100, topics))]
                await server.make_topics(names, partitions=1)
        later = await rounds(bench, sides, full, warm_ups=0)
    there = f"{topics:,} topics"
    both = f"{there} and {CONNECTIONS:,} connections, idle"
    nothing = f"{at_first.median(LAKESTREAM, _megabytes):.0f} MB with nothing"
    return [
        later.row("idle", both, _megabytes, "MB", at_most=400, in_itself=True, note=nothing),
        later.row("idle", "server CPU of it", lambda rest: 100 * rest.cost.cpu_s / rest.cost.seconds, "% of a core"),
        at_first.row("idle", "start to ready, nothing stored", _start_s, "s", at_most=2.0, in_itself=True),
        later.row("idle", f"start to ready, {there}", _start_s, "s", at_most=2.0, in_itself=True),
    ]


async def _rest(server: Server, topics: int, connections: int) -> Rest:
    server.stop()
    start_s = await server.start()
    if topics:
        await loaded(server, Touch(bootstrap=server.bootstrap, prefix=PREFIX, topics=topics), amount=topics)
    async with generator(Connect(port=server.port, connections=connections)) as held:
        held.go()
        await held.told()
        await asyncio.sleep(1.0)
        with measured(server.pid) as cost:
            await asyncio.sleep(WATCHED_S)
        return Rest(connections, cost, start_s, server.resident_bytes())


def _megabytes(rest: Rest) -> float:
    return rest.resident / 1e6


def _start_s(rest: Rest) -> float:
    return rest.start_s
