"""The two ways from a Kafka client into an Iceberg table, each with one topic: Lakestream as `lakestream serve` starts
it, and Apache Kafka with a Spark job behind it. Both on the same local disk."""

import asyncio
import shutil
import subprocess
import sys
import time
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
_STARTED_S_MAX: Final = 120.0


class Lakestream:
    """`stores` are the folders that hold all it keeps, `table` the part of them that holds the table.

    The broker with the pipeline as its child, or (`apart`) beside it.
    """

    name = LAKESTREAM

    def __init__(self, folder: Path, interval_s: int, *, apart: bool = False) -> None:
        self.folder = folder
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
        await self.broker.make_topics([TOPIC], PARTITIONS)

    def kill(self) -> None:
        if self.pipeline is not None:
            self.pipeline.kill()
        self.broker.kill()

    @property
    def pids(self) -> list[int]:
        """Of all that works for it; with their children."""
        apart = self.pipeline.pid if self.pipeline is not None else None
        return [self.broker.pid] if apart is None else [self.broker.pid, apart]

    def last_words(self) -> str:
        return self.broker.last_words()


class KafkaSpark:
    name = KAFKA_SPARK

    def __init__(self, folder: Path, broker: Server, interval_s: int) -> None:
        self.folder = folder
        self.broker = broker
        job = stream.Job(
            bootstrap=broker.bootstrap,
            topic=TOPIC,
            folder=str(folder / "spark"),
            jars=_jars(),
            interval_s=interval_s,
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
        assert self._spark.pid is not None, f"the Spark job has ended: {self.last_words()}"
        return [self.broker.pid, self._spark.pid]

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:].strip() or "nothing"


Side: TypeAlias = Lakestream | KafkaSpark


@asynccontextmanager
async def sides(
    names: Sequence[str], folder: Path, interval_s: int, *, apart: bool = False
) -> AsyncIterator[list[Side]]:
    """All at once, ready: an idle one takes little, and stays warm while it is the other's turn."""
    async with AsyncExitStack() as opened:
        started: list[Side] = []
        for name in names:
            own = folder / name.replace(" ", "").lower()
            own.mkdir(parents=True)
            opened.callback(shutil.rmtree, own, ignore_errors=True)
            side = await _made(name, own, interval_s, apart=apart)
            opened.callback(side.kill)
            await side.start()
            started.append(side)
        yield started


async def _made(name: str, folder: Path, interval_s: int, *, apart: bool) -> Side:
    if name == LAKESTREAM:
        return Lakestream(folder, interval_s, apart=apart)
    return KafkaSpark(folder, await apache_kafka(folder), interval_s)


def _pipeline(folder: Path, options: Sequence[str]) -> Process:
    command = [sys.executable, "-m", "lakestream", "pipeline", "--data-dir", str(folder / "data")]
    return Process("the pipeline", options, folder / "pipeline.log", command=command)


def _jars() -> str:
    """Iceberg and the Kafka connector, for Spark."""
    found = [_said("iceberg-spark-jars").split(",")[0], _said("spark-kafka-jars")]
    return ",".join(found)


def _said(name: str) -> str:
    return subprocess.run([program(name)], check=True, capture_output=True, text=True).stdout.strip()
