"""Fresh reads with real processes: a pipeline that would come in an hour comes at once when an engine asks for it."""

import os
import signal
import time
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyiceberg.catalog import load_catalog
from tests.integration.engines import EXTENSIONS
from tests.integration.test_serve import Server, done, refused, serving, wait_until

IN_AN_HOUR = ["--pipeline", "yes", "--interval", "60m"]
HEADER = "X-Lakestream-Fresh"


def produce(server: Server, *values: str) -> None:
    done("produce", "t", "--bootstrap", server.bootstrap, stdin="".join(f"{value}\n" for value in values).encode())


def values(server: Server, **properties: str) -> list[str]:
    catalog = load_catalog("lake", type="rest", uri=f"http://{server.http}", **properties)
    found = catalog.load_table("default.t").scan().to_arrow()["value"].to_pylist()
    return sorted(value.decode() for value in found)


def duckdb_values(server: Server, asked: str) -> list[str]:
    """DuckDB reads what was there when its statement began: the first one waits, the second one has it."""
    for extension in EXTENSIONS:
        import_extension(extension)
    with duckdb.connect() as connection:
        for extension in EXTENSIONS:
            connection.execute(f"LOAD {extension}")
        where = f"ENDPOINT 'http://{server.http}', AUTHORIZATION_TYPE 'none'"
        connection.execute(
            f"ATTACH '' AS lake (TYPE iceberg, {where}, EXTRA_HTTP_HEADERS MAP {{'{HEADER}': '{asked}'}})"
        )
        connection.execute("FROM lake.default.t LIMIT 0")
        return sorted(value.decode() for (value,) in connection.execute("SELECT value FROM lake.default.t").fetchall())


def test_who_asks_gets_what_was_acknowledged(tmp_path: Path) -> None:
    with serving(tmp_path, *IN_AN_HOUR) as server:
        produce(server, "one")
        fresh = {f"header.{HEADER}": "60s"}
        assert values(server, **fresh) == ["one"]  # Spark may still have been coming up, and there was no table
        produce(server, "two")
        assert values(server) == ["one"]
        begun = time.monotonic()
        assert values(server, **fresh) == ["one", "two"]
        assert time.monotonic() - begun < 15
        produce(server, "three")
        flags = ["--http", server.http]
        assert done("table", "refresh", "t", *flags) == "table default.t has everything that was acknowledged\n"
        assert values(server) == ["one", "three", "two"]
        produce(server, "four")
        assert duckdb_values(server, "30s") == ["four", "one", "three", "two"]

        (driver,) = server.children()
        os.kill(driver, signal.SIGSTOP)
        try:
            produce(server, "five")
            assert values(server, **{f"header.{HEADER}": "1s"}) == ["four", "one", "three", "two"]
            said = refused("table", "refresh", "t", "--wait", "1s", *flags)
            assert "table default.t does not have everything yet: not within 1 s; partition" in said
            wait_until(lambda: "catalog.not_fresh table=default.t why=not within 1 s" in server.said())
        finally:
            os.kill(driver, signal.SIGCONT)
        assert done("table", "refresh", "t", *flags, "--json") == '{"table": "default.t", "fresh": true}\n'
        assert "there is no table default.no" in refused("table", "refresh", "no", *flags)
        assert "--wait: 'soon' is no time" in refused("table", "refresh", "t", "--wait", "soon", *flags)
        assert server.stop() == 0
        assert "no catalog can be reached" in refused("table", "refresh", "t", *flags)
        assert "Traceback" not in server.said()
