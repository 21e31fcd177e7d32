"""Table with a schema, without driver and workers: values to a Parquet file and back.

Missing schemas are resolved as by the driver: the schema is parsed, columns are added, the conversion is retried.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.harness.table.reference_codec import Record, batch_of
from tests.harness.typed.toy_format import bytes_of

from lakestream.data.table.arrow.projection import project_columns
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.read.parquet_footer import read_footer
from lakestream.data.table.read.row_groups import RowGroupPart, read_batches, read_rows, record_columns, sorted_rows
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import ParquetSettings, write_parquet
from lakestream.data.typed.values_to_columns import ValueConverter
from lakestream.errors import Rejected
from lakestream.model import Span
from lakestream.pipeline.maintenance.table_file import cast_rows
from lakestream.schemas.column_evolution import BoundShape, evolve_columns
from lakestream.schemas.columns import Column
from lakestream.schemas.model import Format, Source
from lakestream.schemas.parse import read_message
from lakestream.schemas.types import Struct
from lakestream.schemas.value_format import (
    ConversionSettings,
    FieldConversion,
    InferredSchema,
    MissingSchema,
    SchemaMode,
    SchemasMissingError,
)
from lakestream.schemas.writer_schema import WriterSchema

ALL = Span(0, 2**62)
REQUESTS_MAX = 60


class _Bound(NamedTuple):
    shape: Struct
    bindings: Any
    message: str


class Table:
    def __init__(self, mode: SchemaMode = SchemaMode.REGISTRY) -> None:
        self.mode = mode
        self.columns: tuple[Column, ...] = (PLAIN_COLUMNS[-1],)
        self.writers: dict[int, WriterSchema] = {}
        self.sources: dict[int, Source] = {}
        """Schemas of the registry."""
        self.unconverted = 0
        """Number of values of the last file that keep their bytes."""
        self._bound: list[_Bound] = []
        self._next_id = 16

    @property
    def current_columns(self) -> tuple[Column, ...]:
        return ValueConverter(self.columns, self._typing(requests_schemas=True)).columns

    def file(self, produced: Sequence[bytes | None]) -> tuple[memoryview, tuple[Column, ...]]:
        """Returns the Parquet file that a move writes."""
        records = [Record(at, 1000, 0, b"k", one) for at, one in enumerate(produced)]
        for attempt in range(REQUESTS_MAX + 1):
            converter = ValueConverter(self.columns, self._typing(requests_schemas=attempt < REQUESTS_MAX))
            try:
                rows = list(converter.convert(decode([BatchSource.single("x", batch_of(records), 0)], 0)))
            except SchemasMissingError as missing:
                self.resolve(missing)
                continue
            self.unconverted = converter.stats.unconverted
            (made,) = write_parquet(rows, str, ParquetSettings(group_bytes_max=500), converter.columns)
            assert isinstance(made.body, memoryview)
            return made.body, converter.columns
        raise AssertionError("schemas were requested although this was not allowed")

    def resolve(self, missing: SchemasMissingError) -> None:
        for one in missing.schemas:
            self._resolve_schema(one)
        for inferred in missing.inferred:
            self._add_inferred(inferred)

    def resolve_id(self, schema_id: int) -> None:
        self._resolve_schema(MissingSchema(part=None, schema_id=schema_id))  # type: ignore[arg-type]

    def _typing(self, requests_schemas: bool) -> ConversionSettings:
        return ConversionSettings(
            FieldConversion(self.mode, tuple(self.writers.values())), requests_schemas=requests_schemas
        )

    def _resolve_schema(self, missing: MissingSchema) -> None:
        source = self.sources.get(missing.schema_id)
        unknown = WriterSchema(
            missing.schema_id, "", "the schema is not registered", schema_id=missing.schema_id, framed=True
        )
        if source is None:
            self.writers[missing.schema_id] = unknown
            return
        message = missing.message if source.format is Format.PROTOBUF and any(missing.message) else ()
        writer = WriterSchema(
            self._free_number() if message else missing.schema_id,
            source.format.value,
            source.text,
            schema_id=missing.schema_id,
            framed=True,
            message=message,
            style=missing.style if source.format is Format.JSON else "",
        )
        try:
            schema: Any = read_message(source, message)
            shape = schema.shape()
        except Rejected:
            self.writers[writer.number] = writer
            return
        name = schema.descriptor.full_name if source.format is Format.PROTOBUF else ""
        self._bind(writer, shape, name)

    def _add_inferred(self, inferred: InferredSchema) -> None:
        writer = WriterSchema(self._free_number(), inferred.format, inferred.text, style=inferred.style)
        self._bind(writer, inferred.shape, "", adds_on_conflict=True)

    def _bind(self, writer: WriterSchema, shape: Struct, message: str, *, adds_on_conflict: bool = False) -> None:
        known = [BoundShape(one.shape, one.bindings, bool(message) and one.message == message) for one in self._bound]
        made = evolve_columns(self.columns, shape, self._next_id, known, adds_on_conflict=adds_on_conflict)
        self.columns, self._next_id = made.columns, made.next_id
        self._bound.append(_Bound(shape, made.bindings, message))
        fields = {name: getattr(writer, name) for name in writer.__struct_fields__}
        self.writers[writer.number] = WriterSchema(**{**fields, "columns": made.bindings})

    def _free_number(self) -> int:
        return min([0, *self.writers]) - 1


def values_in(body: memoryview, writers: Mapping[int, WriterSchema]) -> list[bytes | None]:
    footer = read_footer(body, len(body), "file")
    rows = []
    for group in footer.groups:
        part = RowGroupPart(footer, group, None, None, is_typed=True)
        rows += read_rows(part, record_columns(part, writers), [Span(0, len(body))], [body], ALL, writers)
    return bytes_of(sorted_rows(rows).values)


def rewritten(body: memoryview, columns: tuple[Column, ...]) -> memoryview:
    """Returns the Parquet file that a merge of small files writes."""
    footer = read_footer(body, len(body), "file")
    batches: list[Any] = []
    for group in footer.groups:
        part = RowGroupPart(footer, group, None, None, is_typed=True)
        top_level = {number: path for number, path in footer.paths.items() if len(path) == 1}
        batches += [
            project_columns(there, columns)
            for _, there, _ in read_batches(part, top_level, [Span(0, len(body))], [body])
        ]
    (made,) = write_parquet(cast_rows(batches, columns), str, None, columns)
    assert isinstance(made.body, memoryview)
    return made.body
