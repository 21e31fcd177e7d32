"""History of partitioned and sorted tables: files and row groups overlap, but records are read by offset."""

import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from tests.harness.table.history_tables import LOG, Lake, many, rows_of
from tests.harness.table.reference_codec import Record

from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.update_layout import TableLayout, file_layout, update_layout
from lakestream.data.table.arrow.types import PLAIN_COLUMNS, arrow_schema
from lakestream.data.table.read import history_reader
from lakestream.data.table.read.scan_planner import Planner, file_window
from lakestream.data.table.write import partitioned_writer
from lakestream.data.table.write.parquet_writer import ParquetSettings
from lakestream.data.table.write.partitioned_writer import write_files
from lakestream.schemas.layout_terms import partition_terms, sort_terms


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
    """Moves records into files with this layout. Returns the number of files. `forge` changes their descriptions."""
    table, _ = await update_layout(
        lake.catalog, await lake.table(), TableLayout(partition=partition_terms(partition), sort=sort_terms(sort))
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


async def test_all_records_are_read_from_any_start_offset(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_reader, "CHUNK_BYTES", 3_000)
    records = many(0, 120)
    assert await arranged(lake, records, "_stream.key") == 5
    records += many(120, 240)
    assert await arranged(lake, many(120, 240), "bucket(3, _stream.offset)", "_stream.key desc", 2_000) > 6
    records += many(240, 300)
    await arranged(lake, many(240, 300), "", "_stream.timestamp desc")
    assert await lake.read_all() == records
    for offset in random.Random(2).sample(range(300), 40):
        assert await lake.read_all(offset=offset, bytes_max=700) == records[offset:]


async def test_only_a_window_is_read_when_files_overlap_in_a_chain(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_reader, "FILES_TOGETHER", 8)
    monkeypatch.setattr(partitioned_writer, "FILES_MAX", 3)
    assert await arranged(lake, many(0, 400), "_stream.key", window=1_500) > 40
    planned: list[str] = []
    footer = Planner.footer

    async def watched(self: Planner, table: object, files: object, place: int) -> object:
        planned.append(files.locations[place])  # type: ignore[attr-defined]
        return await footer(self, table, files, place)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "footer", watched)
    await lake.history.read(LOG, 200, 1)
    assert len(set(planned)) <= 16
    planned.clear()
    assert await lake.read_all() == many(0, 400)
    for offset in (3, 101, 102, 219, 399):
        assert (await lake.read_all(offset=offset))[0].offset == offset


def test_file_window_has_all_files_with_its_offsets() -> None:
    luck = random.Random(11)
    for _ in range(300):
        count = luck.randint(1, 60)
        lows = np.sort(np.array([luck.randint(0, 200) for _ in range(count)]))
        highs = lows + np.array([luck.choice([0, 3, 20, 150]) for _ in range(count)])
        reach = np.maximum.accumulate(highs)
        offset, most = luck.randint(0, 220), luck.randint(1, 12)
        found = file_window(lows, highs, reach, offset, most)
        if offset > reach[-1]:
            assert not found.places
            continue
        first = max(offset, int(min(low for low, high in zip(lows, highs, strict=True) if high >= offset)))
        assert found.span.start <= first < found.span.end
        expected = {
            place
            for place in range(count)
            if highs[place] >= max(offset, found.span.start) and lows[place] < found.span.end
        }
        assert expected <= set(found.places), "all files with offsets from there on"
        there = sum(1 for place in found.places if lows[place] <= found.span.start)
        assert len(found.places) <= max(most, there + 1)


def test_file_window_is_found_in_little_time_when_all_files_overlap() -> None:
    lows = np.arange(100_000) * 1_000
    highs = lows + 1_500
    began_s = time.thread_time()
    found = file_window(lows, highs, np.maximum.accumulate(highs), 50_000_000, 64)
    assert time.thread_time() - began_s < 0.005
    assert found.places[0] in (49_999, 50_000)
    assert len(found.places) == 64
