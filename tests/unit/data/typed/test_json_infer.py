"""JSON without a schema: the shape and the style are found in the values."""

import ctypes
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from lakestream.data.table.located import Located
from lakestream.data.typed.json_codec import JsonCodec, json_codec, part_of_text
from lakestream.data.typed.json_infer import Learnt, described, given_back, infer, style_of, wanted
from lakestream.data.typed.json_style import read_style
from lakestream.schemas.shape import ListOf, MapOf, Struct, Type
from lakestream.schemas.writers import Writer


def located(values: Sequence[bytes | None]) -> Located:
    return Located.of(pa.array(values, pa.binary()))


def dumped(*values: Any) -> Located:
    return located([json.dumps(value).encode() for value in values])


def spelled(kind: Type) -> str:
    match kind:
        case Struct(fields):
            return "{" + ", ".join(f"{field.name} {spelled(field.type)}" for field in fields) + "}"
        case ListOf(element):
            return f"[{spelled(element)}]"
        case MapOf(_, value):
            return f"map<{spelled(value)}>"
        case _:
            return str(kind)


def learnt(values: Located, known: str = "") -> Learnt:
    found = infer(values, part_of_text(known)) if known else infer(values)
    assert found is not None
    assert json_codec(writer(found)).shape == found.shape
    assert described(part_of_text(found.text)) == found.text
    return found


def writer(found: Learnt, number: int = -1) -> Writer:
    return Writer(number, "JSON", found.text, style=found.style)


def columns(values: Located, known: str = "") -> str:
    return spelled(learnt(values, known).shape)[1:-1]


def all_come_back(values: Located) -> bool:
    return bool(given_back(values, json_codec(writer(learnt(values)))).all())


def test_columns_come_in_the_order_of_keys() -> None:
    assert columns(dumped({"b": 1, "a": "x"}, {"b": 2, "new": True, "a": "y"})) == "b long, new boolean, a string"


def test_whole_numbers_and_others_are_doubles() -> None:
    assert columns(dumped({"a": 1}, {"a": 1.5})) == "a double"
    assert columns(located([b'{"a": 18446744073709551615}'])) == "a double"


def test_several_types_are_several_columns() -> None:
    assert columns(dumped({"a": 1}, {"a": "x"}, {"a": [1]})) == "a long, a_string string, a_list [long]"


def test_what_is_nested_is_found() -> None:
    value = {"a": {"b": [{"c": 1}, {"d": [["x"]]}]}, "mixed": [1, "x"], "n": [None, 1]}
    assert columns(dumped(value)) == "a {b [{c long, d [[string]]}]}, mixed [string], n [long]"
    assert all_come_back(dumped(value))


def test_what_was_always_null_or_empty_waits_for_a_column_and_comes_back() -> None:
    values = dumped(*({"a": i, "n": None, "l": [], "o": {}, "deep": {"x": 1, "y": None}} for i in range(5)))
    assert columns(values) == "a long, deep {x long}"
    assert all_come_back(values)


def test_an_object_with_ever_new_keys_is_a_map() -> None:
    values = dumped(*({"counts": {f"user-{10 * i + j}": j for j in range(10)}} for i in range(100)))
    assert columns(values) == "counts map<long>"
    assert all_come_back(values)


def test_ever_new_keys_at_the_top_are_a_map_too() -> None:
    values = dumped(*({f"user-{10 * i + j}": j for j in range(10)} for i in range(200)))
    assert columns(values) == "value map<long>"


def test_no_more_columns_than_a_table_can_have() -> None:
    wide = {f"k{i}": {f"x{j}": {f"y{n}": n for n in range(8)} for j in range(30)} for i in range(40)}
    assert columns(dumped(wide)).count(" string") == 40
    hostile = [{f"r{i}.{n}": {f"a{i}{n}{j}": {"x": j} for j in range(40)} for n in range(20)} for i in range(200)]
    found = infer(dumped(*hostile))
    assert found is None or len(found.text) < 200_000


def test_what_is_too_much_does_not_grow_any_more() -> None:
    known = learnt(dumped({f"k{i}": i for i in range(900)})).text
    nested = {"inner": {f"a{i}": {f"b{j}": 1 for j in range(9)} for i in range(190)}}
    assert columns(dumped(nested), known).count(", ") == 899


def test_a_rare_key_is_found_among_many_values() -> None:
    values: list[dict[str, Any]] = [{"a": i} for i in range(50_000)]
    values[31_234] = {"a": 1, "rare": {"x": True}}
    assert columns(dumped(*values)) == "a long, rare {x boolean}"


@pytest.mark.parametrize("values", [[b"{}"], [b'{"a": null}'], [b"no", b"json"], [None], [], [b"null"]])
def test_nothing_is_said_where_there_is_nothing(values: list[bytes | None]) -> None:
    assert infer(located(values)) is None


def test_what_is_known_stays_and_grows() -> None:
    known = learnt(dumped({"a": 1, "b": {"x": 1}, "l": [1]})).text
    assert columns(dumped({"a": 1.5, "b": {"y": "new"}, "c": True}), known) == (
        "a long, a_double double, b {x long, y string}, l [long], c boolean"
    )
    assert columns(dumped({"l": ["x"]}), known) == "a long, b {x long}, l [long]"


