"""Size of codec programs: about that of the schema and its columns, however often a schema uses one of its parts.

Brokers and workers build programs in threads without memory limits (docs/adr/0025-schemas-are-parsed-in-a-process.md).
"""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from lakestream.data.typed.avro import program as avro
from lakestream.data.typed.column_buffers import Layout
from lakestream.data.typed.json import program as json_program
from lakestream.data.typed.json.text_style import Style
from lakestream.data.typed.protobuf.program import Program
from lakestream.errors import Rejected
from lakestream.model import MiB
from lakestream.schemas.avro.schema import read_avro
from lakestream.schemas.column_evolution import evolve_columns
from lakestream.schemas.json.json_types import shape_of
from lakestream.schemas.json.schema import read_json_schema
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf
from lakestream.schemas.types import Field, Kind, Primitive, Struct

DEPTH, LEAVES, NAME = 9, 1_000, 20_000
"""With a name of that length on each level, the full paths of all leaves have 180 MB."""


def peak(build: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        build()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": name, "type": kind} for name, kind in fields]}


def avro_type(raw: Any) -> Any:
    return read_avro(Source(Format.AVRO, json.dumps(raw))).type


def test_avro_program_has_the_symbols_of_a_shared_enum_once() -> None:
    symbols = [f"S{number}" for number in range(10_000)]
    first = ("f0", {"type": "enum", "name": "E", "symbols": symbols})
    type_ = avro_type(record("R", first, *((f"f{number}", "E") for number in range(1, 200))))
    made = avro.program_of(type_)
    assert made.symbols == tuple(symbol.encode() for symbol in symbols)
    assert len(made.symbols_sorted) == len(symbols)


def test_avro_program_is_small_when_paths_are_long() -> None:
    nested: Any = record("R0", *((f"f{number}", "int") for number in range(LEAVES)))
    for level in range(1, DEPTH):
        nested = record(f"R{level}", (f"n{level}" + "x" * NAME, nested))
    type_ = avro_type(nested)
    assert peak(lambda: avro.program_of(type_)) < 10 * MiB


def test_avro_program_of_a_recursive_record_is_small_when_names_are_long() -> None:
    name = "R" + "x" * NAME
    leaves = ((f"f{number}", "int") for number in range(LEAVES))
    type_ = avro_type(record("T", ("r", record(name, ("again", ["null", name]), *leaves))))
    assert peak(lambda: avro.program_of(type_)) < 10 * MiB


def test_avro_program_is_rejected_when_a_large_union_is_used_often(monkeypatch: pytest.MonkeyPatch) -> None:
    branches = [record(f"E{number}") for number in range(200)]
    used = record("U", ("u", [*branches, "int", "null"]))
    type_ = avro_type(record("R", ("f0", used), *((f"f{number}", "U") for number in range(1, 500))))
    monkeypatch.setattr(avro, "CODE_MAX", 100_000)
    with pytest.raises(Rejected, match="takes more than 100000 steps"):
        avro.program_of(type_)


def test_protobuf_program_is_small_when_paths_are_long() -> None:
    fields = "".join(f"int32 f{number} = {number};" for number in range(1, LEAVES + 1))
    text = f'syntax = "proto3"; message R{DEPTH - 1} {{ R{DEPTH - 2} n{"x" * NAME} = 1; }}'
    for level in range(1, DEPTH - 1):
        text += f"message R{level} {{ R{level - 1} n{'x' * NAME} = 1; }}"
    schema = read_protobuf(Source(Format.PROTOBUF, f"{text} message R0 {{ {fields} }}"))
    layout = Layout.of(schema.shape())
    assert peak(lambda: Program.of(schema.descriptor, layout)) < 10 * MiB


def json_peak(schema: Any) -> int:
    part = read_json_schema(Source(Format.JSON, json.dumps(schema))).types
    layout = Layout.of(shape_of(part))
    return peak(lambda: json_program.program_of(part, Style(), layout))


def test_json_program_is_small_when_paths_are_long() -> None:
    nested: Any = {"type": "object", "properties": {f"f{number}": {"type": "integer"} for number in range(LEAVES)}}
    for level in range(1, DEPTH):
        nested = {"type": "object", "properties": {f"n{level}" + "x" * NAME: nested}}
    assert json_peak(nested) < 20 * MiB


def test_json_program_has_a_shared_key_once() -> None:
    used = {"type": "object", "properties": {"x" * NAME: {"type": "integer"}}}
    properties = {f"f{number}": {"$ref": "#/definitions/d"} for number in range(500)}
    assert json_peak({"definitions": {"d": used}, "type": "object", "properties": properties}) < 10 * MiB


def test_reasons_of_fields_without_a_column_are_small_when_paths_are_long() -> None:
    shapes = []
    for kind in (Kind.INT, Kind.STRING):
        shape = Struct(tuple(Field(f"f{number}", Primitive(kind)) for number in range(LEAVES)))
        for level in range(1, DEPTH):
            shape = Struct((Field(f"n{level}" + "x" * NAME, shape),))
        shapes.append(shape)
    first = evolve_columns((), shapes[0], 16)
    assert peak(lambda: evolve_columns(first.columns, shapes[1], first.next_id)) < 10 * MiB
