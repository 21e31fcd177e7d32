"""Avro values to columns and back, for any schema and values: the same bytes, or none. Invalid bytes are reported."""

import io
import json
import os
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.typed.column_buffers import bytes_of, rows_of
from tests.harness.typed.reference_avro_codec import (
    NO_COLUMN,
    Branch,
    expected_columns,
    has_no_column,
    long,
    matches,
    schemas,
    values,
    written,
)

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.avro.codec import AvroCodec
from lakestream.schemas.avro.schema import AvroSchema, read_avro
from lakestream.schemas.avro.types import Array, Fixed, Map, Plain, Record, Union, is_null
from lakestream.schemas.model import Format, Source

EXAMPLES = 500 if os.environ.get("SOAK") else 40
CHECKED = settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))


@st.composite
def cases(draw: st.DrawFn) -> tuple[AvroSchema, list[Any]]:
    schema = read_avro(Source(Format.AVRO, json.dumps(draw(schemas()))))
    return schema, draw(st.lists(values(schema.type), min_size=1, max_size=4))


def located(found: Sequence[bytes | None]) -> ByteSpans:
    return ByteSpans.of(pa.array(found, pa.binary()))


@CHECKED
@given(cases())
def test_columns_match_the_values(case: tuple[AvroSchema, list[Any]]) -> None:
    schema, given_ = case
    codec = AvroCodec(schema)
    raw = [written(schema.type, value) for value in given_]
    decoded = codec.decode(located([*raw, None]))
    assert [codec.reason(int(problem)) for problem in decoded.problems if problem] == []
    *rows, null = rows_of(decoded.buffers)
    assert null is None
    for value, row in zip(given_, rows, strict=True):
        expected = expected_columns(schema.type, value)
        if not isinstance(schema.type, Record):
            row = row.get("value", NO_COLUMN)
        assert matches(row, expected if expected is not NO_COLUMN or not isinstance(schema.type, Record) else {}), (
            row,
            expected,
        )


@CHECKED
@given(cases())
def test_bytes_are_restored_or_missing(case: tuple[AvroSchema, list[Any]]) -> None:
    """With and without a conversion to Arrow columns in between."""
    schema, given_ = case
    codec = AvroCodec(schema)
    raw = [written(schema.type, value) for value in given_]
    decoded = codec.decode(located([*raw, None]))
    *found, null = bytes_of(codec.encode(decoded.buffers))
    assert null is None
    for one, two, value in zip(found, raw, given_, strict=True):
        assert one == two or is_lossy(schema, value), (one, two)
    if codec.shape.fields:
        array = to_arrow(decoded.buffers, held=decoded.held)
        again = from_arrow(array, decoded.buffers.layout)
        assert bytes_of(codec.encode(again.buffers)) == [*found, null]


def is_lossy(schema: AvroSchema, value: Any) -> bool:
    """Returns whether columns lose information, by independent rules: nothing else may be lost."""
    return _is_lossy(schema.type, value, ())


def _is_lossy(type_: Any, value: Any, open_: tuple[int, ...]) -> bool:
    match type_:
        case Record():
            if id(type_) in open_:
                return True
            return any(_is_lossy(part.type, value[part.name], (*open_, id(type_))) for part in type_.fields)
        case Array(items):
            return bool(value) and (has_no_column(items, open_) or any(_is_lossy(items, one, open_) for one in value))
        case Map(inner):
            return bool(value) and (
                has_no_column(inner, open_) or any(_is_lossy(inner, one, open_) for _, one in value)
            )
        case Union(branches):
            chosen = branches[value.place]
            if is_null(chosen):
                return False
            return has_no_column(chosen, open_) or _is_lossy(chosen, value.value, open_)
        case Fixed() | Plain():
            return _is_leaf_lossy(type_, value)
    return False


def _is_leaf_lossy(type_: Any, value: Any) -> bool:
    found = expected_columns(type_, value)
    if found is NO_COLUMN:
        return False
    name = type_.logical.name if type_.logical else ""
    if found is None or (name.endswith("nanos") and value % 1000):
        return True
    if name == "decimal" and isinstance(found, int) and type_.logical.precision <= 38 and hasattr(type_, "kind"):
        return bool(value != found.to_bytes((found + (found < 0)).bit_length() // 8 + 1, "big", signed=True))
    return name == "uuid" and isinstance(value, str) and value != value.lower()


@CHECKED
@given(cases())
def test_fastavro_reads_values_of_the_test_writer(case: tuple[AvroSchema, list[Any]]) -> None:
    """The writer of these tests writes valid Avro."""
    schema, given_ = case
    raw = fastavro.parse_schema(_without_logical_types(json.loads(schema.source.text)))
    for value in given_:
        stream = io.BytesIO(written(schema.type, value))
        assert _comparable(fastavro.schemaless_reader(stream, raw, None)) == _comparable(_unwrapped(value))
        assert stream.read() == b""


def _without_logical_types(raw: Any) -> Any:
    """Removes logical types, because fastavro converts to Python's dates, which have a smaller range."""
    match raw:
        case dict():
            return {key: _without_logical_types(value) for key, value in raw.items() if key != "logicalType"}
        case list():
            return [_without_logical_types(one) for one in raw]
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
    """Returns sorted JSON text, in which an empty map equals an empty list."""
    return json.dumps(value, default=repr, sort_keys=True).replace("{}", "[]")


@CHECKED
@given(cases(), st.randoms(use_true_random=False))
def test_invalid_values_are_reported_and_valid_ones_decoded(case: tuple[AvroSchema, list[Any]], chance: Any) -> None:
    """No crash, and no row without bytes for it; invalid values do not affect valid ones."""
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
    rows = rows_of(decoded.buffers)
    for row, problem in zip(rows, decoded.problems.tolist(), strict=True):
        if problem:
            assert row is None
            assert codec.reason(problem)
    assert rows[0] == rows[-1]
    assert rows[0] is not None
    assert (decoded.buffers.counts[1:] <= sum(map(len, all_))).all()
    again = bytes_of(codec.encode(decoded.buffers))
    twice = codec.decode(located(again))
    for row, same, one in zip(rows, rows_of(twice.buffers), again, strict=True):
        assert one is None or same == row
