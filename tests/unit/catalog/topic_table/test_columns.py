"""The columns of a topic's table: fixed field ids, the same in every library, and a light import."""

import subprocess
import sys
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from lakestream.catalog.topic_table import columns as layout
from lakestream.data.table.arrow.types import SCHEMA


def test_field_ids_never_change() -> None:
    assert _numbers(layout.COLUMNS) == {
        "value": 1,
        "_stream": 2,
        "_stream.partition": 3,
        "_stream.offset": 4,
        "_stream.timestamp": 5,
        "_stream.timestamp_ms": 6,
        "_stream.timestamp_type": 7,
        "_stream.key": 8,
        "_stream.headers": 9,
        "_stream.schema_id": 10,
        "_stream.value": 11,
        "_stream.headers.element": 12,
        "_stream.headers.key": 13,
        "_stream.headers.value": 14,
        "_stream.headers.key_raw": 15,
    }
    assert layout.FIRST_FREE_ID == 16
    assert (layout.PARTITION_ID, layout.OFFSET_ID, layout.TIMESTAMP_ID) == (3, 4, 5)


def _numbers(columns: tuple[layout.StreamColumn, ...], prefix: str = "") -> dict[str, int]:
    found = {}
    for column in columns:
        found[prefix + column.name] = column.field_id
        if column.element_id:
            found[f"{prefix}{column.name}.element"] = column.element_id
        found |= _numbers(column.fields, f"{prefix}{column.name}.")
    return found


def test_pyiceberg_assigns_the_same_field_ids() -> None:
    schema = Schema.model_validate(layout.iceberg_schema())
    assert schema.highest_field_id == layout.FIRST_FREE_ID - 1
    assert assign_fresh_schema_ids(schema) == schema


def test_arrow_schema_has_the_same_columns() -> None:
    expected = schema_to_pyarrow(Schema.model_validate(layout.iceberg_schema()))
    assert _flat(SCHEMA) == _flat(expected)


def _flat(fields: Any, prefix: str = "") -> list[tuple[str, bytes, bool]]:
    found = []
    for field in fields:
        found.append((prefix + field.name, field.metadata[b"PARQUET:field_id"], field.nullable))
        kind = field.type
        if hasattr(kind, "value_field"):
            found += _flat([kind.value_field], f"{prefix}{field.name}.")
        elif kind.num_fields:
            found += _flat(list(kind), f"{prefix}{field.name}.")
    return found


def test_parquet_file_has_the_field_ids(tmp_path: Any) -> None:
    pq.write_table(SCHEMA.empty_table(), tmp_path / "empty.parquet")
    assert _flat(pq.read_schema(tmp_path / "empty.parquet")) == _flat(SCHEMA)


def test_milliseconds_that_fit_into_microseconds() -> None:
    assert layout.TIMESTAMP_MS_MAX * 1000 < 2**63 <= (layout.TIMESTAMP_MS_MAX + 1) * 1000
    assert layout.TIMESTAMP_MS_MIN * 1000 >= -(2**63) > (layout.TIMESTAMP_MS_MIN - 1) * 1000


def test_import_loads_no_heavy_module() -> None:
    """A broker that never reads history does not load numba."""
    heavy = "{'numba', 'pyarrow', 'numpy'} & set(sys.modules)"
    program = f"import sys, lakestream.catalog.topic_table.columns; assert not {heavy}"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
