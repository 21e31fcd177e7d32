"""Values become columns; whatever the columns do not give back keeps its bytes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.unit.data.table.plain import Record, batch_of
from tests.unit.data.typed.tiny import SHAPES, tiny_codec, value

from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.parquet import write_parquet
from lakestream.data.typed.typing import Typist
from lakestream.errors import Rejected
from lakestream.schemas.columns import Column, ListColumn, primitive_of
from lakestream.schemas.growing import Known, grown, grown_key
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.typing import Misfits, Mode, OnInvalid, Part, Typed, Typing, Wanted
from lakestream.schemas.writers import Bound, Writer

FIRST = (PLAIN_COLUMNS[-1],)
"""Of a table that was typed from the beginning."""


def writer(number: int, text: str, bounds: tuple[Bound | None, ...], **more: Any) -> Writer:
    return Writer(number, "TINY", text, schema_id=number, framed=True, columns=bounds, **more)


def table(*texts: str, columns: Sequence[Column] = FIRST) -> tuple[tuple[Column, ...], tuple[Writer, ...]]:
    """Columns and writers after schemas 1, 2, … have come."""
    known: list[Known] = []
    writers, next_id = [], 16
    for number, text in enumerate(texts, 1):
        made = grown(columns, SHAPES[text], next_id, known)
        columns, next_id = made.columns, made.next_id
        known.append(Known(SHAPES[text], made.bounds))
        writers.append(writer(number, text, made.bounds))
    return tuple(columns), tuple(writers)


def rows(*values: bytes | None, keys: Sequence[bytes | None] = ()) -> Any:
    records = [
        Record(10 + place, 1000, 0, keys[place] if keys else b"k", one, ((b"h", b"v"),))
        for place, one in enumerate(values)
    ]
    (made,) = decode([Source.single("x", batch_of(records), 10)], 3)
    return made


def typist(columns: Sequence[Column], writers: Sequence[Writer], **more: Any) -> Typist:
    return Typist(columns, Typing(Typed(Mode.REGISTRY, tuple(writers)), **more), tiny_codec)


def listed(batch: Any, *paths: str) -> list[tuple[Any, ...]]:
    found = []
    for path in paths:
        top, _, inner = path.partition(".")
        column = batch.column(top)
        found.append((column.field(inner) if inner else column).to_pylist())
    return list(zip(*found, strict=True))


META = ("_stream.schema_id", "_stream.value")


def test_values_become_columns_and_lose_their_bytes() -> None:
    columns, writers = table("full")
    one = typist(columns, writers)
    (made,) = one.typed([rows(value(1, "a", 5, [0.5]), value(1, None, None, None), None)])
    assert made.schema.names == ["name", "age", "sizes", "_stream"]
    assert listed(made, "name", "age", "sizes", *META) == [
        ("a", 5, [0.5], 1, None),
        (None, None, None, 1, None),
        (None, None, None, None, None),
    ]
    assert listed(made, "_stream.offset", "_stream.key") == [(10, b"k"), (11, b"k"), (12, b"k")]
    assert made.column("_stream").field("headers").to_pylist()[0] == [{"key": "h", "value": b"v", "key_raw": None}]
    assert (one.tally.typed, one.tally.raw, one.tally.misfits()) == (2, 0, ())


def test_what_does_not_come_back_keeps_its_bytes() -> None:
    columns, writers = table("full")
    one = typist(columns, writers)
    spaced = value(1, "a", 5, None).replace(b",", b", ")
    bad, short, unframed = value(1, "a", "b", None), b"\0\0\0", b"{}"
    (made,) = one.typed([rows(spaced, bad, short, unframed, b"", value(1, "b", 1, []))])
    assert listed(made, "name", "age", *META) == [
        ("a", 5, 1, spaced),
        (None, None, 1, bad),
        (None, None, None, short),
        (None, None, None, unframed),
        (None, None, None, b""),
        ("b", 1, 1, None),
    ]
    assert (one.tally.typed, one.tally.raw) == (1, 5)
    assert one.tally.misfits() == (
        Misfits("it does not begin with a zero byte and the id of a schema", 0, 3, 12),
        Misfits("it is no such list", 1, 1, 11),
    )


def test_many_writers_in_one_batch() -> None:
    columns, writers = table("full", "named", "turned")
    (made,) = typist(columns, writers).typed(
        [
            rows(
                value(2, "x"),
                value(1, "a", 1, [1.5]),
                value(3, 7, "t"),
                None,
                b"?",
                value(1, "b", 2, None),
                value(2, "y"),
            )
        ]
    )
    assert listed(made, "name", "age", "sizes", *META) == [
        ("x", None, None, 2, None),
        ("a", 1, [1.5], 1, None),
        ("t", 7, None, 3, None),
        (None, None, None, None, None),
        (None, None, None, None, b"?"),
        ("b", 2, None, 1, None),
        ("y", None, None, 2, None),
    ]


def test_what_nobody_has_told_of_is_wanted() -> None:
    columns, writers = table("full")
    with pytest.raises(Wanted) as wanted:
        list(
            typist(columns, writers).typed([rows(value(1, "a", 1, None), value(9, "x"), value(4, "y"), value(9, "z"))])
        )
    assert {(one.part, one.schema_id) for one in wanted.value.schemas} == {(Part.VALUE, 4), (Part.VALUE, 9)}


def test_who_may_not_ask_keeps_bytes() -> None:
    columns, writers = table("full")
    one = typist(columns, writers, asks=False)
    (made,) = one.typed([rows(value(1, "a", 1, None), value(9, "x"))])
    assert listed(made, "name", *META) == [("a", 1, None), (None, 9, value(9, "x"))]
    assert one.tally.misfits() == (Misfits("schema 9 is not known", 9, 1, 11),)


def test_a_schema_that_nobody_can_read_keeps_all_bytes_and_says_why() -> None:
    columns, writers = table("full")
    unknown = Writer(5, "", "the registry has no schema 5", schema_id=5, framed=True)
    broken = writer(6, "nonsense", ())
    one = typist(columns, (*writers, unknown, broken))
    (made,) = one.typed([rows(value(5, "a"), value(6, "b"))])
    assert listed(made, "name", *META) == [(None, 5, value(5, "a")), (None, 6, value(6, "b"))]
    assert {(one.reason, one.schema_id) for one in one.tally.misfits()} == {
        ("the registry has no schema 5", 5),
        ("nonsense is no schema", 6),
    }


def test_a_part_without_a_column_keeps_bytes_only_where_it_has_something() -> None:
    columns, writers = table("full")
    lacking = writer(1, "full", (writers[0].columns[0], None, writers[0].columns[2]))
    one = typist(columns, [lacking])
    (made,) = one.typed([rows(value(1, "a", 5, None), value(1, "b", None, [2.5]))])
    assert made.schema.names == ["name", "sizes", "_stream"]
    assert listed(made, "name", "sizes", *META) == [("a", None, 1, value(1, "a", 5, None)), ("b", [2.5], 1, None)]
    assert one.tally.misfits() == (Misfits("no column fits age", 1, 1, 10),)


def test_columns_that_were_widened_renamed_and_moved() -> None:
    columns, writers = table("full")
    name, age, sizes, stream = columns
    long, double = primitive_of("long"), primitive_of("double")
    assert long is not None
    assert double is not None
    assert isinstance(sizes.type, ListColumn)
    wide = dataclasses.replace(sizes, type=ListColumn(dataclasses.replace(sizes.type.element, type=double)))
    altered = (wide, dataclasses.replace(age, type=long), dataclasses.replace(name, name="title"), stream)
    (made,) = typist(altered, writers).typed([rows(value(1, "a", 5, [0.5, 1.25]), None)])
    assert made.schema.names == ["sizes", "age", "title", "_stream"]
    assert made.schema.field("age").type == pa.int64()
    assert listed(made, "title", "age", "sizes", *META) == [("a", 5, [0.5, 1.25], 1, None), (None,) * 5]


def test_values_without_a_frame() -> None:
    columns, (first,) = table("full")
    plain = Writer(-1, "TINY", "full", columns=first.columns)
    one = Typist(columns, Typing(Typed(Mode.LATEST, (first, plain), -1)), tiny_codec)
    (made,) = one.typed([rows(value(1, "a", 5, None)[5:], None, b"?")])
    assert listed(made, "name", "age", *META) == [("a", 5, -1, None), (None,) * 4, (None, None, -1, b"?")]
    lost = Typist(columns, Typing(Typed(Mode.FIXED, (first,), 8)), tiny_codec)
    (made,) = lost.typed([rows(b"x", None)])
    assert listed(made, *META) == [(None, b"x"), (None, None)]
    assert lost.tally.misfits()[0].reason == "the topic's schema is not known"


def test_a_table_that_was_of_bytes_before() -> None:
    columns, writers = table("full", columns=PLAIN_COLUMNS)
    (made,) = typist(columns, writers).typed([rows(value(1, "a", 5, None), b"?")])
    assert made.schema.names == ["value", "name", "age", "sizes", "_stream"]
    assert listed(made, "value", "name", *META) == [(None, "a", 1, None), (None, None, None, b"?")]
    (back,) = Typist(columns, Typing(Typed(Mode.NONE, writers)), tiny_codec).typed([rows(b"x", None)])
    assert listed(back, "value", "name", *META) == [(b"x", None, None, None), (None,) * 4]


def test_bytes_again_in_a_table_without_a_column_for_them() -> None:
    columns, writers = table("full")
    (made,) = Typist(columns, Typing(Typed(Mode.NONE, writers)), tiny_codec).typed([rows(b"x", None)])
    assert listed(made, "name", *META) == [(None, None, b"x"), (None, None, None)]


def test_keys_have_columns_and_keep_their_bytes() -> None:
    columns, writers = table("full")
    made_key = grown_key(columns, SHAPES["turned"], 30)
    key_writer = writer(2, "turned", made_key.bounds)
    typing = Typing(Typed(Mode.REGISTRY, writers), Typed(Mode.REGISTRY, (key_writer,)))
    one = Typist(made_key.columns, typing, tiny_codec)
    keys = [value(2, 1, "k"), b"raw", None]
    (made,) = one.typed([rows(value(1, "a", 5, None), None, value(1, "c", None, None), keys=keys)])
    assert made.schema.names == ["name", "age", "sizes", "_key", "_stream"]
    assert listed(made, "name", "_key", "_stream.key") == [
        ("a", {"age": 1, "name": "k"}, keys[0]),
        (None, None, b"raw"),
        ("c", None, None),
    ]
    assert [one.reason[:5] for one in one.tally.misfits()] == ["key: "]
    with pytest.raises(Wanted) as wanted:
        list(one.typed([rows(None, keys=[value(8, "x")])]))
    assert [(one.part, one.schema_id) for one in wanted.value.schemas] == [(Part.KEY, 8)]


def test_stop_says_which_record_and_why() -> None:
    columns, writers = table("full")
    one = typist(columns, writers, on_invalid=OnInvalid.STOP)
    list(one.typed([rows(value(1, "a", 5, None))]))
    with pytest.raises(Rejected, match="offset 11 is not what the topic's schema says: it is no such list"):
        list(one.typed([rows(value(1, "a", 5, None), value(1, 5))]))


def test_stop_goes_on_where_only_the_table_does_not_fit() -> None:
    columns, (full,) = table("full")
    lacking = writer(1, "full", (full.columns[0], None, full.columns[2]))
    one = typist(columns, [lacking], on_invalid=OnInvalid.STOP)
    (made,) = one.typed([rows(value(1, "a", 5, None))])
    assert listed(made, "name", *META) == [("a", 1, value(1, "a", 5, None))]
    assert len(one.tally.misfits()) == 1


def test_rows_of_a_table_can_be_written() -> None:
    columns, writers = table("full", "named", columns=PLAIN_COLUMNS)
    one = typist(columns, writers)
    batches = list(one.typed([rows(value(2, "x"), value(1, "a", 1, [1.5]), None, b"?", value(1, "b", 2, None))]))
    (file,) = write_parquet(batches, str, None, one.columns)
    assert file.description.record_count == 5
    assert file.description.null_counts[1] == 5


def test_large_values_are_worked_on_alone_and_very_large_ones_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.data.typed.typing.BYTES_MAX", 100)
    monkeypatch.setattr("lakestream.data.typed.typing.VALUE_BYTES_MAX", 300)
    columns, writers = table("named")
    values = [value(1, "x" * size) for size in (10, 10, 200, 10, 400, 10, 10)]
    one = typist(columns, writers)
    made = list(one.typed([rows(*values)]))
    assert [len(batch) for batch in made] == [2, 1, 1, 1, 2]
    found = [row for batch in made for row in listed(batch, "name", *META)]
    assert found[:4] == [(("x" * size), 1, None) for size in (10, 10, 200, 10)]
    assert found[4] == (None, None, values[4])
    assert [(misfit.offset, misfit.count) for misfit in one.tally.misfits()] == [(14, 1)]


def test_many_rows_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.data.typed.typing.ROWS_MAX", 3)
    columns, writers = table("full")
    values = [value(1, str(number), number, None) if number % 3 else b"?%d" % number for number in range(10)]
    made = list(typist(columns, writers).typed([rows(*values)]))
    assert [len(batch) for batch in made] == [3, 3, 3, 1]
    found = [row for batch in made for row in listed(batch, "age", "_stream.value", "_stream.offset")]
    assert found == [(n, None, 10 + n) if n % 3 else (None, b"?%d" % n, 10 + n) for n in range(10)]


def test_a_row_has_the_columns_of_its_own_writer_only() -> None:
    """JSON is tried with one writer after the other: what those who did not give it back made of it is forgotten."""
    text, style = (
        '{"type":"object","properties":{"a":{"type":"number"}}}',
        '{"comma":"%s","colon":"%s","escapes":[],"root":{}}',
    )
    columns = (Column(16, "a", Primitive(Kind.DOUBLE)), Column(17, "b", Primitive(Kind.DOUBLE)), PLAIN_COLUMNS[-1])
    writers = (
        Writer(-1, "JSON", text, style=style % (", ", ": "), columns=(Bound(16),)),
        Writer(-2, "JSON", text, style=style % (",", ":"), columns=(Bound(17),)),
    )
    (typed,) = Typist(columns, Typing(Typed(Mode.JSON, writers))).typed([rows(b'{"a": 1.5}', b'{"a":2.5}')])
    assert listed(typed, "a", "b", "_stream.schema_id", "_stream.value") == [
        (1.5, None, -1, None),
        (None, 2.5, -2, None),
    ]
