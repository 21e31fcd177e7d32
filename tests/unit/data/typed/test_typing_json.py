"""JSON without a schema: shapes and styles are asked for as they come, and every value comes back."""

import json
from collections.abc import Sequence
from typing import Any

from tests.unit.data.table.plain import Record, batch_of
from tests.unit.data.typed.tiny import bytes_of

from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.located import Located, numbers
from lakestream.data.typed.restoring import TypedRows, restored
from lakestream.data.typed.typing import Typist
from lakestream.schemas.columns import Column
from lakestream.schemas.growing import Known, grown
from lakestream.schemas.typing import Misfits, Mode, Typed, Typing, Wanted
from lakestream.schemas.writers import Writer


class Table:
    """What a driver does when workers want something."""

    def __init__(self) -> None:
        self.columns: tuple[Column, ...] = (PLAIN_COLUMNS[-1],)
        self.writers: list[Writer] = []
        self.known: list[Known] = []
        self.next_id = 16
        self.asked = 0

    def type(self, values: Sequence[bytes | None]) -> tuple[Typist, list[Any]]:
        records = [Record(at, 1000, 0, b"k", one) for at, one in enumerate(values)]
        while True:
            typist = Typist(self.columns, Typing(Typed(Mode.JSON, tuple(self.writers))))
            try:
                return typist, list(typist.typed(decode([Source.single("x", batch_of(records), 0)], 0)))
            except Wanted as wanted:
                self.asked += 1
                for one in wanted.inferred:
                    made = grown(self.columns, one.shape, self.next_id, self.known)
                    self.columns, self.next_id = made.columns, made.next_id
                    self.known.append(Known(one.shape, made.bounds))
                    number = -1 - len(self.writers)
                    self.writers.append(Writer(number, one.format, one.text, style=one.style, columns=made.bounds))

    def back(self, batches: Sequence[Any]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for batch in batches:
            stream = batch.column("_stream")
            columns = {
                int(field.metadata[b"PARQUET:field_id"]): batch.column(place)
                for place, field in enumerate(batch.schema)
            }
            facts = (numbers(stream.field("offset"), -1), numbers(stream.field("schema_id"), 0))
            rows = TypedRows(columns, *facts, Located.of(stream.field("value")), None)
            found += bytes_of(restored(rows, {one.number: one for one in self.writers}, "table"))
        return found


def test_columns_come_with_the_values() -> None:
    table = Table()
    values = [json.dumps({"id": at, "name": f"n{at}", "tags": ["a"] * (at % 3)}).encode() for at in range(100)]
    typist, batches = table.type([*values, None])
    assert (typist.tally.typed, typist.tally.raw) == (100, 0)
    assert batches[0].schema.names == ["id", "name", "tags", "_stream"]
    assert batches[0].column("name").to_pylist() == [*(f"n{at}" for at in range(100)), None]
    assert table.back(batches) == [*values, None]
    asked = table.asked
    table.type(values)
    assert table.asked == asked, "in steady state nobody asks anything"


def test_new_fields_other_styles_and_what_is_no_json() -> None:
    table = Table()
    first = [json.dumps({"id": at, "name": f"n{at}"}).encode() for at in range(50)]
    table.type(first)
    compact = [json.dumps({"id": at, "more": {"x": at / 2}}, separators=(",", ":")).encode() for at in range(50)]
    odd = [b"{", b"", b'{ "id":1,   "name":"spaced"}', None, b"\xff"]
    typist, batches = table.type([*first, *compact, *odd])
    assert table.back(batches) == [*first, *compact, *odd]
    (batch,) = batches
    assert {"id", "name", "more"} <= set(batch.schema.names)
    assert batch.column("more").to_pylist()[60] == {"x": 5.0}
    raw = batch.column("_stream").field("value").to_pylist()
    assert raw[:100] == [None] * 100
    assert raw[100:] == odd
    assert sum(one.count for one in typist.tally.misfits()) == 3


def test_nothing_but_garbage() -> None:
    table = Table()
    typist, batches = table.type([b"garbage", None, b"\0\1"])
    assert batches[0].schema.names == ["_stream"]
    assert table.back(batches) == [b"garbage", None, b"\0\1"]
    assert typist.tally.misfits() == (Misfits("it is no JSON that could have columns", 0, 2, 0),)
