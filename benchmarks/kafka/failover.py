"""How long nobody coordinates after a coordinator was killed (SIGKILL), of three brokers: of a group, until a commit of
offsets is taken again; of transactions, until a producer may begin again.

All with the settings that they come with. The time is above all how soon a cluster notices: Kafka's controllers wait
for nine seconds, our brokers lose their session after three. Asked: not longer than with Apache Kafka.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.common.measure import Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.load.asking import FIND_COORDINATOR, Asking
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import KAFKA, LAKESTREAM, TRIO_PATIENCE, Server, Trio, trios

COMMIT, INIT = 8, 22
GROUP, TRANSACTION = 0, 1
TOPIC: Final = "failover"
ASK_S_MAX: Final = 1.0
PAUSE_S: Final = 0.02
SERVED_S_MAX: Final = 120.0
SETTLE_S: Final = 3.0
"""For copies to follow, before the next one is killed."""

Done = Callable[[Asking, str], Awaitable[bool]]


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
            transaction_s = await _fail_over(trio, name, TRANSACTION, _begun)
        return Failover(2, cost, group_s, transaction_s)

    async with trios(bench.of(LAKESTREAM, KAFKA), bench.stage.fresh()) as sides:
        for trio in sides:
            await trio.members[0].make_topics([TOPIC], 1)
        found = await rounds(bench, sides, work, warm_ups=0)
    what = "killed coordinator of {}, until another one serves"
    return [
        found.row("failover", what.format("a group"), lambda run: run.group_s, "s", at_most=1.0),
        found.row("failover", what.format("transactions"), lambda run: run.transaction_s, "s", at_most=1.0),
    ]


async def _fail_over(trio: Trio, name: str, kind: int, done: Done) -> float:
    await _served(trio.members[0], trio, name, kind, done)
    victim = await _coordinator(trio.members[0], trio, name, kind)
    assert victim is not None
    victim.kill()
    start_s = time.perf_counter()
    await _served(trio.alive(victim)[0], trio, name, kind, done)
    took_s = time.perf_counter() - start_s
    await victim.start(TRIO_PATIENCE)
    await asyncio.sleep(SETTLE_S)
    return took_s


async def _served(asked: Server, trio: Trio, name: str, kind: int, done: Done) -> None:
    """As a client does it: find out who coordinates, ask that one, and so on until it works."""
    async with asyncio.timeout(SERVED_S_MAX):
        while True:
            found = await _coordinator(asked, trio, name, kind)
            if found is not None and await _tried(found, lambda asking: done(asking, name)):
                return
            await asyncio.sleep(PAUSE_S)


async def _coordinator(asked: Server, trio: Trio, name: str, kind: int) -> Server | None:
    answer = await _tried(asked, lambda asking: asking.ask(FIND_COORDINATOR, 2, {"key": name, "key_type": kind}))
    if answer is None or answer.error_code:
        return None
    return next((member for member in trio.members if member.port == answer.port), None)


async def _tried(server: Server, ask: Callable[[Asking], Awaitable[Any]]) -> Any:
    """None: it did not answer."""
    try:
        async with asyncio.timeout(ASK_S_MAX):
            asking = await Asking.open(server.bootstrap)
            try:
                return await ask(asking)
            finally:
                asking.close()
    except (OSError, EOFError):  # a time-out is one, too
        return None


async def _committed(asking: Asking, name: str) -> bool:
    one = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    body = {
        "group_id": name,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [one]}],
    }
    answer = await asking.ask(COMMIT, 8, body)
    return bool(answer.topics[0].partitions[0].error_code == 0)


async def _begun(asking: Asking, name: str) -> bool:
    answer = await asking.ask(INIT, 1, {"transactional_id": name, "transaction_timeout": 60_000})
    return bool(answer.error_code == 0)
