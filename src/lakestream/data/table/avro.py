"""Records of Avro files, a few fields of each: how manifests are read when there are very many files in them.

    container (catalog/avro_file.py)  →  program of its schema  →  walked (kernels_avro.py)  →  a row of slots a record

Whatever the schema has besides is passed over, so files of every writer and version of the format are read. What is
damaged is found, never followed. Blocks: all of this runs in threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.avro_file import BAD_BYTES, damaged, opened
from lakestream.data.table import kernels_avro as k
from lakestream.data.table.compiled import Longs
from lakestream.errors import Corrupt
from lakestream.model import Buffer

_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_WRONG: Final = {k.CUT_OFF: "is cut off", k.WRONG: "is not what the file's schema says"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Fields by their Iceberg ids, and the slot for each; bytes take two."""

    slots: int
    fields: Mapping[int, int] = field(default_factory=dict)
    keyed: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Of a map from column ids, by its own field id: which columns."""
    listed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Of a list, by its field id: how many slots an item takes, and how many items are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """All records of a file: the slots of each, and the bytes that these point into."""

    location: str
    data: Buffer
    rows: Longs

    def longs(self, slot: int, null: int) -> Longs:
        found = self.rows[:, slot]
        return np.where(found == k.NOTHING, null, found)

    def text(self, slot: int, row: int) -> str | None:
        start, size = self.rows[row, slot], self.rows[row, slot + 1]
        if start == k.NOTHING:
            return None
        try:
            return bytes(self.data[start : start + size]).decode()
        except UnicodeDecodeError as error:
            raise damaged(self.location, error) from error

    def numbers(self, slot: int, null: int) -> Longs:
        """Bytes that are one number, as Iceberg stores bounds: little-endian, 4 or 8 of them."""
        start, size = self.rows[:, slot], self.rows[:, slot + 1]
        found = np.full(len(start), null, np.int64)
        data = np.frombuffer(self.data, np.uint8)
        for width, kind in ((4, "<i4"), (8, "<i8")):
            fits = size == width
            if fits.any():
                places = start[fits][:, None] + np.arange(width)
                found[fits] = np.ascontiguousarray(data[places]).view(kind)[:, 0]
        return found


def read(body: Buffer, wanted: Wanted, location: str) -> Found:
    """Corrupt: it names the file."""
    file = opened(bytes(body), location)
    try:
        code = _program(file.schema, wanted)
    except BAD_BYTES as error:
        raise damaged(location, error) from error
    # Some writers make a block of every record: all are walked together.
    data = file.blocks[0][1] if len(file.blocks) == 1 else b"".join(data for _, data in file.blocks)
    return _walked(data, sum(count for count, _ in file.blocks), code, wanted.slots, location)


def _walked(data: Buffer, count: int, code: Longs, slots: int, name: str) -> Found:
    rows = np.full((count, slots), k.NOTHING, np.int64)
    wrong, row = k.walk(pa.py_buffer(data).address, len(data), code, rows)
    if wrong:
        raise Corrupt(f"{name} is damaged: entry {row} {_WRONG[wrong]}")
    return Found(name, data, rows)


def _program(schema: Any, wanted: Wanted) -> Longs:
    code: list[int] = []
    _compile(schema, code, wanted, k.NO_SLOT, {})
    code.append(k.END)
    return np.array(code, np.int64)


def _compile(schema: Any, code: list[int], wanted: Wanted, field_id: int, named: dict[str, Any]) -> None:
    """The steps that pass over one value of a type, and keep what is wanted of it."""
    slot = wanted.fields.get(field_id, k.NO_SLOT)
    if isinstance(schema, list):
        return _compile_union(schema, code, wanted, field_id, named)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _compile(kind, code, wanted, field_id, named)
    if "name" in schema:
        named[schema["name"]] = schema
    match kind:
        case "record":
            for part in schema["fields"]:
                _compile(part["type"], code, wanted, part.get("field-id", k.NO_SLOT), named)
        case "array" | "map":
            _compile_list(schema, code, wanted, field_id, named)
        case "int" | "long" | "enum":
            code += (k.LONG, slot)
        case "bytes" | "string":
            code += (k.BYTES, slot)
        case "fixed":
            code += (k.PASS, schema["size"])
        case _:
            code += (k.PASS, _SIZES[kind])


def _compile_union(kinds: list[Any], code: list[int], wanted: Wanted, field_id: int, named: dict[str, Any]) -> None:
    code += (k.UNION, len(kinds))
    targets = len(code)
    code += [0] * len(kinds)
    ends = []
    for branch, kind in enumerate(kinds):
        code[targets + branch] = len(code)
        _compile(kind, code, wanted, field_id, named)
        code += (k.JUMP, 0)
        ends.append(len(code) - 1)
    for end in ends:
        code[end] = len(code)


def _compile_list(schema: Any, code: list[int], wanted: Wanted, field_id: int, named: dict[str, Any]) -> None:
    if (columns := wanted.keyed.get(field_id)) is not None and schema["type"] == "array":
        kinds = {part["name"]: part["type"] for part in schema["items"]["fields"]}
        code += (k.KEYED, int(kinds["value"] == "bytes"), len(columns))
        for column, slot in columns.items():
            code += (column, slot)
        return
    stride, items = wanted.listed.get(field_id, (0, 0))
    code += (k.REPEAT, 0, stride, items)
    end = len(code) - 3
    if schema["type"] == "map":
        code += (k.BYTES, k.NO_SLOT)
    _compile(schema["items" if schema["type"] == "array" else "values"], code, wanted, k.NO_SLOT, named)
    code.append(k.AGAIN)
    code[end] = len(code)
