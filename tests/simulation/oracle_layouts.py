"""Compares the files of partitioned and sorted tables with their manifest entries.

a file has rows of one partition     each row has the partition values of the manifest entry, by the file's own spec
a file has its declared sort order   the sort order that the manifest names

Transforms are those of pyiceberg, independent of Lakestream's. Files of external engines are not checked.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FOREIGN: Final = "/foreign-"
FIELD_ID: Final = b"PARQUET:field_id"
UNSORTED: Final = 0


class FilePartition(NamedTuple):
    """Partition and sort order of a file by its manifest entry."""

    spec_id: int
    values: tuple[tuple[int, Any], ...]
    """Partition values by field id of the spec."""
    order_id: int | None


class TrueLayouts:
    def __init__(self, oracle: "Oracle") -> None:
        self._oracle = oracle
        self._checked: set[tuple[str, FilePartition]] = set()

    def committed(
        self,
        name: str,
        metadata: Mapping[str, Any],
        files: Mapping[str, FilePartition],
        read: Callable[[str], bytes | None],
    ) -> None:
        """Checks a commit. `files`: all files of the table by location."""
        if len(metadata["partition-specs"]) == 1 and len(metadata["sort-orders"]) == 1:
            return  # the layout was never changed
        for location, partition in files.items():
            if FOREIGN in location or (location, partition) in self._checked:
                continue
            self._checked.add((location, partition))
            if (body := read(location)) is not None:
                rows = _Rows(pq.read_table(io.BytesIO(body), use_threads=False), metadata)
                self._check_partition(
                    f"{location} of table {name}", _by_id(metadata, "partition", partition.spec_id), partition, rows
                )
                self._check_order(f"{location} of table {name}", metadata, partition, rows)

    def _check_partition(self, where: str, spec: Mapping[str, Any], partition: FilePartition, rows: "_Rows") -> None:
        stated = dict(partition.values)
        for field in spec["fields"]:
            actual = rows.transformed(field)
            expected = stated.get(field["field-id"])
            if any(value != expected for value in actual):
                self._oracle.report(
                    "a file has rows of one partition",
                    f"{where} has {field['name']} {expected!r}, its rows {sorted(set(map(repr, actual)))}",
                )
        self._oracle.tally["files in partitions"] += len(spec["fields"]) > 1 or bool(
            spec["fields"] and spec["fields"][0]["transform"] != "identity"
        )

    def _check_order(self, where: str, metadata: Mapping[str, Any], partition: FilePartition, rows: "_Rows") -> None:
        if partition.order_id in (None, UNSORTED):
            return
        fields = _by_id(metadata, "order", partition.order_id)["fields"]
        keys = list(zip(*(rows.transformed(field) for field in fields), strict=True))
        for left, right in pairwise(keys):
            if not _in_order(left, right, fields):
                self._oracle.report(
                    "a file has its declared sort order", f"{where} has {left} before {right}: {fields}"
                )
                return
        self._oracle.tally["files sorted by columns"] += not (len(fields) == 1 and fields[0]["source-id"] == 4)


class _Rows:
    """Rows of a file by field id."""

    def __init__(self, table: Any, metadata: Mapping[str, Any]) -> None:
        self._table = table
        (schema,) = (schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])
        self._types = dict(_types(schema["fields"]))

    def transformed(self, field: Mapping[str, Any]) -> list[Any]:
        apply = _transform(field["transform"], self._types[field["source-id"]])
        return [apply(value) for value in self._column(field["source-id"])]

    def _column(self, field_id: int) -> list[Any]:
        """Returns the values of a column, nulls if the file does not have it."""
        for column in self._table.schema:
            if (path := _path(column, field_id)) is not None:
                return [_iceberg_value(_value_at(cell, path)) for cell in self._table.column(column.name).to_pylist()]
        return [None] * len(self._table)


def _path(field: Any, field_id: int) -> list[str] | None:
    """Returns the names from a column down to the field with this id, or None."""
    if int((field.metadata or {}).get(FIELD_ID, -1)) == field_id:
        return []
    for index in range(field.type.num_fields if str(field.type).startswith("struct") else 0):
        inner = field.type.field(index)
        if (path := _path(inner, field_id)) is not None:
            return [inner.name, *path]
    return None


def _value_at(cell: Any, path: Sequence[str]) -> Any:
    for name in path:
        if cell is None:
            return None
        cell = cell[name]
    return cell


def _iceberg_value(cell: Any) -> Any:
    """Converts a timestamp to Iceberg's microseconds."""
    return (cell - EPOCH) // timedelta(microseconds=1) if isinstance(cell, datetime) else cell


def _types(fields: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    result: list[tuple[int, str]] = []
    for field in fields:
        kind = field["type"]
        if isinstance(kind, str):
            result.append((field["id"], kind))
        elif kind["type"] == "struct":
            result += _types(kind["fields"])
    return result


@cache
def _transform(text: str, kind: str) -> Callable[[Any], Any]:
    # Imported here because most runs do not need it.
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform

    field = {"id": 1, "name": "column", "type": kind, "required": False}
    schema = Schema.model_validate({"type": "struct", "fields": [field]})
    transform: Callable[[Any], Any] = parse_transform(text).transform(schema.fields[0].field_type)
    return transform


def _in_order(left_key: Sequence[Any], right_key: Sequence[Any], fields: Sequence[Mapping[str, Any]]) -> bool:
    for left, right, field in zip(left_key, right_key, fields, strict=True):
        if left == right:
            continue
        if left is None or right is None:
            return bool((left is None) == (field["null-order"] == "nulls-first"))
        return bool((left < right) == (field["direction"] == "asc"))
    return True


def _by_id(metadata: Mapping[str, Any], kind: str, number: int | None) -> Mapping[str, Any]:
    list_name, id_name = {"partition": ("partition-specs", "spec-id"), "order": ("sort-orders", "order-id")}[kind]
    result: Mapping[str, Any] = next(entry for entry in metadata[list_name] if entry[id_name] == number)
    return result
