"""JSON values to columns and back: parsed or rejected as by Python, and restored byte for byte or kept as bytes."""

import ctypes
import json
import os
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.json.codec import JsonCodec, json_codec, part_of_text
from lakestream.data.typed.json.schema_inference import infer
from lakestream.data.typed.json.text_style import Style
from lakestream.schemas.types import ListOf, MapOf, Struct, Type
from lakestream.schemas.writer_schema import WriterSchema

EXAMPLES = 500 if os.environ.get("SOAK") else 30

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
KEYS = st.one_of(st.sampled_from(["a", "b", "c", "id", "a.b", "ä", ""]), TEXTS)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-100, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=12,
)
RECORDS = st.lists(st.dictionaries(KEYS, VALUES, max_size=6), min_size=1, max_size=8)


def located(values: list[bytes]) -> ByteSpans:
    return ByteSpans.of(pa.array(values, pa.binary()))


def texts(found: ByteSpans) -> list[bytes | None]:
    rows = zip(found.address.tolist(), found.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in rows]


def styled(value: Any, compact: bool, ascii_only: bool) -> bytes:
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode()


def matches(value: Any, column: Any, kind: Type) -> bool:
    """Returns whether a column matches the value. Null matches always: the value may be absent or of another type."""
    if column is None:
        return True
    match kind:
        case Struct(fields) if isinstance(value, dict):
            names = {field.name: field.type for field in fields}
            plain = {key: inner for key, inner in value.items() if key in names}
            return all(matches(inner, column[key], names[key]) for key, inner in plain.items())
        case ListOf(element):
            pairs = zip(value, column, strict=True) if isinstance(value, list) else ()
            return isinstance(value, list) and all(matches(one, other, element) for one, other in pairs)
        case MapOf(_, inner):
            return [key for key, _ in column] == list(value) and all(
                matches(value[key], found, inner) for key, found in column
            )
        case _:
            if isinstance(column, float):
                return type(value) in (int, float) and column == float(value)
            return bool(column == value) or _is_raw(column, value)


def _is_raw(column: Any, value: Any) -> bool:
    """Returns whether a column of any type has the value's JSON text."""
    try:
        return isinstance(column, str) and bool(json.loads(column) == value)
    except ValueError:
        return False


@settings(max_examples=EXAMPLES)
@given(RECORDS, st.booleans(), st.booleans())
def test_inferred_columns_match_the_values(records: list[Any], compact: bool, ascii_only: bool) -> None:
    values = located([styled(one, compact, ascii_only) for one in records])
    inferred = infer(values)
    if inferred is None:
        return
    codec = json_codec(WriterSchema(-1, "JSON", inferred.text, style=inferred.style))
    assert codec.shape == inferred.shape
    decoded = codec.decode(values)
    assert not decoded.problems.any() or all(codec.reason(int(one)) for one in decoded.problems if one)
    columns = to_arrow(decoded.buffers, held=(values, *decoded.held))
    for value, row, problem in zip(records, columns.to_pylist(), decoded.problems.tolist(), strict=True):
        if not problem and row is not None and not (set(row) == {"value"} and "value" not in value):
            assert matches(value, row, codec.shape), (value, row)
    back = from_arrow(columns, codec.layout)
    assert texts(codec.encode(back.buffers)) == texts(codec.encode(decoded.buffers))


@settings(max_examples=EXAMPLES)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_value_is_restored_with_the_schema_inferred_from_it(value: Any, compact: bool, ascii_only: bool) -> None:
    text = styled(value, compact, ascii_only)
    values = located([text])
    inferred = infer(values)
    if inferred is None:
        return
    codec = json_codec(WriterSchema(-1, "JSON", inferred.text, style=inferred.style))
    decoded = codec.decode(values)
    if not decoded.problems.any():
        (back,) = texts(codec.encode(decoded.buffers))
        assert back == text or json.loads(back or b"{}").keys() <= value.keys()


@settings(max_examples=5 * EXAMPLES)
@given(
    VALUES,
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from(b'{}[]":,\\u0e.-+ tnf\x00\xff\xc3\xa4')), max_size=3),
)
def test_text_is_accepted_exactly_if_python_accepts_it(value: Any, edits: list[tuple[int, int]]) -> None:
    text = bytearray(styled(value, False, False))
    for position, byte in edits:
        text[position % len(text)] = byte
    codec = JsonCodec(part_of_text("true"), Style())
    values = located([bytes(text)])
    decoded = codec.decode(values)
    assert (decoded.problems[0] == 0) == _is_json(bytes(text))
    if decoded.problems[0] == 0 and bytes(text).strip() != b"null":
        assert texts(codec.encode(decoded.buffers)) == [bytes(text).strip(b" \t\n\r")]


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _reject_constant(word: str) -> Any:
    raise ValueError(word)


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.sampled_from(
            [
                {"type": "string"},
                {"type": "integer"},
                {"type": "number"},
                {"type": "boolean"},
                {"type": ["integer", "string"]},
                {"type": "string", "format": "date-time"},
                {"type": "string", "format": "uuid"},
                {},
                {"enum": ["a", 1]},
                {"type": "number", "connect.type": "float32"},
                {"type": "string", "connect.type": "bytes"},
                {
                    "type": "number",
                    "title": "org.apache.kafka.connect.data.Decimal",
                    "connect.type": "bytes",
                    "connect.parameters": {"scale": "3", "connect.decimal.precision": "12"},
                },
            ]
        )
    ),
    lambda inner: st.one_of(
        st.dictionaries(KEYS, inner, min_size=1, max_size=4).map(lambda keys: {"type": "object", "properties": keys}),
        inner.map(lambda one: {"type": "array", "items": one}),
        inner.map(lambda one: {"type": "object", "additionalProperties": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"oneOf": parts}),
    ),
    max_leaves=8,
)


@settings(max_examples=2 * EXAMPLES)
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=4))
def test_columns_are_valid_for_any_value_and_any_schema(schema: Any, drawn: list[Any]) -> None:
    codec = JsonCodec(part_of_text(json.dumps(schema)), Style())
    values = located([json.dumps(value).encode() for value in drawn])
    decoded = codec.decode(values)
    columns = to_arrow(decoded.buffers, held=(values, *decoded.held))
    columns.validate(full=True)
    back = from_arrow(columns, codec.layout)
    again = texts(codec.encode(back.buffers))
    assert again == texts(codec.encode(decoded.buffers))
    for text, problem in zip(again, decoded.problems.tolist(), strict=True):
        assert text is None or problem == 0
        assert problem == 0 or codec.reason(problem)
        if text is not None:
            json.loads(text)
