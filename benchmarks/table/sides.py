"""The two ways from a Kafka client into an Iceberg table, each with one topic: Lakestream as `lakestream serve` starts
it, and Apache Kafka with a Spark job behind it. Both on the same local disk."""

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
from benchmarks.kafka.sides import LAKESTREAM, Server, apache_kafka, lakestream
from benchmarks.table import stream
from benchmarks.table.commits import Commits, lakestream_offsets, spark_offsets
from lakestream.testing.processes import Process, program

KAFKA_SPARK: Final = "Kafka + Spark"
TOPIC: Final = "records"
PARTITIONS: Final = 8
VALUES: Final = Values(count=32_768, chance=280)
"""Each comes again in its partition after 4 MiB: no codec, page or dictionary looks back that far, so that none is
stored once for all. And zstd makes 0.40 of them."""
SCHEMA_ID: Final = 1
"""Of the only schema that there is: a registry counts from one."""
_STARTED_S_MAX: Final = 120.0
_ASKED_S_MAX: Final = 10.0


class Lakestream:
    """`stores` are the folders that hold all it keeps, `table` the part of them that holds the table.

    The broker with the pipeline as its child, or (`apart`) beside it. With a schema, its registry has it, and the
    table its columns.
    """

    name = LAKESTREAM

    def __init__(self, folder: Path, interval_s: int, *, apart: bool = False, schema: str = "") -> None:
        self.folder = folder
        self._schema = schema
        self.stores = [folder / "data"]
        self.table = folder / "data" / "storage"
        interval = ["--interval", f"{interval_s}s"]
        self.broker = lakestream(folder, [] if apart else interval, word="broker" if apart else "serve")
        self.pipeline = _pipeline(folder, interval) if apart else None
        self.commits = Commits(self.table, lakestream_offsets)

    async def start(self) -> None:
        await self.broker.start()
        if self.pipeline is not None:
            self.pipeline.start()
        if self._schema:
            await asyncio.to_thread(_register, self.broker.http_port, self._schema)
        settings = {"lakestream.value.schema": "registry"} if self._schema else {}
        await self.broker.make_topics([TOPIC], PARTITIONS, settings)

    def kill(self) -> None:
        if self.pipeline is not None:
            self.pipeline.kill()
        self.broker.kill()

    @property
    def pids(self) -> list[int]:
        """Of all that works for it; with their children."""
        return [self.broker.pid] if self.pipeline is None else [self.broker.pid, self.mover_pid]

    @property
    def mover_pid(self) -> int:
        """Of what moves records into the table, if it runs apart."""
        pid = self.pipeline.pid if self.pipeline is not None else None
        assert pid is not None, "the pipeline runs apart, and has not ended"
        return pid

    def last_words(self) -> str:
        return self.broker.last_words()


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
        await self.broker.make_topics([TOPIC], PARTITIONS)
        self._spark.start()
        deadline_s = time.monotonic() + _STARTED_S_MAX
        while stream.READY not in self._log.read_text(errors="replace"):
            if self._spark.pid is None or time.monotonic() > deadline_s:
                raise LoadFailed(f"the Spark job does not start: {self.last_words()}")
            await asyncio.sleep(0.2)

    def kill(self) -> None:
        self._spark.kill()
        self.broker.kill()

    @property
    def pids(self) -> list[int]:
        return [self.broker.pid, self.mover_pid]

    @property
    def mover_pid(self) -> int:
        assert self._spark.pid is not None, f"the Spark job has ended: {self.last_words()}"
        return self._spark.pid

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:].strip() or "nothing"


Side: TypeAlias = Lakestream | KafkaSpark


@asynccontextmanager
async def sides(
    names: Sequence[str], folder: Path, interval_s: int, *, apart: bool = False, schema: str = ""
) -> AsyncIterator[list[Side]]:
    """All at once, ready: an idle one takes little, and stays warm while it is the other's turn. `schema`: Avro, of
    values behind `SCHEMA_ID`."""
    async with AsyncExitStack() as opened:
        started: list[Side] = []
        for name in names:
            own = folder / name.replace(" ", "").lower()
            own.mkdir(parents=True)
            opened.callback(shutil.rmtree, own, ignore_errors=True)
            side = await _made(name, own, interval_s, apart=apart, schema=schema)
            opened.callback(side.kill)
            await side.start()
            started.append(side)
        yield started


async def _made(name: str, folder: Path, interval_s: int, *, apart: bool, schema: str) -> Side:
    if name == LAKESTREAM:
        return Lakestream(folder, interval_s, apart=apart, schema=schema)
    return KafkaSpark(folder, await apache_kafka(folder), interval_s, schema)


def _register(http_port: int, schema: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/subjects/{TOPIC}-value/versions",
        data=msgspec.json.encode({"schema": schema}),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_ASKED_S_MAX) as answer:
        found = msgspec.json.decode(answer.read())
    assert found["id"] == SCHEMA_ID, f"the first schema has the id {found['id']}"


def _pipeline(folder: Path, options: Sequence[str]) -> Process:
    command = [sys.executable, "-m", "lakestream", "pipeline", "--data-dir", str(folder / "data")]
    return Process("the pipeline", options, folder / "pipeline.log", command=command)


def _jars() -> str:
    """Iceberg, the Kafka connector and Avro, for Spark."""
    found = [_said("iceberg-spark-jars").split(",")[0], _said("spark-kafka-jars"), _said("spark-avro-jars")]
    return ",".join(found)


def _said(name: str) -> str:
    return subprocess.run([program(name)], check=True, capture_output=True, text=True).stdout.strip()
