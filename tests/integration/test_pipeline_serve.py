"""`lakestream serve` with its pipeline: records become rows by themselves, whatever is killed, and nothing is left."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.integration.test_serve import Server, done, runs, serving, wait_until

WITH_TABLES = ["--pipeline", "yes", "--interval", "500ms"]


def values_in(folder: Path) -> list[bytes]:
    """Of all Parquet files."""
    files = [pq.ParquetFile(path) for path in (folder / "data" / "storage").rglob("*.parquet")]
    return sorted(value for file in files for value in file.read(columns=["value"]).column(0).to_pylist())


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def produce(server: Server, *values: str) -> None:
    done("produce", "t", "--bootstrap", server.bootstrap, stdin="".join(f"{value}\n" for value in values).encode())


@contextmanager
def nothing_left(server: Server) -> Iterator[None]:
    everyone = descendants(server.process.pid)
    assert len(everyone) >= 3  # the driver, its Java, its workers
    yield
    wait_until(lambda: not any(map(runs, everyone)))


def test_records_become_rows_while_parts_of_it_are_killed(tmp_path: Path) -> None:
    with serving(tmp_path, *WITH_TABLES) as server:
        assert "tables    every 0.5 s, by Spark on local[*]\n" in server.said()
        produce(server, "one", "two")
        wait_until(lambda: "pipeline.moved ranges=" in server.said())
        assert values_in(tmp_path) == [b"one", b"two"]

        (driver,) = server.children()
        everyone = descendants(driver)
        os.kill(driver, signal.SIGKILL)
        produce(server, "three")
        wait_until(lambda: values_in(tmp_path) == [b"one", b"three", b"two"])
        wait_until(lambda: not any(map(runs, everyone)))
        assert server.said().count("pipeline.ended killed_by=SIGKILL restart_in=0.5s") == 1

        with nothing_left(server):
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 15
        assert "Traceback" not in server.said()


def test_the_pipeline_ends_with_a_serve_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, *WITH_TABLES) as server:
        produce(server, "one")
        wait_until(lambda: values_in(tmp_path) == [b"one"])
        with nothing_left(server):
            server.process.kill()
            server.wait_ended()


def test_the_lag_is_seen_while_the_pipeline_is_stopped_or_not_there(tmp_path: Path) -> None:
    with serving(tmp_path, *WITH_TABLES) as server:
        produce(server, "one")
        wait_until(lambda: values_in(tmp_path) == [b"one"])
        wait_until(lambda: server.metric("lakestream_table_records_total", topic="t") == 1)
        (driver,) = server.children()
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
        assert server.metric("lakestream_pipeline_report_age_seconds") == float("inf")
