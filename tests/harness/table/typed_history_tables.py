"""A topic's table with converted values, by the toy schemas, for tests of history and of maintenance."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.table.history_tables import NOW_MS, TOPIC_ID, Lake
from tests.harness.table.reference_codec import Record, batch_of
from tests.harness.typed.toy_format import SHAPES, tiny_codec, value

from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.update_schema import evolve
from lakestream.catalog.topic_table.field_names import file_columns
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import ParquetSettings, write_parquet
from lakestream.data.typed import columns_to_values
from lakestream.data.typed.values_to_columns import ValueConverter
from lakestream.schemas.column_evolution import BoundShape, evolve_columns
from lakestream.schemas.value_format import ConversionSettings, FieldConversion, SchemaMode, ValuePart
from lakestream.schemas.writer_schema import WriterSchema

TYPED = {"lakestream.value.schema": "registry"}


class TypedLake(Lake):
    """Does what the driver and its workers do, for the schemas of the toy format."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.writers: dict[int, WriterSchema] = {}
        self.known: list[BoundShape] = []

    async def schema(self, number: int, text: str) -> None:
        shape = SHAPES[text]
        _, made = await evolve(
            self.catalog, TOPIC_ID, lambda columns, free: evolve_columns(columns, shape, free, self.known)
        )
        writer = WriterSchema(number, "TINY", text, schema_id=number, framed=True, columns=made.bindings)
        self.writers[number] = await self.catalog.writers.create(TOPIC_ID, ValuePart.VALUE, writer)
        self.known.append(BoundShape(shape, made.bindings))

    async def type(
        self, values: Sequence[bytes | None], mode: SchemaMode = SchemaMode.REGISTRY, **parquet: Any
    ) -> list[Record]:
        """Appends values to the table. Returns the records."""
        table = await self.table()
        start = next_offsets(table.metadata).get(0, 0)
        records = [Record(start + at, NOW_MS + at, 0, b"k%d" % (at % 3), one) for at, one in enumerate(values)]
        columns = file_columns(table.metadata)
        converter = ValueConverter(
            columns, ConversionSettings(FieldConversion(mode, tuple(self.writers.values()))), tiny_codec
        )
        rows = converter.convert(decode([BatchSource.single("x", batch_of(records), start)], 0))
        files: list[FileDescription] = []
        for file in write_parquet(
            rows,
            lambda offset: data_location(table.metadata["location"], 0, offset, str(next(self.numbers))),
            ParquetSettings(**parquet),
            converter.columns,
        ):
            await self.store.create(self.key(file.description.location), [memoryview(file.body)])
            files.append(file.description)
        await append(self.catalog, table, files, [MovedRange(0, start, start + len(values))])
        return records


@asynccontextmanager
async def typed_lake(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TypedLake]:
    monkeypatch.setattr(columns_to_values, "codec_of", tiny_codec)
    columns_to_values._reader.cache_clear()
    lake = TypedLake(root)
    await lake.open(TYPED)
    try:
        yield lake
    finally:
        await lake.close()
        columns_to_values._reader.cache_clear()


def odd_values(count: int) -> list[bytes | None]:
    """Returns converted values, converted values with bytes, bytes, and tombstones."""
    kinds: tuple[Callable[[int], bytes | None], ...] = (
        lambda at: value(1, f"name {at}", at, [at / 2]),
        lambda at: value(2, f"only {at}"),
        lambda at: None,
        lambda at: value(1, f"spaced {at}", at, None).replace(b",", b" ,"),
        lambda at: b"raw %d" % at,
        lambda at: value(3, at, None),
        lambda at: value(1, None, None, []),
    )
    return [kinds[at % len(kinds)](at) for at in range(count)]


async def typed(lake: TypedLake) -> None:
    for number, text in enumerate(("full", "named", "turned"), 1):
        await lake.schema(number, text)
