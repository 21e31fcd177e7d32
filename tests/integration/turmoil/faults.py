"""The trouble that is made: some of everything that can break, at once, for a while; then quiet; then again.

Each fault is a block: it begins when the block is entered and is over when it is left.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple

from tests.integration.turmoil.cluster import Cluster, Node, Store
from tests.integration.turmoil.history import Fault, History

from lakestream.errors import Unavailable
from lakestream.testing.processes import Process
from lakestream.testing.servers import Proxy

QUIET_S: Final = (1.0, 4.0)
LAST_S: Final = (0.3, 5.0)
"""Longer than a broker's session in the metadata store, sometimes."""
AT_ONCE_MAX: Final = 3
RESTART_S_MAX: Final = 60.0
RESTART_PAUSE_S: Final = 0.5


class Possible(NamedTuple):
    whom: str
    what: str
    block: Callable[[], AbstractAsyncContextManager[None]]


async def turmoil(cluster: Cluster, history: History, luck: random.Random, until_s: float) -> int:
    """Until it is that late in the history. All is mended when this returns. How many faults there were."""
    possible, count = possible_faults(cluster), 0
    while history.now_s() + QUIET_S[1] + LAST_S[0] < until_s:
        await asyncio.sleep(luck.uniform(*QUIET_S))
        chosen = _apart(luck.sample(possible, len(possible)))[: luck.randint(1, AT_ONCE_MAX)]
        async with asyncio.TaskGroup() as group:
            for one in chosen:
                last_s = min(luck.uniform(*LAST_S), until_s - history.now_s())
                group.create_task(_suffer(one, last_s, history))
        count += len(chosen)
    return count


def _apart(faults: list[Possible]) -> list[Possible]:
    """One for each victim: a process that is killed cannot also be paused."""
    return list({one.whom: one for one in faults}.values())


async def _suffer(one: Possible, last_s: float, history: History) -> None:
    start_s = history.now_s()
    async with one.block():
        await asyncio.sleep(last_s)
    history.add(Fault(client=one.whom, what=one.what, start_s=start_s, end_s=history.now_s()))


def possible_faults(cluster: Cluster) -> list[Possible]:
    found = [one for node in cluster.nodes for one in _of_node(node)]
    for store in (cluster.oxia, cluster.s3):
        found.append(Possible(store.name, "killed", lambda store=store: _store_killed(store)))  # type: ignore[misc]
        found.append(Possible(store.name, "paused", lambda store=store: _paused(store.process)))  # type: ignore[misc]
    return found


def _of_node(node: Node) -> list[Possible]:
    name = f"broker {node.broker.number}"
    ways = ((name, node.to_broker), (f"{name} to oxia", node.to_oxia), (f"{name} to s3", node.to_s3))
    found = [
        Possible(name, "killed", lambda: _broker_killed(node)),
        Possible(name, "paused", lambda: _paused(node.process)),
    ]
    for whom, way in ways:
        found.append(Possible(whom, "cut", lambda way=way: _cut(way)))  # type: ignore[misc]
        found.append(Possible(whom, "unanswered", lambda way=way: _unanswered(way)))  # type: ignore[misc]
    return found


@asynccontextmanager
async def _broker_killed(node: Node) -> AsyncIterator[None]:
    node.broker.kill()
    yield
    await _started_again(node)


async def _started_again(node: Node) -> None:
    """As whoever looks after processes does it: a broker that does not reach its stores ends, and is started again."""
    async with asyncio.timeout(RESTART_S_MAX):
        while True:
            try:
                return await node.broker.start()
            except Unavailable:
                node.broker.kill()
                await asyncio.sleep(RESTART_PAUSE_S)


@asynccontextmanager
async def _store_killed(store: Store) -> AsyncIterator[None]:
    store.process.kill()
    yield
    await store.restart()


@asynccontextmanager
async def _paused(process: Process) -> AsyncIterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@asynccontextmanager
async def _cut(way: Proxy) -> AsyncIterator[None]:
    await way.cut()
    try:
        yield
    finally:
        await way.mend()


@asynccontextmanager
async def _unanswered(way: Proxy) -> AsyncIterator[None]:
    """What is asked arrives and is done; no answer comes back."""
    toxic = await way.add("timeout", {"timeout": 0})
    try:
        yield
    finally:
        await way.remove(toxic)
