"""The compared servers, each with its own folder and ports.

Lakestream is started by `lakestream broker`, Apache Kafka as by its own script, with and without a sync of every write.
"""

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
from benchmarks.kafka.wire import is_ready
from lakestream.errors import Unavailable
from lakestream.testing.processes import Process, free_port, program

LAKESTREAM: Final = "Lakestream"
KAFKA: Final = "Kafka"
KAFKA_SYNCED: Final = "Kafka, synced"

_JVM_OPTIONS: Final = (
    "-Xms1g -Xmx1g -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
    " -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)
"""JVM options of kafka-server-start.sh."""
_CLUSTER_ID: Final = "bGFrZXN0cmVhbS1iZW5jaA"
_ADMIN_S_MAX: Final = 60.0
TRIO_PATIENCE: Final = 3


class Server:
    """A server with its own port and folder, which stay the same after a restart."""

    def __init__(self, name: str, process: Process, port: int, log: Path, http_port: int = 0) -> None:
        self.name = name
        self.port = port
        self.folder = log.parent
        self.bootstrap = f"127.0.0.1:{port}"
        self.http_port = http_port
        self._process = process
        self._log = log

    async def start(self, patience: int = 1) -> float:
        """Starts the server; returns the seconds until it responds.

        `patience` is the number of readiness timeouts: three servers that start together need more than one."""
        start_s = time.perf_counter()
        self._process.start()
        for attempts_left in reversed(range(patience)):
            try:
                await self._process.wait_ready(partial(is_ready, self.port))
                break
            except Unavailable:
                if not attempts_left:
                    raise
        return time.perf_counter() - start_s

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None, f"{self.name} is not running"
        return pid

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:].strip() or "nothing"

    def resident_bytes(self) -> int:
        """Returns the memory of all processes. What several of them share counts once."""
        return self._memory("smaps_rollup", "Pss")

    def peak_bytes(self) -> int:
        """Returns the sum of the processes' peaks. What several of them share counts for each."""
        return self._memory("status", "VmHWM")

    def _memory(self, file: str, field: str) -> int:
        total = 0
        for pid in family(self.pid):
            for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
                if line.startswith(field + ":"):
                    total += int(line.split()[1]) * 1024
        return total

    async def create_topics(
        self, names: Sequence[str], partitions: int, settings: Mapping[str, str] | None = None
    ) -> None:
        topics = [
            NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
            for name in names
        ]
        await self._administer(lambda admin: admin.create_topics(topics, operation_timeout=_ADMIN_S_MAX))

    async def delete_topic(self, name: str) -> None:
        await self._administer(lambda admin: admin.delete_topics([name], operation_timeout=_ADMIN_S_MAX))

    async def _administer(self, request: Callable[[AdminClient], Mapping[str, Future[None]]]) -> None:
        """Creates a client for each call: a client that outlives a restart of the server logs errors."""

        def administer() -> None:
            admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})
            for future in request(admin).values():
                future.result(_ADMIN_S_MAX)

        await asyncio.to_thread(administer)


@asynccontextmanager
async def servers(names: Sequence[str], folder: Path) -> AsyncIterator[list[Server]]:
    """Starts all servers: an idle server costs almost nothing, and stays warm while the others run."""
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
    folder: Path, options: Sequence[str] = (), environment: Mapping[str, str] | None = None, command: str = "broker"
) -> Server:
    """Returns a server that is not started yet. The command `serve` also runs the pipeline."""
    port, http_port = free_port(), free_port()
    arguments = [sys.executable, "-m", "lakestream", command]
    locations = ["--data-dir", str(folder / "data"), "--kafka", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http_port}"]
    # Settings in the environment of the benchmark do not apply to the server.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LAKESTREAM_")}
    log = folder / "lakestream.log"
    process = Process(
        "lakestream",
        [*locations, *options],
        log,
        command=arguments,
        environment=clean | dict(environment or {}),
    )
    return Server(LAKESTREAM, process, port, log, http_port)


@dataclass(frozen=True, slots=True)
class Trio:
    """A cluster of three brokers."""

    name: str
    members: tuple[Server, ...]

    def alive(self, dead: Server | None = None) -> list[Server]:
        return [member for member in self.members if member is not dead]


@asynccontextmanager
async def trios(names: Sequence[str], folder: Path) -> AsyncIterator[list[Trio]]:
    """Starts one cluster per name. Brokers of Lakestream share SQLite and a folder; those of Kafka have three
    replicas."""
    async with AsyncExitStack() as opened:
        clusters = []
        for number, name in enumerate(names):
            own = folder / str(number)
            own.mkdir(parents=True)
            opened.callback(shutil.rmtree, own, ignore_errors=True)
            members = [lakestream(own) for _ in range(3)] if name == LAKESTREAM else await _kafka_cluster(own, name, 3)
            for member in members:
                opened.callback(member.kill)
            await asyncio.gather(*(member.start(TRIO_PATIENCE) for member in members))
            clusters.append(Trio(name, tuple(members)))
        yield clusters


async def apache_kafka(folder: Path, name: str = KAFKA) -> Server:
    """Returns a formatted node, broker and controller, that is not started yet."""
    (server,) = await _kafka_cluster(folder, name, 1)
    return server


async def _kafka_cluster(folder: Path, name: str, count: int) -> list[Server]:
    ports = {node: (free_port(), free_port()) for node in range(1, count + 1)}
    return [await _kafka_node(folder / f"node-{node}", name, node, ports) for node in ports]


async def _kafka_node(folder: Path, name: str, node: int, ports: Mapping[int, tuple[int, int]]) -> Server:
    config = _write_config(folder, name, node, ports)
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


def _write_config(folder: Path, name: str, node: int, ports: Mapping[int, tuple[int, int]]) -> Path:
    folder.mkdir(parents=True)
    config = folder / "server.properties"
    config.write_text(_properties(node, ports, folder / "data", synced=name == KAFKA_SYNCED))
    return config


def _properties(node: int, ports: Mapping[int, tuple[int, int]], data: Path, synced: bool) -> str:
    """Returns the properties of a node.

    `ports` are those of all nodes: one for clients, one for controllers."""
    port, controller_port = ports[node]
    copies, copies_min = len(ports), min(2, len(ports))
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{ports[voter][1]}" for voter in ports),
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
        "log.segment.delete.delay.ms": 1_000,  # deletes the records of a run soon after its end
    }
    if synced:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{key}={value}\n" for key, value in settings.items())
