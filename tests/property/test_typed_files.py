"""Values of any schemas, mixed in one log, through typed columns into a Parquet file and back: always the same bytes.

Also when the file was written anew by maintenance, in the columns that the table has grown since.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.data.table.plain import Record, batch_of
from tests.unit.data.typed.plain_avro import schemas, values, written
from tests.unit.data.typed.tiny import bytes_of

from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.conform import conformed
from lakestream.data.table.decode import decode
from lakestream.data.table.footers import read_footer
from lakestream.data.table.groups import Part, read_batches, read_rows, record_columns, sorted_rows
from lakestream.data.table.heads import Source as Bytes
from lakestream.data.table.parquet import ParquetSettings, write_parquet
from lakestream.data.typed.typing import Typist
from lakestream.model import Span
from lakestream.pipeline.maintenance.files import laid_out
from lakestream.schemas.avro.schema import AvroSchema, read_avro
from lakestream.schemas.columns import Column
from lakestream.schemas.growing import Known, grown
from lakestream.schemas.model import Format, Source
from lakestream.schemas.typing import Mode, Typed, Typing
from lakestream.schemas.writers import Writer

EXAMPLES = 400 if os.environ.get("SOAK") else 25
ALL = Span(0, 2**62)


class Table:
    def __init__(self) -> None:
        self.columns: tuple[Column, ...] = (PLAIN_COLUMNS[-1],)
        self.writers: dict[int, Writer] = {}
        self._known: list[Known] = []
        self._next_id = 16

    def learn(self, schema: AvroSchema) -> int:
        number, shape = len(self.writers) + 1, schema.shape()
        made = grown(self.columns, shape, self._next_id, self._known)
        self.columns, self._next_id = made.columns, made.next_id
        self._known.append(Known(shape, made.bounds))
        self.writers[number] = Writer(
            number, "AVRO", schema.source.text, schema_id=number, framed=True, columns=made.bounds
        )
        return number

    def file(self, produced: Sequence[bytes | None]) -> tuple[memoryview, tuple[Column, ...]]:
        records = [Record(at, 1000, 0, b"k", one) for at, one in enumerate(produced)]
        typist = Typist(self.columns, Typing(Typed(Mode.REGISTRY, tuple(self.writers.values())), asks=False))
        rows = typist.typed(decode([Bytes.single("x", batch_of(records), 0)], 0))
        small = ParquetSettings(group_bytes_max=500)
        (made,) = write_parquet(rows, str, small, typist.columns)
        assert isinstance(made.body, memoryview)
        return made.body, typist.columns


def values_in(body: memoryview, writers: Mapping[int, Writer]) -> list[bytes | None]:
    footer = read_footer(body, len(body), "file")
    rows = []
    for group in footer.groups:
        part = Part(footer, group, None, None, is_typed=True)
        rows += read_rows(part, record_columns(part, writers), [Span(0, len(body))], [body], ALL, writers)
    return bytes_of(sorted_rows(rows).values)


def anew(body: memoryview, columns: tuple[Column, ...]) -> memoryview:
    """As a merge writes it."""
    footer = read_footer(body, len(body), "file")
    batches: list[Any] = []
    for group in footer.groups:
        part = Part(footer, group, None, None, is_typed=True)
        wanted = {number: path for number, path in footer.paths.items() if len(path) == 1}
        batches += [
            conformed(there, columns) for _, there, _ in read_batches(part, wanted, [Span(0, len(body))], [body])
        ]
    (made,) = write_parquet(laid_out(batches, columns), str, None, columns)
    assert isinstance(made.body, memoryview)
    return made.body


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[AvroSchema], list[bytes | None]]:
    found = [read_avro(Source(Format.AVRO, json.dumps(draw(schemas())))) for _ in range(draw(st.integers(1, 3)))]
    produced: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 12))):
        number = draw(st.integers(-1, len(found) - 1))
        if number < 0:
            produced.append(draw(st.none() | st.binary(max_size=10)))
            continue
        head = b"\0" + (number + 1).to_bytes(4, "big")
        value = written(found[number].type, draw(values(found[number].type)))
        produced.append(head + (value if draw(st.integers(0, 5)) else value + b"\0"))
    return found, produced


@settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
@given(cases(), cases())
def test_what_was_produced_comes_back(
    case: tuple[list[AvroSchema], list[bytes | None]], later: tuple[list[AvroSchema], list[bytes | None]]
) -> None:
    found, produced = case
    table = Table()
    for schema in found:
        table.learn(schema)
    body, columns = table.file(produced)
    assert values_in(body, table.writers) == produced
    assert values_in(anew(body, columns), table.writers) == produced
    for schema in later[0]:
        table.learn(schema)
    typist = Typist(table.columns, Typing(Typed(Mode.REGISTRY, tuple(table.writers.values()))))
    assert values_in(anew(body, typist.columns), table.writers) == produced
