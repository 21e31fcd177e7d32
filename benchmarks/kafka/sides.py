"""The servers that are held against each other, each started with its own folder and ports: Lakestream as `lakestream
broker` starts it, and Apache Kafka as its own script does, with and without a sync of every write."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.common.measure import family
from benchmarks.kafka.wire import answered
from lakestream.errors import Unavailable
from lakestream.testing.processes import Process, free_port, program

LAKESTREAM: Final = "Lakestream"
KAFKA: Final = "Kafka"
KAFKA_SYNCED: Final = "Kafka, synced"

_JVM_OPTIONS: Final = (
    "-Xms1g -Xmx1g -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
    " -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)
"""As kafka-server-start.sh has them."""
_CLUSTER_ID: Final = "bGFrZXN0cmVhbS1iZW5jaA"
_ADMIN_S_MAX: Final = 60.0
TRIO_PATIENCE: Final = 3


class Server:
    """One server on a port and a folder of its own, which it keeps over a restart."""

    def __init__(self, name: str, process: Process, port: int, log: Path, http_port: int = 0) -> None:
        self.name = name
        self.port = port
        self.folder = log.parent
        self.bootstrap = f"127.0.0.1:{port}"
        self.http_port = http_port
        self._process = process
        self._log = log

    async def start(self, patience: int = 1) -> float:
        """Seconds until it answers clients. `patience`: three that start at once need more of it."""
        start_s = time.perf_counter()
        self._process.start()
        for left in reversed(range(patience)):
            try:
                await self._process.wait_ready(partial(answered, self.port))
                break
            except Unavailable:
                if not left:
                    raise
        return time.perf_counter() - start_s

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None, f"{self.name} does not run"
        return pid

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:].strip() or "nothing"

    def resident_bytes(self) -> int:
        return self._memory("VmRSS")

    def peak_bytes(self) -> int:
        return self._memory("VmHWM")

    def _memory(self, field: str) -> int:
        total = 0
        for pid in family(self.pid):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(field + ":"):
                    total += int(line.split()[1]) * 1024
        return total

    async def make_topics(
        self, names: Sequence[str], partitions: int, settings: Mapping[str, str] | None = None
    ) -> None:
        topics = [
            NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
            for name in names
        ]
        await self._administer(lambda admin: admin.create_topics(topics, operation_timeout=_ADMIN_S_MAX))

    async def delete_topic(self, name: str) -> None:
        await self._administer(lambda admin: admin.delete_topics([name], operation_timeout=_ADMIN_S_MAX))

    async def _administer(self, ask: Callable[[AdminClient], Mapping[str, Future[None]]]) -> None:
        """With a new client each time: one that is kept complains when the server is restarted."""

        def administer() -> None:
            admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})
            for answer in ask(admin).values():
                answer.result(_ADMIN_S_MAX)

        await asyncio.to_thread(administer)


@asynccontextmanager
async def servers(names: Sequence[str], folder: Path) -> AsyncIterator[list[Server]]:
    """All of them at once, ready: an idle one takes next to nothing, and stays warm while it is another's turn."""
    async with AsyncExitStack() as opened:
        started = []
        for number, name in enumerate(names):
            own = folder / str(number)
            own.mkdir(parents=True)
            opened.callback(shutil.rmtree, own, ignore_errors=True)
            server = lakestream(own) if name == LAKESTREAM else await apache_kafka(own, name)
            opened.callback(server.kill)
            await server.start()
            started.append(server)
        yield started


def lakestream(
    folder: Path, options: Sequence[str] = (), environment: Mapping[str, str] | None = None, word: str = "broker"
) -> Server:
    """Not started yet. As `word` starts it: `serve` has the pipeline beside the broker."""
    port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "lakestream", word]
    where = ["--data-dir", str(folder / "data"), "--kafka", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http_port}"]
    # Settings of whoever runs this are not the server's.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LAKESTREAM_")}
    log = folder / "lakestream.log"
    process = Process(
        "lakestream",
        [*where, *options],
        log,
        command=command,
        environment=clean | dict(environment or {}),
    )
    return Server(LAKESTREAM, process, port, log, http_port)


@dataclass(frozen=True, slots=True)
class Trio:
    """Three brokers that are one cluster."""

    name: str
    members: tuple[Server, ...]

    def alive(self, dead: Server | None = None) -> list[Server]:
        return [member for member in self.members if member is not dead]


@asynccontextmanager
async def trios(names: Sequence[str], folder: Path) -> AsyncIterator[list[Trio]]:
    """One cluster for each name, ready; those of Lakestream share SQLite and a folder, those of Kafka three copies."""
    async with AsyncExitStack() as opened:
        made = []
        for number, name in enumerate(names):
            own = folder / str(number)
            own.mkdir(parents=True)
            opened.callback(shutil.rmtree, own, ignore_errors=True)
            members = [lakestream(own) for _ in range(3)] if name == LAKESTREAM else await _kafka_cluster(own, name, 3)
            for member in members:
                opened.callback(member.kill)
            await asyncio.gather(*(member.start(TRIO_PATIENCE) for member in members))
            made.append(Trio(name, tuple(members)))
        yield made


async def apache_kafka(folder: Path, name: str = KAFKA) -> Server:
    """One node that is broker and controller; formatted, not started yet."""
    (server,) = await _kafka_cluster(folder, name, 1)
    return server


async def _kafka_cluster(folder: Path, name: str, count: int) -> list[Server]:
    ports = {node: (free_port(), free_port()) for node in range(1, count + 1)}
    return [await _kafka_node(folder / f"node-{node}", name, node, ports) for node in ports]


async def _kafka_node(folder: Path, name: str, node: int, ports: Mapping[int, tuple[int, int]]) -> Server:
    config = _configured(folder, name, node, ports)
    formatting = [program("kafka-class"), "kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID]
    await asyncio.to_thread(
        subprocess.run, [*formatting, "--config", str(config)], check=True, stdout=subprocess.DEVNULL
    )
    log = folder / "kafka.log"
    process = Process(
        "kafka-class",
        ["kafka.Kafka", str(config)],
        log,
        environment=dict(os.environ) | {"KAFKA_JVM_OPTIONS": _JVM_OPTIONS},
    )
    return Server(name, process, ports[node][0], log)


def _configured(folder: Path, name: str, node: int, ports: Mapping[int, tuple[int, int]]) -> Path:
    folder.mkdir(parents=True)
    config = folder / "server.properties"
    config.write_text(_properties(node, ports, folder / "data", synced=name == KAFKA_SYNCED))
    return config


def _properties(node: int, ports: Mapping[int, tuple[int, int]], data: Path, synced: bool) -> str:
    """`ports` are those of all nodes: for clients, and for controllers."""
    port, controller_port = ports[node]
    copies, copies_min = len(ports), min(2, len(ports))
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(f"{one}@127.0.0.1:{ports[one][1]}" for one in ports),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": copies_min,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": copies_min,
        "group.initial.rebalance.delay.ms": 0,
        "log.segment.delete.delay.ms": 1_000,  # what a run has written is gone soon after it
    }
    if synced:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{key}={value}\n" for key, value in settings.items())
