"""Files of partitioned and sorted tables as they must be: what the manifests say of one is held against its rows.

a file has rows of one partition    each of them has the values that the manifest gives the file, by the file's own spec
a file is sorted as it says         by the sort order that the manifest names

Transforms are those of pyiceberg, which are not ours. Files of foreign engines have what these say of them.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from tests.simulation.witness import Witness

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FOREIGN: Final = "/foreign-"
FIELD_ID: Final = b"PARQUET:field_id"
UNSORTED: Final = 0


class Place(NamedTuple):
    """Where a manifest says that a file is."""

    spec_id: int
    values: tuple[tuple[int, Any], ...]
    """By field of the spec."""
    order_id: int | None


class TrueLayouts:
    def __init__(self, witness: "Witness") -> None:
        self._witness = witness
        self._seen: set[tuple[str, Place]] = set()

    def committed(
        self, name: str, metadata: Mapping[str, Any], files: Mapping[str, Place], read: Callable[[str], bytes | None]
    ) -> None:
        """`files`: by location, all that are in the table now."""
        if len(metadata["partition-specs"]) == 1 and len(metadata["sort-orders"]) == 1:
            return  # nobody has said anything of it
        for location, place in files.items():
            if FOREIGN in location or (location, place) in self._seen:
                continue
            self._seen.add((location, place))
            if (body := read(location)) is not None:
                rows = _Rows(pq.read_table(io.BytesIO(body), use_threads=False), metadata)
                self._check_partition(
                    f"{location} of table {name}", _one(metadata, "partition", place.spec_id), place, rows
                )
                self._check_order(f"{location} of table {name}", metadata, place, rows)

    def _check_partition(self, where: str, spec: Mapping[str, Any], place: Place, rows: "_Rows") -> None:
        said = dict(place.values)
        for field in spec["fields"]:
            found = rows.transformed(field)
            expected = said.get(field["field-id"])
            if any(one != expected for one in found):
                self._witness.accuse(
                    "a file has rows of one partition",
                    f"{where} is of {field['name']} {expected!r}, its rows of {sorted(set(map(repr, found)))}",
                )
        self._witness.tally["files in partitions"] += len(spec["fields"]) > 1 or bool(
            spec["fields"] and spec["fields"][0]["transform"] != "identity"
        )

    def _check_order(self, where: str, metadata: Mapping[str, Any], place: Place, rows: "_Rows") -> None:
        if place.order_id in (None, UNSORTED):
            return
        fields = _one(metadata, "order", place.order_id)["fields"]
        keys = list(zip(*(rows.transformed(field) for field in fields), strict=True))
        for one, other in pairwise(keys):
            if not _in_order(one, other, fields):
                self._witness.accuse("a file is sorted as it says", f"{where} has {one} before {other}: {fields}")
                return
        self._witness.tally["files sorted by columns"] += not (len(fields) == 1 and fields[0]["source-id"] == 4)


class _Rows:
    """Of a file: what they have in which column, by its id."""

    def __init__(self, table: Any, metadata: Mapping[str, Any]) -> None:
        self._table = table
        (schema,) = (one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
        self._types = dict(_types(schema["fields"]))

    def transformed(self, field: Mapping[str, Any]) -> list[Any]:
        apply = _transform(field["transform"], self._types[field["source-id"]])
        return [apply(one) for one in self._column(field["source-id"])]

    def _column(self, field_id: int) -> list[Any]:
        """What a file has not is null."""
        for one in self._table.schema:
            if (path := _path(one, field_id)) is not None:
                return [_value(_below(cell, path)) for cell in self._table.column(one.name).to_pylist()]
        return [None] * len(self._table)


def _path(field: Any, field_id: int) -> list[str] | None:
    """From a column down to the one with this id."""
    if int((field.metadata or {}).get(FIELD_ID, -1)) == field_id:
        return []
    for place in range(field.type.num_fields if str(field.type).startswith("struct") else 0):
        inner = field.type.field(place)
        if (path := _path(inner, field_id)) is not None:
            return [inner.name, *path]
    return None


def _below(cell: Any, path: Sequence[str]) -> Any:
    for name in path:
        if cell is None:
            return None
        cell = cell[name]
    return cell


def _value(cell: Any) -> Any:
    """As Iceberg counts time."""
    return (cell - EPOCH) // timedelta(microseconds=1) if isinstance(cell, datetime) else cell


def _types(fields: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for one in fields:
        kind = one["type"]
        if isinstance(kind, str):
            found.append((one["id"], kind))
        elif kind["type"] == "struct":
            found += _types(kind["fields"])
    return found


@cache
def _transform(text: str, kind: str) -> Callable[[Any], Any]:
    # Here and not above: most runs have no use for it.
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform

    field = {"id": 1, "name": "one", "type": kind, "required": False}
    schema = Schema.model_validate({"type": "struct", "fields": [field]})
    made: Callable[[Any], Any] = parse_transform(text).transform(schema.fields[0].field_type)
    return made


def _in_order(one: Sequence[Any], other: Sequence[Any], fields: Sequence[Mapping[str, Any]]) -> bool:
    for left, right, field in zip(one, other, fields, strict=True):
        if left == right:
            continue
        if left is None or right is None:
            return bool((left is None) == (field["null-order"] == "nulls-first"))
        return bool((left < right) == (field["direction"] == "asc"))
    return True


def _one(metadata: Mapping[str, Any], what: str, number: int | None) -> Mapping[str, Any]:
    listed, name = {"partition": ("partition-specs", "spec-id"), "order": ("sort-orders", "order-id")}[what]
    found: Mapping[str, Any] = next(one for one in metadata[listed] if one[name] == number)
    return found
