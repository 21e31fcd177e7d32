"""Reads a few fields of each record of Avro files: for manifests with very many files. Blocks: runs in threads.

    container (manifests/avro_file.py)  →  program of its schema  →  kernels/avro.py  →  a row of slots per record

All other fields of the schema are skipped, so files of every writer and format version can be read. Damaged lengths
and counts are detected before use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.manifests.avro_codec import check_items
from lakestream.catalog.manifests.avro_file import BAD_BYTES, damaged, read_file
from lakestream.data.table.kernels import avro as k
from lakestream.data.table.kernels.compile import Longs
from lakestream.errors import Corrupt
from lakestream.model import Buffer

PARTS_MAX: Final = 20_000
"""Of a schema with its names resolved. One that uses each of its names twice doubles with every name."""
FIXED_BYTES_MAX: Final = 2**31
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_WRONG: Final = {k.CUT_OFF: "is truncated", k.WRONG: "does not match the file's schema"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroFields:
    """The fields to read, by Iceberg field id, and the slot for each; bytes take two."""

    slots: int
    fields: Mapping[int, int] = field(default_factory=dict)
    keyed: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """By field id of a map from column ids: the columns to read, and the slot for each."""
    listed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By field id of a list: how many slots an item takes, and how many items are read."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroRecords:
    """All records of a file: the slots of each, and the bytes that they point into."""

    location: str
    data: Buffer
    rows: Longs

    def longs(self, slot: int, null: int) -> Longs:
        values = self.rows[:, slot]
        return np.where(values == k.ABSENT, null, values)

    def text(self, slot: int, row: int) -> str | None:
        start, size = self.rows[row, slot], self.rows[row, slot + 1]
        if start == k.ABSENT:
            return None
        try:
            return bytes(self.data[start : start + size]).decode()
        except UnicodeDecodeError as error:
            raise damaged(self.location, error) from error

    def numbers(self, slot: int, null: int) -> Longs:
        """Returns bytes as numbers: little-endian, 4 or 8 bytes, as Iceberg stores bounds."""
        start, size = self.rows[:, slot], self.rows[:, slot + 1]
        values = np.full(len(start), null, np.int64)
        data = np.frombuffer(self.data, np.uint8)
        for width, kind in ((4, "<i4"), (8, "<i8")):
            fits = size == width
            if fits.any():
                places = start[fits][:, None] + np.arange(width)
                values[fits] = np.ascontiguousarray(data[places]).view(kind)[:, 0]
        return values


def read(body: Buffer, requested: AvroFields, location: str) -> AvroRecords:
    """Reads the fields of all records. Raises Corrupt with the name of the file."""
    file = read_file(bytes(body), location)
    try:
        code = _program(file.schema, requested)
    except BAD_BYTES as error:
        raise damaged(location, error) from error
    # Some writers write a block for every record: all blocks are read together.
    data = file.blocks[0][1] if len(file.blocks) == 1 else b"".join(data for _, data in file.blocks)
    return _walked(data, sum(count for count, _ in file.blocks), code, requested.slots, location)


def _walked(data: Buffer, count: int, code: Longs, slots: int, name: str) -> AvroRecords:
    rows = np.full((count, slots), k.ABSENT, np.int64)
    wrong, row = k.walk(pa.py_buffer(data).address, len(data), code, rows)
    if wrong:
        raise Corrupt(f"{name} is damaged: entry {row} {_WRONG[wrong]}")
    return AvroRecords(name, data, rows)


class _Program(list[int]):
    """The steps. Each takes bytes of the record, so their number is bounded by the bytes of the file."""

    parts = 0
    """Of the schema. A part that is null takes no bytes, and no step."""


def _program(schema: Any, requested: AvroFields) -> Longs:
    code = _Program()
    _compile(schema, code, requested, k.NO_SLOT, {})
    code.append(k.END)
    return np.array(code, np.int64)


def _compile(schema: Any, code: _Program, requested: AvroFields, field_id: int, named: dict[str, Any]) -> int:
    """Appends the steps that read one value of a type. Returns the minimum size of a value."""
    code.parts += 1
    if code.parts > PARTS_MAX:
        raise Corrupt(f"its schema has more than {PARTS_MAX} parts")
    slot = requested.fields.get(field_id, k.NO_SLOT)
    if isinstance(schema, list):
        return _compile_union(schema, code, requested, field_id, named)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _compile(kind, code, requested, field_id, named)
    if "name" in schema:
        named[schema["name"]] = schema
    match kind:
        case "record":
            return sum(
                _compile(part["type"], code, requested, part.get("field-id", k.NO_SLOT), named)
                for part in schema["fields"]
            )
        case "array" | "map":
            _compile_list(schema, code, requested, field_id, named)
            return 1
        case "int" | "long" | "enum":
            code += (k.LONG, slot)
            return 1
        case "bytes" | "string":
            code += (k.BYTES, slot)
            return 1
        case "fixed":
            size = int(schema["size"])
            if not 0 <= size <= FIXED_BYTES_MAX:
                raise Corrupt(f"a fixed type has {size} bytes")
        case _:
            size = _SIZES[kind]
    if size:
        code += (k.PASS, size)
    return size


def _compile_union(
    kinds: list[Any], code: _Program, requested: AvroFields, field_id: int, named: dict[str, Any]
) -> int:
    code += (k.UNION, len(kinds))
    targets = len(code)
    code += [0] * len(kinds)
    ends = []
    for branch, kind in enumerate(kinds):
        code[targets + branch] = len(code)
        _compile(kind, code, requested, field_id, named)
        code += (k.JUMP, 0)
        ends.append(len(code) - 1)
    for end in ends:
        code[end] = len(code)
    return 1


def _compile_list(schema: Any, code: _Program, requested: AvroFields, field_id: int, named: dict[str, Any]) -> None:
    if (columns := requested.keyed.get(field_id)) is not None and schema["type"] == "array":
        kinds = {part["name"]: part["type"] for part in schema["items"]["fields"]}
        code += (k.KEYED, int(kinds["value"] in ("bytes", {"type": "bytes"})), len(columns))
        for column, slot in columns.items():
            code += (column, slot)
        return
    stride, items = requested.listed.get(field_id, (0, 0))
    code += (k.REPEAT, 0, stride, items)
    end = len(code) - 3
    if schema["type"] == "map":
        code += (k.BYTES, k.NO_SLOT)
    is_array = schema["type"] == "array"
    size = _compile(schema["items" if is_array else "values"], code, requested, k.NO_SLOT, named)
    if is_array:
        check_items(size)
    code.append(k.AGAIN)
    code[end] = len(code)
