"""History of tables that are partitioned and sorted: files overlap, row groups too, and what is served is by offset."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.table.lakes import LOG, Lake, many, rows_of
from tests.unit.data.table.plain import Record

from lakestream.catalog.append import append
from lakestream.catalog.arranging import Arrangement, arrange, file_layout
from lakestream.catalog.data_files import FileDescription, MovedRange, data_location
from lakestream.data.table import replay, splitting
from lakestream.data.table.arrow import PLAIN_COLUMNS, arrow_schema
from lakestream.data.table.parquet import ParquetSettings
from lakestream.data.table.planning import Planner, segment
from lakestream.data.table.splitting import write_files
from lakestream.schemas.terms import partition_terms, sort_terms


@pytest.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    lake = await Lake(tmp_path).open()
    yield lake
    await lake.close()


async def arranged(
    lake: Lake,
    records: list[Record],
    partition: str,
    sort: str = "",
    window: int = 1 << 20,
    forge: Callable[[FileDescription], FileDescription] = lambda file: file,
) -> int:
    """The records, moved into files that are laid out like that; how many files. `forge`: what is said of them."""
    table, _ = await arrange(
        lake.catalog, await lake.table(), Arrangement(partition=partition_terms(partition), sort=sort_terms(sort))
    )
    files = []
    for body, file in write_files(
        rows_of(records).cast(arrow_schema(PLAIN_COLUMNS)).to_batches(max_chunksize=20),
        lambda at: data_location(table.metadata["location"], 0, at, str(next(lake.numbers))),
        ParquetSettings(group_bytes_max=600),
        PLAIN_COLUMNS,
        file_layout(table.metadata),
        0,
        window,
    ):
        await lake.store.create(lake.key(file.location), [memoryview(body)])
        files.append(forge(file))
    await append(lake.catalog, table, files, [MovedRange(0, records[0].offset, records[-1].offset + 1)])
    return len(files)


async def test_every_offset_is_served_from_wherever_one_starts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CHUNK_BYTES", 3_000)
    records = many(0, 120)
    assert await arranged(lake, records, "_stream.key") == 5
    records += many(120, 240)
    assert await arranged(lake, many(120, 240), "bucket(3, _stream.offset)", "_stream.key desc", 2_000) > 6
    records += many(240, 300)
    await arranged(lake, many(240, 300), "", "_stream.timestamp desc")
    assert await lake.read_all() == records
    for offset in random.Random(2).sample(range(300), 40):
        assert await lake.read_all(offset=offset, bytes_max=700) == records[offset:]


async def test_files_that_overlap_in_a_chain_are_not_all_looked_into(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FILES_TOGETHER", 8)
    monkeypatch.setattr(splitting, "FILES_MAX", 3)
    assert await arranged(lake, many(0, 400), "_stream.key", window=1_500) > 40
    looked: list[str] = []
    footer = Planner.footer

    async def watched(self: Planner, files: object, place: int) -> object:
        looked.append(files.locations[place])  # type: ignore[attr-defined]
        return await footer(self, files, place)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "footer", watched)
    await lake.history.read(LOG, 200, 1)
    assert len(set(looked)) <= 16
    looked.clear()
    assert await lake.read_all() == many(0, 400)
    for offset in (3, 101, 102, 219, 399):
        assert (await lake.read_all(offset=offset))[0].offset == offset


def test_what_is_looked_at_together_has_all_there_is() -> None:
    luck = random.Random(11)
    for _ in range(300):
        count = luck.randint(1, 60)
        lows = np.sort(np.array([luck.randint(0, 200) for _ in range(count)]))
        highs = lows + np.array([luck.choice([0, 3, 20, 150]) for _ in range(count)])
        reach = np.maximum.accumulate(highs)
        offset, most = luck.randint(0, 220), luck.randint(1, 12)
        found = segment(lows, highs, reach, offset, most)
        if offset > reach[-1]:
            assert not found.places
            continue
        first = max(offset, int(min(low for low, high in zip(lows, highs, strict=True) if high >= offset)))
        assert found.span.start <= first < found.span.end
        wanted = {
            place
            for place in range(count)
            if highs[place] >= max(offset, found.span.start) and lows[place] < found.span.end
        }
        assert wanted <= set(found.places), "all that has offsets from there on"
        there = sum(1 for place in found.places if lows[place] <= found.span.start)
        assert len(found.places) <= max(most, there + 1)
