"""The engines that read and write our tables through the REST catalog: Spark, DuckDB, pyiceberg, polars."""

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
from tests.integration.programs import need

from lakestream.testing.brokers import Brokers

STATEMENT_S_MAX: Final = 100
EXTENSIONS: Final = ("avro", "httpfs", "iceberg")

# Planning with pyiceberg is what polars does without a further package; it warns of it each time.
os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"

Rows = list[tuple[Any, ...]]


def uri_of(cluster: Brokers, number: int = 0) -> str:
    """Where a broker serves HTTP."""
    found = re.search(r"HTTP\s+(http://\S+)", cluster[number].log())
    assert found, cluster[number].log()
    return found.group(1)


def pyiceberg_of(cluster: Brokers) -> PyIceberg:
    environment = cluster.environment
    secrets = {
        "s3.access-key-id": environment.get("AWS_ACCESS_KEY_ID"),
        "s3.secret-access-key": environment.get("AWS_SECRET_ACCESS_KEY"),
    }
    given = {name: value for name, value in secrets.items() if value and "AWS_ENDPOINT_URL" in environment}
    return load_catalog("lake", type="rest", uri=uri_of(cluster), **given)


@contextmanager
def duckdb_of(cluster: Brokers) -> Iterator[duckdb.DuckDBPyConnection]:
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
        where = f"ENDPOINT '{uri_of(cluster)}', AUTHORIZATION_TYPE 'none'"
        connection.execute(f"ATTACH '' AS lake (TYPE iceberg, {where})")
        yield connection


def polars_rows(cluster: Brokers, name: str) -> Rows:
    """It plans with pyiceberg, and reads files itself: it has to be told how."""
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
    """A session in a process of its own. `sql` answers with rows; what fails raises, unless that is wanted."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def sql(self, statement: str, *, fails: bool = False) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                answer = json.loads(line.removeprefix("answer "))
                break
        else:
            raise AssertionError(f"Spark has gone: {self._log.read_text()[-2000:]}")
        failed = isinstance(answer, dict)
        assert failed == fails, f"{statement}: {answer}"
        return answer["error"] if failed else answer

    def rows(self, statement: str) -> Rows:
        return sorted(tuple(row) for row in self.sql(statement))


@contextmanager
def spark_of(cluster: Brokers, folder: Path, *, delta: bool = False) -> Iterator[Spark]:
    need("iceberg-spark-jars")
    if delta:
        need("delta-spark-jars")
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
