"""Codecs count the slots of lists before they allocate memory: an element of a byte may have thousands of columns."""

import json

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.typed.toy_format import bytes_of
from tests.harness.typed.wide_lists import FORMATS, value_of, writer_of

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed import column_buffers
from lakestream.data.typed.codec import TOO_MANY, Codec
from lakestream.data.typed.format_codecs import codec_of
from lakestream.schemas.model import Format
from lakestream.schemas.writer_schema import WriterSchema

FIELDS = 9
FITTING, TOO_LONG = 100, 101
"""Elements of a list, if a value has at most 1,000 slots: each has nine fields and itself."""


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 1_000)


def spans(*values: bytes | None) -> ByteSpans:
    return ByteSpans.of(pa.array(values, pa.binary()))


def decoded_parts(codec: Codec, values: list[bytes | None]) -> list[tuple[list[int], list[bytes | None]]]:
    """Returns problems and restored values of each part in which the values are decoded."""
    parts = []
    while values:
        decoded = codec.decode(spans(*values))
        assert decoded.buffers.counts[1] * (FIELDS + 1) == decoded.slots <= 1_000
        parts.append((decoded.problems.tolist(), bytes_of(codec.encode(decoded.buffers))))
        values = values[len(decoded.problems) :]
    return parts


@pytest.mark.parametrize("kind", FORMATS)
def test_value_with_too_many_slots_has_a_problem_and_no_columns(kind: Format) -> None:
    codec = codec_of(writer_of(kind, FIELDS))
    few, most, more, bomb = (value_of(kind, items) for items in (2, FITTING - 4, TOO_LONG, 100_000))
    values = [few, more, None, bomb, most, few, b"\xff"]
    for _ in range(3):  # estimates of the last call change the next one
        ((problems, restored),) = decoded_parts(codec, values)
        assert problems[:-1] == [0, TOO_MANY, 0, TOO_MANY, 0, 0]
        assert problems[-1] not in (0, TOO_MANY)
        assert restored == [few, None, None, None, most, few, None]
        assert codec.problems(spans(*values)).tolist() == problems
    assert "elements times columns" in codec.reason(TOO_MANY)


@pytest.mark.parametrize("kind", FORMATS)
def test_lists_are_counted_when_they_are_longer_than_in_the_last_values(
    kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 100_000)
    codec = codec_of(writer_of(kind, FIELDS))
    largest, bomb = value_of(kind, 10_000), value_of(kind, 10_001)
    for _ in range(2):
        decoded = codec.decode(spans(bomb, b"\xff", largest, bomb, None, largest))
        assert decoded.problems[[0, 2, 3, 4]].tolist() == [TOO_MANY, 0, TOO_MANY, 0]
        assert bytes_of(codec.encode(decoded.buffers)) == [None, None, largest, None, None]
        codec.decode(spans(value_of(kind, 1)))


@pytest.mark.parametrize("kind", FORMATS)
def test_values_that_have_too_many_slots_together_are_decoded_in_parts(kind: Format) -> None:
    codec = codec_of(writer_of(kind, FIELDS))
    values: list[bytes | None] = [value_of(kind, items) for items in (30, 60, 10, 1, FITTING, 1, 50, 50)]
    parts = decoded_parts(codec, values)
    assert [len(problems) for problems, _ in parts] == [3, 1, 1, 2, 1]
    assert not any(problem for problems, _ in parts for problem in problems)
    assert [value for _, restored in parts for value in restored] == values
    assert not codec.problems(spans(*values)).any()


@pytest.mark.parametrize("kind", FORMATS)
def test_no_value_is_decoded_when_the_first_one_does_not_fit(kind: Format) -> None:
    decoded = codec_of(writer_of(kind, FIELDS)).decode(spans(value_of(kind, 10), value_of(kind, 1)), 99)
    assert (len(decoded.problems), len(decoded.buffers)) == (0, 0)


@pytest.mark.parametrize("kind", FORMATS)
def test_values_with_many_columns_are_decoded_in_parts(kind: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 8)
    codec = codec_of(writer_of(kind, FIELDS))
    values = [value_of(kind, 0)] * 9
    decoded = codec.decode(spans(*values))
    assert len(decoded.problems) == 4
    assert bytes_of(codec.encode(decoded.buffers)) == values[:4]
    assert codec.problems(spans(*values)).tolist() == [0] * 9


SYMBOL = "S" * 3_200
AVRO_ENUMS = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": {"type": "enum", "name": "E", "symbols": [SYMBOL, "T"]}},
        {"name": "b", "type": {"type": "array", "items": "E"}},
    ],
}
PROTOBUF_ENUMS = f'syntax = "proto3"; enum E {{ {SYMBOL} = 0; T = 1; }} message R {{ E a = 1; repeated E b = 2; }}'


@pytest.mark.parametrize(
    ("writer", "one"),
    [
        (WriterSchema(1, "AVRO", json.dumps(AVRO_ENUMS)), lambda items: b"\0" + value_of(Format.AVRO, items)),
        (WriterSchema(1, "PROTOBUF", PROTOBUF_ENUMS), lambda items: b"\x12" + bytes([items]) + b"\0" * items),
    ],
)
def test_long_symbols_count_as_slots(writer: WriterSchema, one: object) -> None:
    assert callable(one)
    codec = codec_of(writer)
    small, large = one(3), one(9)
    assert codec.problems(spans(small, large)).tolist() == [0, TOO_MANY]
    assert len(codec.decode(spans(small, small, small, small)).problems) == 2, "a hundred slots for each symbol"


def test_long_keys_of_json_count_as_slots() -> None:
    """An object without values is written with all keys if the style writes nulls."""
    properties = {f"{number}" * 3_200: {"type": "integer"} for number in range(5)}
    items = {"type": "object", "properties": properties}
    text = json.dumps({"type": "object", "properties": {"l": {"type": "array", "items": items}}})
    codec = codec_of(WriterSchema(1, "JSON", text))
    assert codec.problems(spans(value_of(Format.JSON, 1), value_of(Format.JSON, 2))).tolist() == [0, TOO_MANY]


def test_flat_records_with_long_symbols_are_decoded_in_parts() -> None:
    flat = {"type": "record", "name": "R", "fields": AVRO_ENUMS["fields"][:1]}
    codec = codec_of(WriterSchema(1, "AVRO", json.dumps(flat)))
    assert len(codec.decode(spans(*[b"\0"] * 30)).problems) == 10


def test_large_messages_with_a_duplicate_field_are_not_merged() -> None:
    """Google's library takes memory for all fields of a message, however few it has."""
    codec = codec_of(writer_of(Format.PROTOBUF, FIELDS))
    last_again = b"\x0a\x04\x08\x01\x08\x02"
    large = last_again + value_of(Format.PROTOBUF, 150)
    problems = codec.decode(spans(last_again, large)).problems
    assert problems[0] == 0
    assert "too large to be merged" in codec.reason(int(problems[1]))
    assert codec.problems(spans(last_again, large)).tolist() == problems.tolist()
