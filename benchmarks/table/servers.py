"""The two compared systems from a Kafka client to an Iceberg table, each with one topic, on the same local disk.

They are `lakestream serve`, and Apache Kafka with a Spark job.
"""

import asyncio
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.tasks import Values
from benchmarks.kafka.servers import LAKESTREAM, Server, apache_kafka, lakestream
from benchmarks.table import stream
from benchmarks.table.commits import Commits, lakestream_offsets, spark_offsets
from lakestream.testing.processes import Process, program

KAFKA_SPARK: Final = "Kafka + Spark"
TOPIC: Final = "records"
PARTITIONS: Final = 8
VALUES: Final = Values(count=32_768, random_bytes=280)
"""Each value is repeated in its partition after 4 MiB: beyond the window of any codec, page or dictionary, so that
every copy is stored. zstd compresses them to 0.40."""
SCHEMA_ID: Final = 1
"""Id of the only schema: the ids of a registry begin with 1."""
_STARTED_S_MAX: Final = 120.0
_REQUEST_S_MAX: Final = 10.0


class Lakestream:
    """Processes of Lakestream. `stores` are the folders of all files, `table` is that of the table.

    The pipeline is a child of the broker, or (`separate`) a process of its own. A schema is registered at the start,
    and the table has its columns."""

    name = LAKESTREAM

    def __init__(self, folder: Path, interval_s: int, *, separate: bool = False, schema: str = "") -> None:
        self.folder = folder
        self._schema = schema
        self.stores = [folder / "data"]
        self.table = folder / "data" / "storage"
        interval = ["--interval", f"{interval_s}s"]
        self.broker = lakestream(folder, [] if separate else interval, command="broker" if separate else "serve")
        self.pipeline = _pipeline(folder, interval) if separate else None
        self.commits = Commits(self.table, lakestream_offsets)

    async def start(self) -> None:
        await self.broker.start()
        if self.pipeline is not None:
            self.pipeline.start()
        if self._schema:
            await asyncio.to_thread(_register, self.broker.http_port, self._schema)
        settings = {"lakestream.value.schema": "registry"} if self._schema else {}
        await self.broker.create_topics([TOPIC], PARTITIONS, settings)

    def kill(self) -> None:
        if self.pipeline is not None:
            self.pipeline.kill()
        self.broker.kill()

    @property
    def pids(self) -> list[int]:
        """Process ids; their children are measured, too."""
        return [self.broker.pid] if self.pipeline is None else [self.broker.pid, self.mover_pid]

    @property
    def mover_pid(self) -> int:
        """Id of the process that moves records to the table, if it is a separate process."""
        pid = self.pipeline.pid if self.pipeline is not None else None
        assert pid is not None, "the pipeline is not a separate process, or has ended"
        return pid

    def log_tail(self) -> str:
        return self.broker.log_tail()


class KafkaSpark:
    name = KAFKA_SPARK

    def __init__(self, folder: Path, broker: Server, interval_s: int, schema: str = "") -> None:
        self.folder = folder
        self.broker = broker
        job = stream.Job(
            bootstrap=broker.bootstrap,
            topic=TOPIC,
            folder=str(folder / "spark"),
            jars=_jars(),
            interval_s=interval_s,
            schema=schema,
        )
        self._log = folder / "spark.log"
        command = [sys.executable, "-m", "benchmarks.table.stream", msgspec.json.encode(job).decode()]
        self._spark = Process("the Spark job", [], self._log, command=command)
        self.stores = [broker.folder / "data", Path(job.folder)]
        self.table = job.warehouse
        self.commits = Commits(self.table, spark_offsets(job.checkpoints, TOPIC))

    async def start(self) -> None:
        await self.broker.start()
        await self.broker.create_topics([TOPIC], PARTITIONS)
        self._spark.start()
        deadline_s = time.monotonic() + _STARTED_S_MAX
        while stream.READY not in self._log.read_text(errors="replace"):
            if self._spark.pid is None or time.monotonic() > deadline_s:
                raise LoadFailed(f"the Spark job did not start: {self.log_tail()}")
            await asyncio.sleep(0.2)

    def kill(self) -> None:
        self._spark.kill()
        self.broker.kill()

    @property
    def pids(self) -> list[int]:
        return [self.broker.pid, self.mover_pid]

    @property
    def mover_pid(self) -> int:
        assert self._spark.pid is not None, f"the Spark job has ended: {self.log_tail()}"
        return self._spark.pid

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:].strip() or "nothing"


Side: TypeAlias = Lakestream | KafkaSpark


@asynccontextmanager
async def sides(
    names: Sequence[str], folder: Path, interval_s: int, *, separate: bool = False, schema: str = ""
) -> AsyncIterator[list[Side]]:
    """Starts both systems: an idle one costs little, and stays warm while the other runs.

    `schema` is the Avro schema of values that begin with `SCHEMA_ID`."""
    async with AsyncExitStack() as opened:
        started: list[Side] = []
        for name in names:
            own = folder / name.replace(" ", "").lower()
            own.mkdir(parents=True)
            opened.callback(shutil.rmtree, own, ignore_errors=True)
            side = await _create_side(name, own, interval_s, separate=separate, schema=schema)
            opened.callback(side.kill)
            await side.start()
            started.append(side)
        yield started


async def _create_side(name: str, folder: Path, interval_s: int, *, separate: bool, schema: str) -> Side:
    if name == LAKESTREAM:
        return Lakestream(folder, interval_s, separate=separate, schema=schema)
    return KafkaSpark(folder, await apache_kafka(folder), interval_s, schema)


def _register(http_port: int, schema: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/subjects/{TOPIC}-value/versions",
        data=msgspec.json.encode({"schema": schema}),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_REQUEST_S_MAX) as response:
        registered = msgspec.json.decode(response.read())
    assert registered["id"] == SCHEMA_ID, f"the first schema has the id {registered['id']}"


def _pipeline(folder: Path, options: Sequence[str]) -> Process:
    command = [sys.executable, "-m", "lakestream", "pipeline", "--data-dir", str(folder / "data")]
    return Process("the pipeline", options, folder / "pipeline.log", command=command)


def _jars() -> str:
    """Jars for Spark: Iceberg, the Kafka connector and Avro."""
    jars = [
        _output_of("iceberg-spark-jars").split(",")[0],
        _output_of("spark-kafka-jars"),
        _output_of("spark-avro-jars"),
    ]
    return ",".join(jars)


def _output_of(name: str) -> str:
    return subprocess.run([program(name)], check=True, capture_output=True, text=True).stdout.strip()
