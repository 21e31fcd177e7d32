"""The pipeline's work on a real Spark: here, in a cluster, and while parts of it are killed."""

import asyncio
import gc
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from tests.integration.spark_cluster import HOME, environment_of_a_machine, spark_cluster
from tests.unit.data.table.plain import Record
from tests.unit.pipeline.moving import Log, log_of_all_codecs, rows_of

from lakestream.catalog.locations import Locations
from lakestream.cli.submit import pipeline as submitted
from lakestream.clock import RandomIds, SystemClock
from lakestream.pipeline import job as jobs
from lakestream.pipeline.job import LocalJob, SparkJob, WorkSettings
from lakestream.pipeline.spark import SparkSettings
from lakestream.pipeline.tasks import Move, Moved, Outcome, Stuck
from lakestream.pipeline.work import open_work
from lakestream.storage.file import FileStore
from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, Brokers, brokers

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # pyspark leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

PARTITIONS = 4


class Lake:
    """A storage on the disk with logs in it, and a Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = folder.as_uri()
        self.store = FileStore(folder, SystemClock(), RandomIds())
        self.settings = WorkSettings(storage_url=self.url, segments_dir=str(folder / "segments"))
        self.spark = SparkJob(self.settings, SparkSettings(master="local[2]"))

    async def moves(self, logs: list[Log]) -> list[Move]:
        for log in logs:
            await log.store(self.store)
        return [log.move(self.url) for log in logs]

    async def rows(self, outcomes: list[Outcome]) -> list[list[Record]]:
        for outcome in outcomes:
            assert isinstance(outcome, Moved), outcome
        return [await rows_of(outcome, self.store, Locations(self.url)) for outcome in outcomes]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lake(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lake]:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    yield lake
    java = jvm_of(lake)
    await lake.spark.close()
    gc.collect()
    assert not runs(java)
    assert workers_of(java) == []


def logs() -> list[Log]:
    return [log_of_all_codecs(number) for number in range(PARTITIONS)]


def jvm_of(lake: Lake) -> int:
    spark = lake.spark._spark
    assert spark is not None
    assert spark._jvm is not None
    return spark._jvm.pid


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def workers_of(java: int) -> list[int]:
    return [worker for daemon in children(java) for worker in children(daemon)]


async def test_spark_makes_what_is_made_here(lake: Lake) -> None:
    moves = await lake.moves(logs())
    far = await lake.rows(await lake.spark.run(moves))
    assert far == [log.records for log in logs()]
    here = LocalJob(open_work(lake.settings))
    assert await lake.rows(await here.run(moves)) == far
    await here.close()


async def test_workers_stay_and_keep_what_they_have_loaded(lake: Lake) -> None:
    moves = await lake.moves(logs())
    await lake.spark.run(moves)
    before = set(workers_of(jvm_of(lake)))
    for _ in range(3):
        await lake.rows(await lake.spark.run(moves))
    assert set(workers_of(jvm_of(lake))) == before


async def test_what_is_damaged_is_stuck_alone(lake: Lake) -> None:
    damaged = logs()
    next(iter(damaged[2].objects.values()))[100] ^= 1
    outcomes = await lake.spark.run(await lake.moves(damaged))
    assert [isinstance(outcome, Moved) for outcome in outcomes] == [True, True, False, True]
    stuck = outcomes[2]
    assert isinstance(stuck, Stuck)
    assert (stuck.temporary, stuck.move) == (False, damaged[2].move(lake.url))
    assert "wal/2-" in stuck.reason


async def test_a_worker_that_is_killed_in_the_middle(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = await lake.moves(logs())
    real, sign = jobs._in_worker, lake.folder / "killed"

    def killed_once(work: WorkSettings, groups: Iterator[Any]) -> Iterator[Any]:
        outcomes = list(real(work, groups))
        if not sign.exists():
            sign.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)  # its files are stored, and nobody was told
        yield from outcomes

    monkeypatch.setattr(jobs, "_in_worker", killed_once)
    assert await lake.rows(await lake.spark.run(moves)) == [log.records for log in logs()]
    assert sign.exists()


async def test_a_move_that_kills_its_worker_every_time_is_stuck_alone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moves = await lake.moves(logs())
    real = jobs._in_worker

    def deadly(work: WorkSettings, groups: Iterator[Any]) -> Iterator[Any]:
        given = list(groups)
        if any(move.partition.number == 3 for group in given for _, move in group):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from real(work, iter(given))

    monkeypatch.setattr(jobs, "_in_worker", deadly)
    *good, bad = await lake.spark.run(moves)
    assert await lake.rows(good) == [log.records for log in logs()[:3]]
    assert isinstance(bad, Stuck)
    assert bad.temporary
    assert "tried again in halves" in caplog.text


async def test_a_spark_that_was_killed_is_started_again(lake: Lake) -> None:
    moves = await lake.moves(logs())
    await lake.spark.run(moves)
    java = jvm_of(lake)
    os.kill(java, signal.SIGKILL)
    outcomes = await lake.spark.run(moves)
    if isinstance(outcomes[0], Stuck):  # it was not noticed before the job
        assert "Spark ended while it was at work" in outcomes[0].reason
        outcomes = await lake.spark.run(moves)
    await lake.rows(outcomes)
    assert jvm_of(lake) != java
    assert lake.spark.alive
    assert workers_of(java) == []


# ── as users run it ──────────────────────────────────────────────────────────────────────────────────────────────────


def cli(*words: str, environment: dict[str, str], stdin: bytes = b"") -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "lakestream", *words], input=stdin, capture_output=True, env=environment, timeout=100
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


async def produced(cluster: Brokers, topic: str, lines: list[bytes], environment: dict[str, str]) -> None:
    bootstrap = ["--bootstrap", cluster.bootstrap]
    await asyncio.to_thread(
        lambda: cli("produce", topic, *bootstrap, stdin=b"\n".join(lines) + b"\n", environment=environment)
    )


def values_under(folder: Path) -> list[bytes]:
    """Of all Parquet files."""
    return sorted(
        value
        for path in folder.rglob("*.parquet")
        for value in pq.read_table(io.BytesIO(path.read_bytes()), columns=["value"]).column(0).to_pylist()
    )


def own_flags(cluster: Brokers, folder: Path) -> list[str]:
    """For a pipeline on the stores of the brokers."""
    return ["--data-dir", str(folder / "data"), "--metadata", cluster.metadata, "--storage", cluster.storage]


@pytest.mark.timeout(300)
async def test_two_workers_of_a_cluster_and_then_one(tmp_path: Path) -> None:
    """By `lakestream pipeline --master`, then, after a worker was killed, by `spark-submit`."""
    async with brokers(tmp_path, stores=SQLITE_AND_DISK) as cluster, spark_cluster(tmp_path / "spark") as spark:
        environment = {**cluster.environment, **environment_of_a_machine()}
        flags = own_flags(cluster, tmp_path)
        first = [b"first %d" % number for number in range(2000)]
        await produced(cluster, "t", first, environment)
        said = await asyncio.to_thread(
            lambda: cli("pipeline", "--once", "--master", spark.master, *flags, environment=environment)
        )
        assert said.startswith("moved 2,000 records"), said
        assert values_under(tmp_path) == sorted(first)

        spark.workers[0].kill()
        second = [b"second %d" % number for number in range(500)]
        await produced(cluster, "t", second, environment)
        submit = [
            *("org.apache.spark.deploy.SparkSubmit", "--master", spark.master),
            *("--conf", "spark.executor.memory=512m", str(Path(submitted.__file__)), "--once", *flags),
        ]
        ended = await asyncio.to_thread(
            lambda: subprocess.run(
                [str(HOME / "bin" / "spark-class"), *submit], capture_output=True, env=environment, timeout=100
            )
        )
        assert ended.returncode == 0, ended.stderr.decode()[-2000:]
        assert b"moved 500 records" in ended.stdout
        assert values_under(tmp_path) == sorted(first + second)


async def test_oxia_and_a_bucket(tmp_path: Path) -> None:
    async with brokers(tmp_path, stores=OXIA_AND_S3) as cluster:
        environment = dict(cluster.environment)
        lines = [b"line %d" % number for number in range(1000)]
        await produced(cluster, "t", lines, environment)
        said = await asyncio.to_thread(
            lambda: cli("pipeline", "--once", *own_flags(cluster, tmp_path), environment=environment)
        )
        assert said.startswith("moved 1,000 records"), said
        assert values_under(tmp_path) == sorted(lines)


async def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "lakestream", "pipeline", "--once", "--data-dir", str(tmp_path / "data")]
    ended = await asyncio.to_thread(
        lambda: subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("lakestream: Spark needs Java, and there is none: install Java 17")
    assert ended.stderr.count("\n") == 1