def test_other_values_among_json_do_no_harm() -> None:
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
def test_every_style_gives_back_what_it_was_learnt_from(text: str) -> None:
    assert all_come_back(located([text.encode(), text.replace("7", "8").encode()]))


def test_optional_keys_come_back_missing_or_null() -> None:
    missing = [{key: 1 for place, key in enumerate("abcde") if i >> place & 1 or key == "a"} for i in range(32)]
    assert all_come_back(dumped(*missing))
    null = [{key: 1 if i >> place & 1 else None for place, key in enumerate("abcde")} for i in range(32)]
    assert all_come_back(dumped(*null))


def test_how_doubles_are_spelled_is_told_by_those_that_tell() -> None:
    prices = [b'{"p":%d.5}' % i for i in range(500)]
    assert all_come_back(located([*prices, b'{"p":68}', b'{"p":1e-7}']))
    assert all_come_back(located([*prices, b'{"p":68.0}', b'{"p":1.0E-7}']))
    known = writer(learnt(located(prices)))
    assert given_back(located([b'{"p":68}']), json_codec(known)).all(), "who writes no spaces writes no .0"
    told = writer(learnt(located([b'{"p":%d.5,"q":1.0}' % i for i in range(10)])))
    assert given_back(located([b'{"p":68.0,"q":2.5}']), json_codec(told)).all(), "but for who does elsewhere"


def test_moments_are_learnt_for_schemas_that_have_them() -> None:
    schema = json.dumps({"properties": {"t": {"type": "string", "format": "date-time"}, "n": {"type": "number"}}})
    for first, second in (
        (b'{"n":1,"t":"2024-01-31T12:00:00.000Z"}', b'{"n":2.5,"t":"2024-01-31T12:00:00.120Z"}'),
        (b'{"t": "2024-01-31T12:00:00+01:00"}', b'{"t": "2024-01-31T12:00:00.000120+01:00", "n": 1.0}'),
        (b'{"t": "2024-01-31T12:00:00Z"}', b'{"t": "2024-01-31T12:00:00.120Z"}'),
    ):
        values = located([first, second])
        assert given_back(values, JsonCodec(part_of_text(schema), read_style(style_of(values)))).all()


def test_what_is_at_even_distances_is_not_all_there_is() -> None:
    schema = json.dumps({"properties": {"t": {"type": "string", "format": "date-time"}}})
    values = located(
        [f'{{"t": "2024-01-31T12:00:00{"" if i % 20 == 0 else ".250000"}Z"}}'.encode() for i in range(20_000)]
    )
    assert given_back(values, JsonCodec(part_of_text(schema), read_style(style_of(values)))).all()


def test_a_second_program_with_another_style_gets_a_writer_of_its_own() -> None:
    python = [json.dumps({"a": i, "b": None}).encode() for i in range(100)]
    compact = located([b'{"b":"x","a":%d}' % i for i in range(50)])
    first = writer(learnt(located(python)))
    second = wanted(compact, 150, (first,))
    assert second is not None
    third = wanted(located([b'{"b":"x","a":7}']), 100, (first, writer(second, -2)))
    assert third is None
    assert given_back(compact, json_codec(writer(second))).all()


def test_a_style_that_helps_few_is_not_asked_for() -> None:
    first = writer(learnt(dumped(*({"a": i, "b": "x"} for i in range(100)))))
    odd = located([b'{ "b":"x","a" :%d}' % i for i in range(30)])
    assert wanted(odd, 100, (first,)) is None
    assert wanted(located([b'{"b":"x","a":1}'] * 3), 1_000, (first,)) is None


def test_no_more_styles_than_a_table_may_have() -> None:
    first = learnt(dumped({"a": 1, "b": "x"}))
    many = [Writer(-number, "JSON", first.text, style=first.style + " " * number) for number in range(1, 17)]
    assert wanted(located([b'{"b":"x","a":1}'] * 100), 100, many) is None


def test_what_is_new_is_asked_for_once() -> None:
    first = writer(learnt(dumped({"a": 1, "l": [1]})))
    more = wanted(dumped({"a": 1, "new": True}), 1_000_000, (first,))
    assert more is not None
    assert spelled(more.shape) == "{a long, l [long], new boolean}"
    second = writer(more, -2)
    assert wanted(dumped({"l": ["no column fits"]}, {"a": 1, "new": False}), 1_000_000, (first, second)) is None
    assert wanted(dumped({"a": 1}), 1, ()) is not None


def test_what_comes_back_has_the_right_columns() -> None:
    values = located([json.dumps({"a": i, "t": "x" * (i % 7)}).encode() for i in range(300)])
    codec = json_codec(writer(learnt(values)))
    decoded = codec.decode(values)
    start = int(decoded.frame.base[1])
    assert (decoded.frame.bits[start : start + 300] == np.arange(300)).all()
    sizes = decoded.frame.more[int(decoded.frame.base[2]) :][:300].tolist()
    first = int(decoded.frame.base[2])
    addresses = decoded.frame.bits[first : first + 300].tolist()
    assert [ctypes.string_at(address, size) for address, size in zip(addresses, sizes, strict=True)] == [
        b"x" * (i % 7) for i in range(300)
    ]
