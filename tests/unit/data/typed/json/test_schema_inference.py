"""Inference of shape and style from JSON values without a schema."""

import ctypes
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.json.codec import JsonCodec, json_codec, part_of_text
from lakestream.data.typed.json.schema_inference import (
    InferredJson,
    infer,
    infer_next,
    json_schema_of,
    restored,
    style_of,
)
from lakestream.data.typed.json.text_style import read_style
from lakestream.schemas.types import ListOf, MapOf, Struct, Type
from lakestream.schemas.writer_schema import WriterSchema


def located(values: Sequence[bytes | None]) -> ByteSpans:
    return ByteSpans.of(pa.array(values, pa.binary()))


def dumped(*values: Any) -> ByteSpans:
    return located([json.dumps(value).encode() for value in values])


def type_text(kind: Type) -> str:
    match kind:
        case Struct(fields):
            return "{" + ", ".join(f"{field.name} {type_text(field.type)}" for field in fields) + "}"
        case ListOf(element):
            return f"[{type_text(element)}]"
        case MapOf(_, value):
            return f"map<{type_text(value)}>"
        case _:
            return str(kind)


def inferred(values: ByteSpans, known: str = "") -> InferredJson:
    found = infer(values, part_of_text(known)) if known else infer(values)
    assert found is not None
    assert json_codec(writer(found)).shape == found.shape
    assert json_schema_of(part_of_text(found.text)) == found.text
    return found


def writer(found: InferredJson, number: int = -1) -> WriterSchema:
    return WriterSchema(number, "JSON", found.text, style=found.style)


def columns(values: ByteSpans, known: str = "") -> str:
    return type_text(inferred(values, known).shape)[1:-1]


def all_restored(values: ByteSpans) -> bool:
    return bool(restored(values, json_codec(writer(inferred(values)))).all())


def test_columns_are_in_the_order_of_keys() -> None:
    assert columns(dumped({"b": 1, "a": "x"}, {"b": 2, "new": True, "a": "y"})) == "b long, new boolean, a string"


def test_integers_and_fractions_become_doubles() -> None:
    assert columns(dumped({"a": 1}, {"a": 1.5})) == "a double"
    assert columns(located([b'{"a": 18446744073709551615}'])) == "a double"


def test_key_with_several_types_gets_several_columns() -> None:
    assert columns(dumped({"a": 1}, {"a": "x"}, {"a": [1]})) == "a long, a_string string, a_list [long]"


def test_nested_fields_are_inferred() -> None:
    value = {"a": {"b": [{"c": 1}, {"d": [["x"]]}]}, "mixed": [1, "x"], "n": [None, 1]}
    assert columns(dumped(value)) == "a {b [{c long, d [[string]]}]}, mixed [string], n [long]"
    assert all_restored(dumped(value))


def test_key_gets_no_column_when_it_was_always_null_or_empty() -> None:
    values = dumped(*({"a": i, "n": None, "l": [], "o": {}, "deep": {"x": 1, "y": None}} for i in range(5)))
    assert columns(values) == "a long, deep {x long}"
    assert all_restored(values)


def test_object_becomes_a_map_when_its_keys_vary() -> None:
    values = dumped(*({"counts": {f"user-{10 * i + j}": j for j in range(10)}} for i in range(100)))
    assert columns(values) == "counts map<long>"
    assert all_restored(values)


def test_whole_value_becomes_a_map_when_its_keys_vary() -> None:
    values = dumped(*({f"user-{10 * i + j}": j for j in range(10)} for i in range(200)))
    assert columns(values) == "value map<long>"


def test_inferred_columns_are_bounded() -> None:
    wide = {f"k{i}": {f"x{j}": {f"y{n}": n for n in range(8)} for j in range(30)} for i in range(40)}
    assert columns(dumped(wide)).count(" string") == 40
    hostile = [{f"r{i}.{n}": {f"a{i}{n}{j}": {"x": j} for j in range(40)} for n in range(20)} for i in range(200)]
    found = infer(dumped(*hostile))
    assert found is None or len(found.text) < 200_000


def test_types_are_not_widened_beyond_the_limit() -> None:
    known = inferred(dumped({f"k{i}": i for i in range(900)})).text
    nested = {"inner": {f"a{i}": {f"b{j}": 1 for j in range(9)} for i in range(190)}}
    assert columns(dumped(nested), known).count(", ") == 899


def test_rare_key_is_found_among_many_values() -> None:
    values: list[dict[str, Any]] = [{"a": i} for i in range(50_000)]
    values[31_234] = {"a": 1, "rare": {"x": True}}
    assert columns(dumped(*values)) == "a long, rare {x boolean}"


@pytest.mark.parametrize("values", [[b"{}"], [b'{"a": null}'], [b"no", b"json"], [None], [], [b"null"]])
def test_nothing_is_inferred_without_a_value(values: list[bytes | None]) -> None:
    assert infer(located(values)) is None


def test_known_types_stay_and_are_widened() -> None:
    known = inferred(dumped({"a": 1, "b": {"x": 1}, "l": [1]})).text
    assert columns(dumped({"a": 1.5, "b": {"y": "new"}, "c": True}), known) == (
        "a long, a_double double, b {x long, y string}, l [long], c boolean"
    )
    assert columns(dumped({"l": ["x"]}), known) == "a long, b {x long}, l [long]"


def test_values_that_are_not_json_objects_are_ignored() -> None:
    assert columns(located([b"\xff", b"{", None, b'{"a": 1}', b"[" * 100_000])) == "a long"


