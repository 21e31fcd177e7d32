"""A typed table as driver, workers and readers make it, without any of them: values to a Parquet file and back.

What a worker wants to know is answered as the driver does it: the schema is read, the table grows, the move runs again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.unit.data.table.plain import Record, batch_of
from tests.unit.data.typed.tiny import bytes_of

from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.conform import conformed
from lakestream.data.table.decode import decode
from lakestream.data.table.footers import read_footer
from lakestream.data.table.groups import Part, read_batches, read_rows, record_columns, sorted_rows
from lakestream.data.table.heads import Source as Bytes
from lakestream.data.table.parquet import ParquetSettings, write_parquet
from lakestream.data.typed.typing import Typist
from lakestream.errors import Rejected
from lakestream.model import Span
from lakestream.pipeline.maintenance.files import laid_out
from lakestream.schemas.columns import Column
from lakestream.schemas.growing import Known, grown
from lakestream.schemas.model import Format, Source
from lakestream.schemas.shape import Struct
from lakestream.schemas.sources import read_message
from lakestream.schemas.typing import Inferred, Mode, Typed, Typing, Wanted, WantedSchema
from lakestream.schemas.writers import Writer

ALL = Span(0, 2**62)
ASKED_MAX = 60


class _Met(NamedTuple):
    shape: Struct
    bounds: Any
    message: str


class Table:
    def __init__(self, mode: Mode = Mode.REGISTRY) -> None:
        self.mode = mode
        self.columns: tuple[Column, ...] = (PLAIN_COLUMNS[-1],)
        self.writers: dict[int, Writer] = {}
        self.sources: dict[int, Source] = {}
        """What the registry has."""
        self.kept = 0
        """Values that keep their bytes, of the last file."""
        self._met: list[_Met] = []
        self._next_id = 16

    @property
    def current_columns(self) -> tuple[Column, ...]:
        return Typist(self.columns, self._typing(asks=True)).columns

    def file(self, produced: Sequence[bytes | None]) -> tuple[memoryview, tuple[Column, ...]]:
        """As a move writes it."""
        records = [Record(at, 1000, 0, b"k", one) for at, one in enumerate(produced)]
        for asked in range(ASKED_MAX + 1):
            typist = Typist(self.columns, self._typing(asks=asked < ASKED_MAX))
            try:
                rows = list(typist.typed(decode([Bytes.single("x", batch_of(records), 0)], 0)))
            except Wanted as wanted:
                self.learn(wanted)
                continue
            self.kept = typist.tally.raw
            (made,) = write_parquet(rows, str, ParquetSettings(group_bytes_max=500), typist.columns)
            assert isinstance(made.body, memoryview)
            return made.body, typist.columns
        raise AssertionError("who may not ask does not ask")

    def learn(self, wanted: Wanted) -> None:
        for one in wanted.schemas:
            self._learn_schema(one)
        for inferred in wanted.inferred:
            self._learn_shape(inferred)

    def learn_id(self, schema_id: int) -> None:
        self._learn_schema(WantedSchema(part=None, schema_id=schema_id))  # type: ignore[arg-type]

    def _typing(self, asks: bool) -> Typing:
        return Typing(Typed(self.mode, tuple(self.writers.values())), asks=asks)

    def _learn_schema(self, wanted: WantedSchema) -> None:
        source = self.sources.get(wanted.schema_id)
        nobody = Writer(wanted.schema_id, "", "nobody knows it", schema_id=wanted.schema_id, framed=True)
        if source is None:
            self.writers[wanted.schema_id] = nobody
            return
        message = wanted.message if source.format is Format.PROTOBUF and any(wanted.message) else ()
        writer = Writer(
            self._free_number() if message else wanted.schema_id,
            source.format.value,
            source.text,
            schema_id=wanted.schema_id,
            framed=True,
            message=message,
            style=wanted.style if source.format is Format.JSON else "",
        )
        try:
            schema: Any = read_message(source, message)
            shape = schema.shape()
        except Rejected:
            self.writers[writer.number] = writer
            return
        name = schema.descriptor.full_name if source.format is Format.PROTOBUF else ""
        self._bind(writer, shape, name)

    def _learn_shape(self, inferred: Inferred) -> None:
        writer = Writer(self._free_number(), inferred.format, inferred.text, style=inferred.style)
        self._bind(writer, inferred.shape, "", spreads=True)

    def _bind(self, writer: Writer, shape: Struct, message: str, *, spreads: bool = False) -> None:
        known = [Known(one.shape, one.bounds, bool(message) and one.message == message) for one in self._met]
        made = grown(self.columns, shape, self._next_id, known, spreads=spreads)
        self.columns, self._next_id = made.columns, made.next_id
        self._met.append(_Met(shape, made.bounds, message))
        fields = {name: getattr(writer, name) for name in writer.__struct_fields__}
        self.writers[writer.number] = Writer(**{**fields, "columns": made.bounds})

    def _free_number(self) -> int:
        return min([0, *self.writers]) - 1


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
