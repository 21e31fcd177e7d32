"""Real `lakestream broker` processes for tests: one or several on the same stores, which tests can kill and restart.

    async with brokers(tmp_path, count=3, stores=OXIA_AND_S3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster[0].kill()

Each has its own ports and zone (`zone-0`, `zone-1` …), keeps ports, zone and folder over a restart, and is killed at
the end of the block. A client with `zone_id=zone-1` in its client id is directed to the second broker.

A test adds a broker under load by starting one of its `spare` brokers.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakestream.errors import Unavailable
from lakestream.testing.processes import Process, free_port
from lakestream.testing.servers import Proxy, StoreServer, Toxiproxy, oxia_cluster, oxia_standalone, s3_server

SQLITE_AND_DISK: Final = "sqlite-disk"
OXIA_AND_S3: Final = "oxia-s3"
OXIA_CLUSTER_AND_S3: Final = "oxia-cluster-s3"
"""Three Oxia nodes, with each shard on all of them."""
READY: Final = b"\nready"
_SHARDS: Final = 4
_START_TRIES: Final = 3
"""Another test may take a free port before the broker binds it."""


class BrokerProcess:
    """One broker process. `kill` sends SIGKILL, like a crash; `stop` sends SIGTERM, like a user."""

    def __init__(self, number: int, process: Process, log: Path, port: int, proxy: Proxy | None) -> None:
        self.number = number
        self.zone = zone_of(number)
        self.port = port
        self.proxy = proxy
        self.address = _advertised(port, proxy)
        """Advertised address: that of the network's proxy, if there is one."""
        self.process = process
        self._log = log
        self._log_start = 0

    @property
    def pid(self) -> int:
        pid = self.process.pid
        if pid is None:
            raise Unavailable(f"broker {self.number} does not run: {self.log()[-500:]}")
        return pid

    @property
    def is_running(self) -> bool:
        return self.process.pid is not None

    def rss_bytes(self) -> int:
        """Returns the memory of all its processes. What they share counts once for each."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.process.group())
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        """Returns the log of all runs of this broker."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> int:
        """Stops the broker and returns its exit code. If it does not end, its log contains what it waits for."""
        return self.process.stop(dump=signal.SIGUSR1)

    def begin(self) -> None:
        """Starts the broker without waiting until it is ready."""
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self.process.start()

    async def wait_ready(self) -> None:
        await self.process.wait_ready(self._is_ready)

    async def start(self) -> None:
        self.begin()
        await self.wait_ready()

    async def _is_ready(self) -> bool:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return READY in log.read()


@dataclass(frozen=True)
class BrokerProcesses:
    members: tuple[BrokerProcess, ...]
    metadata: str
    storage: str
    environment: Mapping[str, str]
    """Environment with the credentials of the stores, for other programs on the same stores."""
    stores: tuple[StoreServer, ...] = ()
    spare: tuple[BrokerProcess, ...] = ()
    """Brokers that are not started: the test does, and so adds them."""

    @property
    def bootstrap(self) -> str:
        return ",".join(member.address for member in self.members)

    def __getitem__(self, number: int) -> BrokerProcess:
        return self.members[number]

    def __iter__(self) -> Iterator[BrokerProcess]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def logs(self) -> str:
        return "\n".join(f"── broker {member.number}\n{member.log()}" for member in self.members)


@asynccontextmanager
async def brokers(
    folder: Path,
    count: int = 1,
    stores: str = SQLITE_AND_DISK,
    options: Sequence[str] = (),
    network: Toxiproxy | None = None,
    spare: int = 0,
) -> AsyncIterator[BrokerProcesses]:
    """Starts `count` brokers and waits until they are ready. With a `network`, clients reach each through a proxy."""
    async with AsyncExitStack() as opened:
        metadata, storage, environment, servers = await opened.enter_async_context(_stores(stores, folder))
        shared = ["--data-dir", str(folder / "data"), "--metadata", metadata, "--storage", storage, *options]
        members: tuple[BrokerProcess, ...] = ()
        for number in range(count):
            member = await _started(number, shared, folder, environment, network)
            opened.callback(member.kill)
            members += (member,)
        others = tuple(
            _broker(number, shared, folder, environment, free_port(), None) for number in range(count, count + spare)
        )
        for other in others:
            opened.callback(other.kill)
        yield BrokerProcesses(members, metadata, storage, environment, servers, others)


@contextmanager
def running_brokers(
    folder: Path, count: int = 1, stores: str = SQLITE_AND_DISK, options: Sequence[str] = ()
) -> Iterator[BrokerProcesses]:
    """Starts brokers for code without an event loop, and for fixtures that outlive one."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        opened = AsyncExitStack()
        try:
            yield runner.run(opened.enter_async_context(brokers(folder, count, stores, options)))
        finally:
            runner.run(opened.aclose())


def zone_of(number: int) -> str:
    return f"zone-{number}"


async def _started(
    number: int, shared: Sequence[str], folder: Path, environment: Mapping[str, str], network: Toxiproxy | None
) -> BrokerProcess:
    for attempt in range(1, _START_TRIES + 1):
        port = free_port()
        proxy = None if network is None else await network.proxy(f"127.0.0.1:{port}")
        broker = _broker(number, shared, folder, environment, port, proxy)
        try:
            await broker.start()
        except BaseException as error:
            broker.kill()
            if isinstance(error, Unavailable) and "cannot listen" in broker.log() and attempt < _START_TRIES:
                continue
            raise
        return broker
    raise AssertionError("unreachable")


def _broker(
    number: int, shared: Sequence[str], folder: Path, environment: Mapping[str, str], port: int, proxy: Proxy | None
) -> BrokerProcess:
    own = ["--kafka", f"127.0.0.1:{port}", "--advertise", _advertised(port, proxy), "--zone", zone_of(number)]
    own += ["--http", f"127.0.0.1:{free_port()}"]
    log = folder / f"broker-{number}.log"
    command = [sys.executable, "-m", "lakestream", "broker"]
    process = Process(f"broker-{number}", [*own, *shared], log, command=command, environment=environment)
    return BrokerProcess(number, process, log, port, proxy)


def _advertised(port: int, proxy: Proxy | None) -> str:
    return f"127.0.0.1:{port if proxy is None else proxy.port}"


@asynccontextmanager
async def _stores(name: str, folder: Path) -> AsyncIterator[tuple[str, str, dict[str, str], tuple[StoreServer, ...]]]:
    # Settings in the environment of the test run do not apply to the brokers.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LAKESTREAM_")}
    if name == SQLITE_AND_DISK:
        yield "sqlite", (folder / "bucket").as_uri(), environment, ()
        return
    async with _oxia(name, folder / "oxia") as (url, nodes), s3_server(folder) as s3:
        environment |= {
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_ACCESS_KEY_ID": s3.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
            "AWS_REGION": s3.region,
        }
        yield url, f"s3://{s3.bucket('lake')}", environment, (*nodes, s3)


@asynccontextmanager
async def _oxia(name: str, folder: Path) -> AsyncIterator[tuple[str, tuple[StoreServer, ...]]]:
    if name == OXIA_AND_S3:
        async with oxia_standalone(folder, _SHARDS) as server:
            yield server.url, (server,)
        return
    assert name == OXIA_CLUSTER_AND_S3, name
    async with oxia_cluster(folder, shards=_SHARDS) as cluster:
        yield cluster.url, cluster.nodes
