"""Fault injection: several random faults at the same time, then a pause, repeatedly.

Each fault is a context manager: the fault begins when the block is entered and ends when it is left.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple

from tests.integration.jepsen_style.cluster import Cluster, Node, Store
from tests.integration.jepsen_style.history import Fault, History

from lakestream.errors import Unavailable
from lakestream.testing.processes import Process
from lakestream.testing.servers import Proxy

QUIET_S: Final = (1.0, 4.0)
DURATION_S: Final = (0.3, 5.0)
"""Sometimes longer than a broker's session in the metadata store."""
CONCURRENT_MAX: Final = 3
RESTART_S_MAX: Final = 60.0
RESTART_PAUSE_S: Final = 0.5


class FaultType(NamedTuple):
    target: str
    kind: str
    block: Callable[[], AbstractAsyncContextManager[None]]


async def inject_faults(cluster: Cluster, history: History, rng: random.Random, until_s: float) -> int:
    """Injects faults until a time of the history; returns their number. All faults have ended when this returns."""
    types, count = fault_types(cluster), 0
    while history.now_s() + QUIET_S[1] + DURATION_S[0] < until_s:
        await asyncio.sleep(rng.uniform(*QUIET_S))
        chosen = _one_per_target(rng.sample(types, len(types)))[: rng.randint(1, CONCURRENT_MAX)]
        async with asyncio.TaskGroup() as group:
            for fault in chosen:
                duration_s = min(rng.uniform(*DURATION_S), until_s - history.now_s())
                group.create_task(_inject(fault, duration_s, history))
        count += len(chosen)
    return count


def _one_per_target(faults: list[FaultType]) -> list[FaultType]:
    """Returns at most one fault per target: a process that is killed cannot also be paused."""
    return list({fault.target: fault for fault in faults}.values())


async def _inject(fault: FaultType, duration_s: float, history: History) -> None:
    start_s = history.now_s()
    async with fault.block():
        await asyncio.sleep(duration_s)
    history.add(Fault(client=fault.target, what=fault.kind, start_s=start_s, end_s=history.now_s()))


def fault_types(cluster: Cluster) -> list[FaultType]:
    types = [fault for node in cluster.nodes for fault in _of_node(node)]
    for store in (cluster.oxia, cluster.s3):
        types.append(FaultType(store.name, "killed", lambda store=store: _store_killed(store)))  # type: ignore[misc]
        types.append(FaultType(store.name, "paused", lambda store=store: _paused(store.process)))  # type: ignore[misc]
    return types


def _of_node(node: Node) -> list[FaultType]:
    name = f"broker {node.broker.number}"
    proxies = ((name, node.to_broker), (f"{name} to oxia", node.to_oxia), (f"{name} to s3", node.to_s3))
    types = [
        FaultType(name, "killed", lambda: _broker_killed(node)),
        FaultType(name, "paused", lambda: _paused(node.process)),
    ]
    for target, proxy in proxies:
        types.append(FaultType(target, "cut", lambda proxy=proxy: _cut(proxy)))  # type: ignore[misc]
        types.append(FaultType(target, "unanswered", lambda proxy=proxy: _unanswered(proxy)))  # type: ignore[misc]
    return types


@asynccontextmanager
async def _broker_killed(node: Node) -> AsyncIterator[None]:
    node.broker.kill()
    yield
    await _restart(node)


async def _restart(node: Node) -> None:
    """Starts a broker like a process manager: a broker that cannot reach its stores exits, and is restarted."""
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
async def _cut(proxy: Proxy) -> AsyncIterator[None]:
    await proxy.cut()
    try:
        yield
    finally:
        await proxy.restore()


@asynccontextmanager
async def _unanswered(proxy: Proxy) -> AsyncIterator[None]:
    """Requests arrive and are executed, but no response is returned."""
    toxic = await proxy.add("timeout", {"timeout": 0})
    try:
        yield
    finally:
        await proxy.remove(toxic)
