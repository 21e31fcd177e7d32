"""A topic's table whose values are typed, by the schemas of `tiny.py`: for tests of history and of maintenance."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.data.table.lakes import NOW_MS, TOPIC_ID, Lake
from tests.unit.data.table.plain import Record, batch_of
from tests.unit.data.typed.tiny import SHAPES, tiny_codec, value

from lakestream.catalog.append import append
from lakestream.catalog.data_files import FileDescription, MovedRange, data_location
from lakestream.catalog.evolve import evolve
from lakestream.catalog.next_offsets import next_offsets
from lakestream.catalog.parquet_names import file_columns
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.parquet import ParquetSettings, write_parquet
from lakestream.data.typed import restoring
from lakestream.data.typed.typing import Typist
from lakestream.schemas.growing import Known, grown
from lakestream.schemas.typing import Mode, Part, Typed, Typing
from lakestream.schemas.writers import Writer

TYPED = {"lakestream.value.schema": "registry"}


class TypedLake(Lake):
    """What the driver and its workers do, for schemas of `tiny.py`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.writers: dict[int, Writer] = {}
        self.known: list[Known] = []

    async def schema(self, number: int, text: str) -> None:
        shape = SHAPES[text]
        _, made = await evolve(self.catalog, TOPIC_ID, lambda columns, free: grown(columns, shape, free, self.known))
        writer = Writer(number, "TINY", text, schema_id=number, framed=True, columns=made.bounds)
        self.writers[number] = await self.catalog.writers.create(TOPIC_ID, Part.VALUE, writer)
        self.known.append(Known(shape, made.bounds))

    async def type(self, values: Sequence[bytes | None], mode: Mode = Mode.REGISTRY, **parquet: Any) -> list[Record]:
        """Behind what is there; the records that were produced."""
        table = await self.table()
        start = next_offsets(table.metadata).get(0, 0)
        records = [Record(start + at, NOW_MS + at, 0, b"k%d" % (at % 3), one) for at, one in enumerate(values)]
        columns = file_columns(table.metadata)
        typist = Typist(columns, Typing(Typed(mode, tuple(self.writers.values()))), tiny_codec)
        rows = typist.typed(decode([Source.single("x", batch_of(records), start)], 0))
        files: list[FileDescription] = []
        for file in write_parquet(
            rows,
            lambda offset: data_location(table.metadata["location"], 0, offset, str(next(self.numbers))),
            ParquetSettings(**parquet),
            typist.columns,
        ):
            await self.store.create(self.key(file.description.location), [memoryview(file.body)])
            files.append(file.description)
        await append(self.catalog, table, files, [MovedRange(0, start, start + len(values))])
        return records


@asynccontextmanager
async def typed_lake(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TypedLake]:
    monkeypatch.setattr(restoring, "codec_of", tiny_codec)
    restoring._reader.cache_clear()
    lake = TypedLake(root)
    await lake.open(TYPED)
    try:
        yield lake
    finally:
        await lake.close()
        restoring._reader.cache_clear()


def odd_values(count: int) -> list[bytes | None]:
    """Typed, typed with bytes, bytes, and tombstones."""
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
