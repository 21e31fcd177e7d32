"""Fresh reads with processes: a pipeline with an interval of an hour runs immediately when an engine requests it."""

import os
import signal
import time
from pathlib import Path

import duckdb
import pytest
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyiceberg.catalog import load_catalog
from tests.harness.engines.engines import EXTENSIONS
from tests.harness.processes.serve import Server, error_of, output_of, serving, wait_until

pytestmark = pytest.mark.alone

IN_AN_HOUR = ["--pipeline", "yes", "--interval", "60m"]
HEADER = "X-Lakestream-Fresh"


def produce(server: Server, *values: str) -> None:
    output_of("produce", "t", "--bootstrap", server.bootstrap, stdin="".join(f"{value}\n" for value in values).encode())


def values(server: Server, **properties: str) -> list[str]:
    catalog = load_catalog("lake", type="rest", uri=f"http://{server.http}", **properties)
    rows = catalog.load_table("default.t").scan().to_arrow()["value"].to_pylist()
    return sorted(value.decode() for value in rows)


def duckdb_values(server: Server, wait: str) -> list[str]:
    """DuckDB reads the table as of the start of a statement: the first one waits, the second one returns the rows."""
    for extension in EXTENSIONS:
        import_extension(extension)
    with duckdb.connect() as connection:
        for extension in EXTENSIONS:
            connection.execute(f"LOAD {extension}")
        where = f"ENDPOINT 'http://{server.http}', AUTHORIZATION_TYPE 'none'"
        connection.execute(
            f"ATTACH '' AS lake (TYPE iceberg, {where}, EXTRA_HTTP_HEADERS MAP {{'{HEADER}': '{wait}'}})"
        )
        connection.execute("FROM lake.default.t LIMIT 0")
        return sorted(value.decode() for (value,) in connection.execute("SELECT value FROM lake.default.t").fetchall())


def test_fresh_read_returns_all_acknowledged_records(tmp_path: Path) -> None:
    with serving(tmp_path, *IN_AN_HOUR) as server:
        produce(server, "one")
        fresh = {f"header.{HEADER}": "60s"}
        assert values(server, **fresh) == ["one"]  # Spark may not have been running yet, so there was no table
        produce(server, "two")
        assert values(server) == ["one"]
        start_s = time.monotonic()
        assert values(server, **fresh) == ["one", "two"]
        assert time.monotonic() - start_s < 15
        produce(server, "three")
        flags = ["--http", server.http]
        assert output_of("table", "refresh", "t", *flags) == "table default.t has all acknowledged records\n"
        assert values(server) == ["one", "three", "two"]
        produce(server, "four")
        assert duckdb_values(server, "30s") == ["four", "one", "three", "two"]

        driver = server.pipeline()
        os.kill(driver, signal.SIGSTOP)
        try:
            produce(server, "five")
            assert values(server, **{f"header.{HEADER}": "1s"}) == ["four", "one", "three", "two"]
            output = error_of("table", "refresh", "t", "--wait", "1s", *flags)
            assert "table default.t does not have all acknowledged records yet: not within 1 s; partition" in output
            wait_until(lambda: "catalog.refresh_incomplete table=default.t reason=not within 1 s" in server.output())
        finally:
            os.kill(driver, signal.SIGCONT)
        assert output_of("table", "refresh", "t", *flags, "--json") == '{"table": "default.t", "fresh": true}\n'
        assert "Table does not exist: default.no" in error_of("table", "refresh", "no", *flags)
        assert "--wait: invalid duration 'soon'" in error_of("table", "refresh", "t", "--wait", "soon", *flags)
        assert server.stop() == 0
        assert "no catalog can be reached" in error_of("table", "refresh", "t", *flags)
        assert "Traceback" not in server.output()
