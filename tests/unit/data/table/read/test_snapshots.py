"""Snapshots of tables with large metadata: read from a child process, and only if they changed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.harness.table.history_tables import LOG, TOPIC_ID, Lake, many
from tests.harness.table.large_metadata import encoded, metadata

from lakestream.aio.threads import Threads
from lakestream.aio.worker_process import WorkerProcess
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.metadata_files import CACHE_BYTES_MAX
from lakestream.data.table.read import metadata_parser_client
from lakestream.data.table.read.snapshots import Snapshots
from lakestream.errors import Corrupt
from lakestream.model import Buffer


@pytest_asyncio.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    lake = await Lake(tmp_path).open()
    yield lake
    await lake.close()


@pytest_asyncio.fixture
async def snapshots(lake: Lake) -> AsyncIterator[Snapshots]:
    threads = Threads()
    snapshots = Snapshots(lake.catalog, threads)
    yield snapshots
    await snapshots.close()
    await threads.close()


async def replace_metadata(lake: Lake, raw: bytes) -> str:
    """Commits a metadata file as another engine's catalog would, and returns its key."""
    found = await lake.catalog.pointers.find_id(TOPIC_ID)
    location = f"{found.table.location}/metadata/{next(lake.numbers):05d}-large.metadata.json"
    await lake.store.create(lake.key(location), [raw])
    await lake.catalog.pointers.move(found, location, found.table.location)
    return lake.key(location)


async def add_snapshots(lake: Lake, count: int) -> str:
    return await replace_metadata(lake, encoded(metadata(count, (await lake.table()).metadata)))


def counted_reads(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which each read of an object appends its key."""
    keys: list[str] = []
    get = lake.store.get

    async def counted(key: str) -> Buffer:
        keys.append(key)
        return await get(key)

    monkeypatch.setattr(lake.store, "get", counted)
    return keys


async def test_history_is_read_when_the_metadata_is_large(lake: Lake) -> None:
    await lake.move(many(0, 100))
    await add_snapshots(lake, 1_000)
    assert await lake.read_all() == many(0, 100)
    await lake.move(many(100, 200))
    assert await lake.read_all() == many(0, 200)


async def test_large_file_is_read_once_when_the_table_does_not_change(
    lake: Lake, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake.move(many(0, 10))
    keys = counted_reads(lake, monkeypatch)
    large = await add_snapshots(lake, 12_000)
    lake.catalog = Catalog(
        lake.catalog._store, lake.store, lake.catalog.locations, lake.catalog.clock, lake.catalog.ids
    )
    assert (lake.root / large).stat().st_size > CACHE_BYTES_MAX // 2
    keys.clear()
    first = await snapshots.newest(TOPIC_ID)
    for confirmed in (False, True):
        assert await snapshots.newest(TOPIC_ID, confirmed=confirmed) is first
    assert keys.count(large) == 1
    await lake.move(many(10, 20))
    assert (await snapshots.covering(LOG, 15)).next_offsets == {0: 20}


async def test_file_that_ended_the_process_is_not_read_again(
    lake: Lake, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake.move(many(0, 10))
    worker: WorkerProcess = snapshots._parser.worker
    good = worker.command
    program = "from lakestream.aio.worker_loop import serve; serve(lambda request: bytes(1 << 31), 1 << 30)"
    worker.command = (*good[:1], "-c", program)
    large = await add_snapshots(lake, 1_000)
    keys = counted_reads(lake, monkeypatch)
    for _ in range(3):
        with pytest.raises(IncompatibleTable, match=r"large\.metadata\.json takes more memory than its limit: expire"):
            await snapshots.newest(TOPIC_ID)
    assert keys.count(large) <= 1
    worker.command = good
    await lake.move(many(10, 20))
    assert (await snapshots.newest(TOPIC_ID)).next_offsets == {0: 20}


async def test_repaired_large_file_is_read_again(lake: Lake, snapshots: Snapshots) -> None:
    await lake.move(many(0, 10))
    good = encoded(metadata(1_000, (await lake.table()).metadata))
    key = await replace_metadata(lake, good[:-1])
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"large\.metadata\.json is damaged"):
            await snapshots.newest(TOPIC_ID)
    (lake.root / key).write_bytes(good)
    assert (await snapshots.newest(TOPIC_ID)).next_offsets == {0: 10}


async def test_process_ends_when_the_reader_is_closed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_parser_client, "PROCESS_BYTES_MIN", 0)
    await lake.move(many(0, 10))
    assert await lake.read_all() == many(0, 10)
    reader = lake.history._reader
    assert reader is not None
    process = reader._snapshots._parser.worker.process
    assert process is not None
    await lake.history.close()
    assert process.returncode is not None
