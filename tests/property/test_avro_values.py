"""Avro values to columns and back, for any schema and values: the same bytes, or none. Any bytes at all are taken."""

import io
import json
import os
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.data.typed.frames import bytes_of, rows_of
from tests.unit.data.typed.plain_avro import LEFT_OUT, Branch, agrees, is_left_out, long, schemas, seen, values, written

from lakestream.data.table.located import Located
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.avro import AvroCodec
from lakestream.schemas.avro.schema import AvroSchema, read_avro
from lakestream.schemas.avro.types import Array, Fixed, Map, Plain, Record, Union, is_null
from lakestream.schemas.model import Format, Source

EXAMPLES = 500 if os.environ.get("SOAK") else 40
CHECKED = settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))


@st.composite
def cases(draw: st.DrawFn) -> tuple[AvroSchema, list[Any]]:
    schema = read_avro(Source(Format.AVRO, json.dumps(draw(schemas()))))
    return schema, draw(st.lists(values(schema.type), min_size=1, max_size=4))


def located(found: Sequence[bytes | None]) -> Located:
    return Located.of(pa.array(found, pa.binary()))


@CHECKED
@given(cases())
def test_columns_say_what_values_say(case: tuple[AvroSchema, list[Any]]) -> None:
    schema, given_ = case
    codec = AvroCodec(schema)
    raw = [written(schema.type, value) for value in given_]
    decoded = codec.decode(located([*raw, None]))
    assert [codec.reason(int(problem)) for problem in decoded.problems if problem] == []
    *rows, null = rows_of(decoded.frame)
    assert null is None
    for value, row in zip(given_, rows, strict=True):
        wanted = seen(schema.type, value)
        if not isinstance(schema.type, Record):
            row = row.get("value", LEFT_OUT)
        assert agrees(row, wanted if wanted is not LEFT_OUT or not isinstance(schema.type, Record) else {}), (
            row,
            wanted,
        )


@CHECKED
@given(cases())
def test_bytes_come_back_or_none(case: tuple[AvroSchema, list[Any]]) -> None:
    """Also when Arrow's columns were in between."""
    schema, given_ = case
    codec = AvroCodec(schema)
    raw = [written(schema.type, value) for value in given_]
    decoded = codec.decode(located([*raw, None]))
    *found, null = bytes_of(codec.encode(decoded.frame))
    assert null is None
    for one, two, value in zip(found, raw, given_, strict=True):
        assert one == two or is_lossy(schema, value), (one, two)
    if codec.shape.fields:
        array = to_arrow(decoded.frame, held=decoded.held)
        again = from_arrow(array, decoded.frame.layout)
        assert bytes_of(codec.encode(again.frame)) == [*found, null]


def is_lossy(schema: AvroSchema, value: Any) -> bool:
    """Whether columns say less than the value: by hand, so that nothing else may be lost."""
    return _is_lossy(schema.type, value, ())


def _is_lossy(type_: Any, value: Any, open_: tuple[int, ...]) -> bool:
    match type_:
        case Record():
            if id(type_) in open_:
                return True
            return any(_is_lossy(part.type, value[part.name], (*open_, id(type_))) for part in type_.fields)
        case Array(items):
            return bool(value) and (is_left_out(items, open_) or any(_is_lossy(items, one, open_) for one in value))
        case Map(inner):
            return bool(value) and (is_left_out(inner, open_) or any(_is_lossy(inner, one, open_) for _, one in value))
        case Union(branches):
            chosen = branches[value.place]
            if is_null(chosen):
                return False
            return is_left_out(chosen, open_) or _is_lossy(chosen, value.value, open_)
        case Fixed() | Plain():
            return _is_leaf_lossy(type_, value)
    return False


def _is_leaf_lossy(type_: Any, value: Any) -> bool:
    found = seen(type_, value)
    if found is LEFT_OUT:
        return False
    name = type_.logical.name if type_.logical else ""
    if found is None or (name.endswith("nanos") and value % 1000):
        return True
    if name == "decimal" and isinstance(found, int) and type_.logical.precision <= 38 and hasattr(type_, "kind"):
        return bool(value != found.to_bytes((found + (found < 0)).bit_length() // 8 + 1, "big", signed=True))
    return name == "uuid" and isinstance(value, str) and value != value.lower()


@CHECKED
@given(cases())
def test_fastavro_reads_the_same(case: tuple[AvroSchema, list[Any]]) -> None:
    """The plain writer of these tests writes Avro."""
    schema, given_ = case
    raw = fastavro.parse_schema(_without_meaning(json.loads(schema.source.text)))
    for value in given_:
        stream = io.BytesIO(written(schema.type, value))
        assert _comparable(fastavro.schemaless_reader(stream, raw, None)) == _comparable(_unwrapped(value))
        assert stream.read() == b""


def _without_meaning(raw: Any) -> Any:
    """fastavro would make Python's dates of numbers, which do not reach as far."""
    match raw:
        case dict():
            return {key: _without_meaning(value) for key, value in raw.items() if key != "logicalType"}
        case list():
            return [_without_meaning(one) for one in raw]
    return raw


def _unwrapped(value: Any) -> Any:
    match value:
        case Branch(_, inner):
            return _unwrapped(inner)
        case dict():
            return {name: _unwrapped(one) for name, one in value.items()}
        case [tuple() as first, *_] if isinstance(first[0], str):
            return {key: _unwrapped(one) for key, one in value}
        case list():
            return [_unwrapped(one) for one in value]
    return value


def _comparable(value: Any) -> Any:
    """An empty map looks like an empty list here."""
    return json.dumps(value, default=repr, sort_keys=True).replace("{}", "[]")


@CHECKED
@given(cases(), st.randoms(use_true_random=False))
def test_any_bytes_are_taken(case: tuple[AvroSchema, list[Any]], chance: Any) -> None:
    """Never a crash, never more than bytes justify; what is right is not touched by what is wrong beside it."""
    schema, given_ = case
    codec = AvroCodec(schema)
    right = written(schema.type, given_[0])
    wrong = []
    for value in given_:
        data = bytearray(written(schema.type, value))
        for _ in range(chance.randint(0, 3)):
            place = chance.randint(0, len(data))
            match chance.randint(0, 3):
                case 0:
                    data[place:place] = chance.choice([long(2**62), long(-(2**63)), b"\xff" * 12, b"\x80\x00"])
                case 1:
                    del data[place:]
                case 2 if data:
                    data[place % len(data)] = chance.randint(0, 255)
                case _:
                    data += bytes([chance.randint(0, 255)])
        wrong.append(bytes(data))
    all_ = [right, *wrong, right]
    decoded = codec.decode(located(all_))
    rows = rows_of(decoded.frame)
    for row, problem in zip(rows, decoded.problems.tolist(), strict=True):
        if problem:
            assert row is None
            assert codec.reason(problem)
    assert rows[0] == rows[-1]
    assert rows[0] is not None
    assert (decoded.frame.counts[1:] <= sum(map(len, all_))).all()
    again = bytes_of(codec.encode(decoded.frame))
    twice = codec.decode(located(again))
    for row, same, one in zip(rows, rows_of(twice.frame), again, strict=True):
        assert one is None or same == row
