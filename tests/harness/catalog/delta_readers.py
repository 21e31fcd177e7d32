"""Readers of Delta tables: delta-rs and DuckDB."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]


class Seen(NamedTuple):
    offset: int
    value: bytes | None


def by_delta_rs(root: Path, value: str = "value") -> list[Seen]:
    from deltalake import DeltaTable, QueryBuilder

    query = f'SELECT _stream, "{value}" AS value FROM t'
    found = QueryBuilder().register("t", DeltaTable(str(root))).execute(query).read_all()
    rows = [row for batch in found.to_batches() for row in pa.record_batch(batch).to_pylist()]
    return sorted(Seen(row["_stream"]["offset"], row["value"]) for row in rows)


def by_duckdb(root: Path, value: str = "value") -> list[Seen]:
    with duckdb() as connection:
        rows = connection.execute(f'SELECT _stream."offset", "{value}" FROM delta_scan(\'{root}\')').fetchall()
    return sorted(Seen(*row) for row in rows)


def duckdb() -> Any:
    import duckdb
    from duckdb_extensions import import_extension  # type: ignore[import-untyped]

    import_extension("delta")
    connection = duckdb.connect()
    connection.execute("LOAD delta")
    return connection


def read(root: Path, value: str = "value") -> list[Seen]:
    """Reads with both, which must agree."""
    found = by_delta_rs(root, value)
    assert by_duckdb(root, value) == found
    return found
