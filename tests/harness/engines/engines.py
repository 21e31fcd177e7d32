"""Engines that read and write tables through the REST catalog: Spark, DuckDB, pyiceberg, polars."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import duckdb
import polars
import pyarrow as pa  # type: ignore[import-untyped]
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyiceberg.catalog import Catalog as PyIceberg
from pyiceberg.catalog import load_catalog
from tests.harness.clients.programs import require_program

from lakestream.testing.brokers import BrokerProcesses

STATEMENT_S_MAX: Final = 100
EXTENSIONS: Final = ("avro", "httpfs", "iceberg")

# Without an additional package polars plans with pyiceberg, and logs a warning each time.
os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"

Rows = list[tuple[Any, ...]]


def uri_of(cluster: BrokerProcesses, number: int = 0) -> str:
    """Returns the address of a broker's HTTP port."""
    match = re.search(r"HTTP\s+(http://\S+)", cluster[number].log())
    assert match, cluster[number].log()
    return match.group(1)


def pyiceberg_of(cluster: BrokerProcesses) -> PyIceberg:
    environment = cluster.environment
    secrets = {
        "s3.access-key-id": environment.get("AWS_ACCESS_KEY_ID"),
        "s3.secret-access-key": environment.get("AWS_SECRET_ACCESS_KEY"),
    }
    credentials = {name: value for name, value in secrets.items() if value and "AWS_ENDPOINT_URL" in environment}
    return load_catalog("lake", type="rest", uri=uri_of(cluster), **credentials)


@contextmanager
def duckdb_of(cluster: BrokerProcesses) -> Iterator[duckdb.DuckDBPyConnection]:
    for extension in EXTENSIONS:
        import_extension(extension)
    with duckdb.connect() as connection:
        for extension in EXTENSIONS:
            connection.execute(f"LOAD {extension}")
        environment = cluster.environment
        if endpoint := environment.get("AWS_ENDPOINT_URL"):
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{environment['AWS_ACCESS_KEY_ID']}', "
                f"SECRET '{environment['AWS_SECRET_ACCESS_KEY']}', REGION '{environment['AWS_REGION']}', "
                f"ENDPOINT '{urlsplit(endpoint).netloc}', URL_STYLE 'path', USE_SSL false)"
            )
        options = f"ENDPOINT '{uri_of(cluster)}', AUTHORIZATION_TYPE 'none'"
        connection.execute(f"ATTACH '' AS lake (TYPE iceberg, {options})")
        yield connection


def polars_rows(cluster: BrokerProcesses, name: str) -> Rows:
    """Reads a table with polars, which plans with pyiceberg, but reads files with the given credentials."""
    on_s3 = "AWS_ENDPOINT_URL" in cluster.environment
    options = {key.lower(): value for key, value in cluster.environment.items() if on_s3 and key.startswith("AWS_")}
    table = pyiceberg_of(cluster).load_table(name)
    frame = polars.scan_iceberg(table, storage_options=options or None).collect()
    assert isinstance(frame, polars.DataFrame)
    return sorted(frame.rows())


def arrow_rows(catalog: PyIceberg, name: str) -> Rows:
    table: pa.Table = catalog.load_table(name).scan().to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


class Spark:
    """Session in its own process. `sql` returns rows, or (`fails`) the text of the expected error."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def sql(self, statement: str, *, fails: bool = False) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("result "):
                result = json.loads(line.removeprefix("result "))
                break
        else:
            raise AssertionError(f"Spark exited: {self._log.read_text()[-2000:]}")
        failed = isinstance(result, dict)
        assert failed == fails, f"{statement}: {result}"
        return result["error"] if failed else result

    def rows(self, statement: str) -> Rows:
        return sorted(tuple(row) for row in self.sql(statement))


@contextmanager
def spark_of(cluster: BrokerProcesses, folder: Path, *, delta: bool = False) -> Iterator[Spark]:
    require_program("iceberg-spark-jars")
    if delta:
        require_program("delta-spark-jars")
    script = Path(__file__).parent / "spark_sql.py"
    log = folder / "spark.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(script), uri_of(cluster), *(["delta"] if delta else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=dict(cluster.environment) | {"SPARK_LOCAL_DIRS": str(folder)},
            cwd=folder,
        )
    with process:
        try:
            yield Spark(process, log)
            assert process.stdin
            process.stdin.close()
            process.wait(STATEMENT_S_MAX)
        finally:
            process.kill()