RECORD = {"id": 7, "name": "Zoë <b>", "price": 12.5, "whole": 3.0, "tags": ["a", "ü"], "gone": None, "path": "a/b"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORD),
        json.dumps(RECORD, ensure_ascii=False),
        json.dumps(RECORD, separators=(",", ":")),
        json.dumps(RECORD, separators=(",", ":"), ensure_ascii=False),
        json.dumps(RECORD, separators=(", ", ":")),
        '{"id":7,"name":"Zoë <b>","price":12.5,"whole":3,"big":1e+21,"tags":["a","ü"]}',
        '{"id":7,"name":"Zo\\u00EB","big":1.25E10,"small":1.0E-5,"x":1.0}',
        '{"id":7,"name":"\\u003cb\\u003e","x":1e-7}',
        '{"id":7,"name":"a\\/b"}',
    ],
)
def test_inferred_style_restores_its_samples(text: str) -> None:
    assert all_restored(located([text.encode(), text.replace("7", "8").encode()]))


def test_optional_keys_are_restored_as_missing_or_null() -> None:
    missing = [{key: 1 for place, key in enumerate("abcde") if i >> place & 1 or key == "a"} for i in range(32)]
    assert all_restored(dumped(*missing))
    null = [{key: 1 if i >> place & 1 else None for place, key in enumerate("abcde")} for i in range(32)]
    assert all_restored(dumped(*null))


def test_double_format_is_inferred_from_distinctive_doubles() -> None:
    prices = [b'{"p":%d.5}' % i for i in range(500)]
    assert all_restored(located([*prices, b'{"p":68}', b'{"p":1e-7}']))
    assert all_restored(located([*prices, b'{"p":68.0}', b'{"p":1.0E-7}']))
    known = writer(inferred(located(prices)))
    assert restored(located([b'{"p":68}']), json_codec(known)).all(), "programs that write no spaces write no .0"
    with_point = writer(inferred(located([b'{"p":%d.5,"q":1.0}' % i for i in range(10)])))
    assert restored(located([b'{"p":68.0,"q":2.5}']), json_codec(with_point)).all(), "unless another key has .0"


def test_timestamp_format_is_inferred_for_schemas_with_timestamps() -> None:
    schema = json.dumps({"properties": {"t": {"type": "string", "format": "date-time"}, "n": {"type": "number"}}})
    for first, second in (
        (b'{"n":1,"t":"2024-01-31T12:00:00.000Z"}', b'{"n":2.5,"t":"2024-01-31T12:00:00.120Z"}'),
        (b'{"t": "2024-01-31T12:00:00+01:00"}', b'{"t": "2024-01-31T12:00:00.000120+01:00", "n": 1.0}'),
        (b'{"t": "2024-01-31T12:00:00Z"}', b'{"t": "2024-01-31T12:00:00.120Z"}'),
    ):
        values = located([first, second])
        assert restored(values, JsonCodec(part_of_text(schema), read_style(style_of(values)))).all()


def test_samples_cover_values_when_formats_repeat_regularly() -> None:
    schema = json.dumps({"properties": {"t": {"type": "string", "format": "date-time"}}})
    values = located(
        [f'{{"t": "2024-01-31T12:00:00{"" if i % 20 == 0 else ".250000"}Z"}}'.encode() for i in range(20_000)]
    )
    assert restored(values, JsonCodec(part_of_text(schema), read_style(style_of(values)))).all()


def test_second_style_gets_its_own_writer_schema() -> None:
    python = [json.dumps({"a": i, "b": None}).encode() for i in range(100)]
    compact = located([b'{"b":"x","a":%d}' % i for i in range(50)])
    first = writer(inferred(located(python)))
    second = infer_next(compact, 150, (first,))
    assert second is not None
    third = infer_next(located([b'{"b":"x","a":7}']), 100, (first, writer(second, -2)))
    assert third is None
    assert restored(compact, json_codec(writer(second))).all()


def test_style_is_not_inferred_when_it_restores_few_values() -> None:
    first = writer(inferred(dumped(*({"a": i, "b": "x"} for i in range(100)))))
    odd = located([b'{ "b":"x","a" :%d}' % i for i in range(30)])
    assert infer_next(odd, 100, (first,)) is None
    assert infer_next(located([b'{"b":"x","a":1}'] * 3), 1_000, (first,)) is None


def test_number_of_styles_is_bounded() -> None:
    first = inferred(dumped({"a": 1, "b": "x"}))
    many = [WriterSchema(-number, "JSON", first.text, style=first.style + " " * number) for number in range(1, 17)]
    assert infer_next(located([b'{"b":"x","a":1}'] * 100), 100, many) is None


def test_new_key_is_inferred_once() -> None:
    first = writer(inferred(dumped({"a": 1, "l": [1]})))
    more = infer_next(dumped({"a": 1, "new": True}), 1_000_000, (first,))
    assert more is not None
    assert type_text(more.shape) == "{a long, l [long], new boolean}"
    second = writer(more, -2)
    assert infer_next(dumped({"l": ["no column fits"]}, {"a": 1, "new": False}), 1_000_000, (first, second)) is None
    assert infer_next(dumped({"a": 1}), 1, ()) is not None


def test_decoded_columns_have_the_values() -> None:
    values = located([json.dumps({"a": i, "t": "x" * (i % 7)}).encode() for i in range(300)])
    codec = json_codec(writer(inferred(values)))
    decoded = codec.decode(values)
    start = int(decoded.buffers.base[1])
    assert (decoded.buffers.bits[start : start + 300] == np.arange(300)).all()
    sizes = decoded.buffers.more[int(decoded.buffers.base[2]) :][:300].tolist()
    first = int(decoded.buffers.base[2])
    addresses = decoded.buffers.bits[first : first + 300].tolist()
    assert [ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True)] == [
        b"x" * (i % 7) for i in range(300)
    ]
