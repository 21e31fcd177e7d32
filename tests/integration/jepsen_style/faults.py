"""Fault injection: several random faults at the same time, then a pause, repeatedly. And brokers that come and go.

Each fault is a context manager: the fault begins when the block is entered and ends when it is left.
"""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple

from tests.harness.processes.pipelines import PipelineProcess
from tests.integration.jepsen_style.cluster import Cluster, Node
from tests.integration.jepsen_style.history import Fault, History

from lakestream.errors import Unavailable
from lakestream.testing.brokers import BrokerProcess
from lakestream.testing.processes import Process
from lakestream.testing.servers import OxiaClusterNode, Proxy, StoreServer

QUIET_S: Final = (1.0, 4.0)
DURATION_S: Final = (0.3, 5.0)
"""Sometimes longer than a broker's session in the metadata store."""
CONCURRENT_MAX: Final = 3
RESTART_S_MAX: Final = 60.0
RESTART_PAUSE_S: Final = 0.5
ONLINE_S_MAX: Final = 60.0
OXIA: Final = "oxia"


class FaultType(NamedTuple):
    target: str
    kind: str
    block: Callable[[], AbstractAsyncContextManager[None]]

    @property
    def part(self) -> str:
        """Kind of the target: processes of one kind have a name with a number."""
        return self.target.partition("-")[0]

    @property
    def excludes(self) -> str:
        """Faults with the same name are not injected at the same time.

        A process that is killed cannot also be paused. Of the Oxia nodes, a majority has to work."""
        return self.part if self.part == OXIA else self.target


async def inject_faults(cluster: Cluster, history: History, rng: random.Random, until_s: float) -> int:
    """Injects faults until a time of the history; returns their number. All faults have ended when this returns."""
    count = 0
    while True:
        for faults in rounds(fault_types(cluster), rng):
            if history.now_s() + QUIET_S[1] + DURATION_S[0] >= until_s:
                return count
            await asyncio.sleep(rng.uniform(*QUIET_S))
            await inject(faults, cluster, history, rng, until_s)
            count += len(faults)


def rounds(types: list[FaultType], rng: random.Random) -> Iterator[list[FaultType]]:
    """Yields faults to inject at the same time, each fault once."""
    left = rng.sample(types, len(types))
    while left:
        possible = {fault.excludes: fault for fault in reversed(left)}
        chosen = list(possible.values())[: rng.randint(1, CONCURRENT_MAX)]
        left = [fault for fault in left if fault not in chosen]
        yield chosen


def one_of_each_part(types: list[FaultType], rng: random.Random) -> list[FaultType]:
    """Returns each kind of fault of each part once, for one of its processes."""
    shuffled = rng.sample(types, len(types))
    return list({(fault.part, fault.kind): fault for fault in shuffled}.values())


async def inject(
    faults: list[FaultType], cluster: Cluster, history: History, rng: random.Random, until_s: float = float("inf")
) -> None:
    """Injects faults at the same time, and waits until all have ended."""
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            duration_s = min(rng.uniform(*DURATION_S), until_s - history.now_s())
            group.create_task(_inject(fault, duration_s, history))
    for process in cluster.processes():
        process.check_running()


async def _inject(fault: FaultType, duration_s: float, history: History) -> None:
    start_s = history.now_s()
    async with fault.block():
        await asyncio.sleep(duration_s)
    history.add(Fault(client=fault.target, what=fault.kind, start_s=start_s, end_s=history.now_s()))


def fault_types(cluster: Cluster) -> list[FaultType]:
    types = [fault for node in cluster.nodes for fault in _of_node(node)]
    for store in cluster.stores:
        types += _of_store(store)
    for pipeline in cluster.pipelines:
        types += _of_process(pipeline.process, lambda pipeline=pipeline: _pipeline_killed(pipeline))  # type: ignore[misc]
    return types


def _of_node(node: Node) -> list[FaultType]:
    types = _of_process(node.broker.process, lambda: _broker_killed(node.broker))
    for target, proxy in node.proxies.items():
        types.append(FaultType(target, "cut", lambda proxy=proxy: _cut(proxy)))  # type: ignore[misc]
        types.append(FaultType(target, "unanswered", lambda proxy=proxy: _unanswered(proxy)))  # type: ignore[misc]
    return types


def _of_store(store: StoreServer) -> list[FaultType]:
    types = _of_process(store.process, lambda: _store_killed(store))
    if not isinstance(store, OxiaClusterNode):
        return types
    return [fault._replace(block=lambda fault=fault: _when_online(store, fault)) for fault in types]  # type: ignore[misc]


@asynccontextmanager
async def _when_online(node: OxiaClusterNode, fault: FaultType) -> AsyncIterator[None]:
    """Begins the fault when the coordinator has noticed the end of the previous one."""
    try:
        async with asyncio.timeout(ONLINE_S_MAX):
            while not node.is_online():  # noqa: ASYNC110
                await asyncio.sleep(RESTART_PAUSE_S)
    except TimeoutError:
        raise Unavailable(f"{node.process.name} is not online after {ONLINE_S_MAX:.0f} s") from None
    async with fault.block():
        yield


def _of_process(process: Process, killed: Callable[[], AbstractAsyncContextManager[None]]) -> list[FaultType]:
    return [FaultType(process.name, "killed", killed), FaultType(process.name, "paused", lambda: _paused(process))]


@asynccontextmanager
async def _broker_killed(broker: BrokerProcess) -> AsyncIterator[None]:
    broker.kill()
    yield
    await _restart(broker)


async def _restart(broker: BrokerProcess) -> None:
    """Starts a broker like a process manager: a broker that cannot reach its stores exits, and is restarted."""
    deadline_s = time.monotonic() + RESTART_S_MAX
    while True:
        try:
            return await broker.start()
        except Unavailable:
            if time.monotonic() > deadline_s:
                raise
            broker.kill()
            await asyncio.sleep(RESTART_PAUSE_S)


@asynccontextmanager
async def _store_killed(store: StoreServer) -> AsyncIterator[None]:
    store.kill()
    yield
    await store.restart()


@asynccontextmanager
async def _pipeline_killed(pipeline: PipelineProcess) -> AsyncIterator[None]:
    pipeline.kill()
    yield
    await pipeline.start()


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


# Brokers that come and go


async def change_brokers(
    cluster: Cluster, history: History, rng: random.Random, wait_for_clients: Callable[[], Awaitable[None]]
) -> None:
    """Starts a new broker, stops another one and starts it again, and stops the new one, each with SIGTERM."""
    assert cluster.spare is not None
    spare, other = cluster.spare.broker, rng.choice(cluster.nodes).broker
    for broker, change in ((spare, _start), (other, _stop), (other, _start), (spare, _stop)):
        start_s = history.now_s()
        await change(broker)
        what = "started" if change is _start else "stopped"
        history.add(Fault(client=broker.process.name, what=what, start_s=start_s, end_s=history.now_s()))
        await wait_for_clients()


async def _start(broker: BrokerProcess) -> None:
    await broker.start()


async def _stop(broker: BrokerProcess) -> None:
    code = await asyncio.to_thread(broker.stop)
    assert code == 0, f"{broker.process.name} exited with {code} after SIGTERM: {broker.log()[-20_000:]}"
