"""`lakestream serve` with its pipeline: records become rows although processes are killed, and no process is left."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.harness.processes.serve import Server, is_running, output_of, serving, wait_until

pytestmark = pytest.mark.alone

WITH_TABLES = ["--pipeline", "yes", "--interval", "500ms"]


def values_in(folder: Path) -> list[bytes]:
    """Returns the values in all Parquet files."""
    files = [pq.ParquetFile(path) for path in (folder / "data" / "storage").rglob("*.parquet")]
    return sorted(value for file in files for value in file.read(columns=["value"]).column(0).to_pylist())


def descendants(pid: int) -> list[int]:
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            pids += [child, *descendants(child)]
    return pids


def produce(server: Server, *values: str) -> None:
    output_of("produce", "t", "--bootstrap", server.bootstrap, stdin="".join(f"{value}\n" for value in values).encode())


@contextmanager
def assert_processes_end(server: Server) -> Iterator[None]:
    processes = descendants(server.process.pid)
    assert len(processes) >= 3  # the driver, its Java, its workers
    yield
    wait_until(lambda: not any(map(is_running, processes)))


def test_records_become_rows_while_processes_are_killed(tmp_path: Path) -> None:
    with serving(tmp_path, *WITH_TABLES) as server:
        assert "tables    every 0.5 s, by Spark on local[*]\n" in server.output()
        produce(server, "one", "two")
        wait_until(lambda: "pipeline.moved ranges=" in server.output())
        assert values_in(tmp_path) == [b"one", b"two"]

        driver = server.pipeline()
        processes = descendants(driver)
        os.kill(driver, signal.SIGKILL)
        produce(server, "three")
        wait_until(lambda: values_in(tmp_path) == [b"one", b"three", b"two"])
        wait_until(lambda: not any(map(is_running, processes)))
        assert server.output().count("pipeline.ended killed_by=SIGKILL restart_in=0.5s") == 1

        with assert_processes_end(server):
            start_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - start_s < 15
        assert "Traceback" not in server.output()


def test_pipeline_ends_when_serve_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, *WITH_TABLES) as server:
        produce(server, "one")
        wait_until(lambda: values_in(tmp_path) == [b"one"])
        with assert_processes_end(server):
            server.process.kill()
            server.wait_ended()


def test_lag_is_reported_while_the_pipeline_is_stopped_or_disabled(tmp_path: Path) -> None:
    with serving(tmp_path, *WITH_TABLES) as server:
        produce(server, "one")
        wait_until(lambda: values_in(tmp_path) == [b"one"])
        wait_until(lambda: server.metric("lakestream_table_records_total", topic="t") == 1)
        driver = server.pipeline()
        os.kill(driver, signal.SIGSTOP)
        produce(server, "two", "three")
        wait_until(lambda: server.metric("lakestream_table_lag_records", topic="t") == 2)
        wait_until(lambda: server.metric("lakestream_table_lag_seconds", topic="t") > 2)
        os.kill(driver, signal.SIGCONT)
        wait_until(lambda: server.metric("lakestream_table_lag_records", topic="t") == 0)
        assert server.metric("lakestream_table_lag_seconds", topic="t") == 0
        assert server.stop() == 0
    alone = tmp_path / "alone"
    alone.mkdir()
    with serving(alone, "--pipeline", "no") as server:
        produce(server, "one")
        wait_until(lambda: server.metric("lakestream_table_lag_records", topic="t") == 1)
        assert server.metric("lakestream_pipeline_status_age_seconds") == float("inf")
