"""Time without a coordinator after SIGKILL of one of three brokers.

For a group it ends when an offset commit succeeds, for transactions when InitProducerId succeeds. All brokers have
their default settings. Most of the time is that of failure detection: Kafka's controllers wait for nine seconds,
sessions of Lakestream's brokers expire after three. Target: not longer than with Apache Kafka.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.common.measure import Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.load.raw_requests import FIND_COORDINATOR, RawConnection
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import KAFKA, LAKESTREAM, TRIO_PATIENCE, Server, Trio, trios

COMMIT, INIT = 8, 22
GROUP, TRANSACTION = 0, 1
TOPIC: Final = "failover"
REQUEST_S_MAX: Final = 1.0
PAUSE_S: Final = 0.02
SERVED_S_MAX: Final = 120.0
REPLICATION_S: Final = 3.0
"""Pause in which replicas catch up, before the next broker is killed."""

Done = Callable[[RawConnection, str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Failover(Run):
    group_s: float
    transaction_s: float


async def run(bench: Bench) -> list[Row]:
    numbers = itertools.count()

    async def work(trio: Trio) -> Failover:
        name = f"failover-{next(numbers)}"
        with measured() as cost:
            group_s = await _fail_over(trio, name, GROUP, _committed)
            transaction_s = await _fail_over(trio, name, TRANSACTION, _initialized)
        return Failover(2, cost, group_s, transaction_s)

    async with trios(bench.of(LAKESTREAM, KAFKA), bench.stage.new_folder()) as sides:
        for trio in sides:
            await trio.members[0].create_topics([TOPIC], 1)
        results = await rounds(bench, sides, work, warm_ups=0)
    what = "{}: time from the kill of the coordinator until another serves"
    return [
        results.row("failover", what.format("group"), lambda run: run.group_s, "s", at_most=1.0),
        results.row("failover", what.format("transactions"), lambda run: run.transaction_s, "s", at_most=1.0),
    ]


async def _fail_over(trio: Trio, name: str, kind: int, done: Done) -> float:
    await _wait_until_served(trio.members[0], trio, name, kind, done)
    victim = await _coordinator(trio.members[0], trio, name, kind)
    assert victim is not None
    victim.kill()
    start_s = time.perf_counter()
    await _wait_until_served(trio.alive(victim)[0], trio, name, kind, done)
    took_s = time.perf_counter() - start_s
    await victim.start(TRIO_PATIENCE)
    await asyncio.sleep(REPLICATION_S)
    return took_s


async def _wait_until_served(server: Server, trio: Trio, name: str, kind: int, done: Done) -> None:
    """Finds the coordinator and sends it the request, and repeats both until the request succeeds, as a client does."""
    async with asyncio.timeout(SERVED_S_MAX):
        while True:
            coordinator = await _coordinator(server, trio, name, kind)
            if coordinator is not None and await _try(coordinator, lambda connection: done(connection, name)):
                return
            await asyncio.sleep(PAUSE_S)


async def _coordinator(server: Server, trio: Trio, name: str, kind: int) -> Server | None:
    response = await _try(
        server, lambda connection: connection.request(FIND_COORDINATOR, 2, {"key": name, "key_type": kind})
    )
    if response is None or response.error_code:
        return None
    return next((member for member in trio.members if member.port == response.port), None)


async def _try(server: Server, request: Callable[[RawConnection], Awaitable[Any]]) -> Any:
    """Returns None if the server did not respond."""
    try:
        async with asyncio.timeout(REQUEST_S_MAX):
            connection = await RawConnection.open(server.bootstrap)
            try:
                return await request(connection)
            finally:
                connection.close()
    except (OSError, EOFError):  # includes time-outs
        return None


async def _committed(connection: RawConnection, name: str) -> bool:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    body = {
        "group_id": name,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [partition]}],
    }
    response = await connection.request(COMMIT, 8, body)
    return bool(response.topics[0].partitions[0].error_code == 0)


async def _initialized(connection: RawConnection, name: str) -> bool:
    response = await connection.request(INIT, 1, {"transactional_id": name, "transaction_timeout": 60_000})
    return bool(response.error_code == 0)
