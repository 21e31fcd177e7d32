"""Concurrent appends of the same ranges, over stores that lose responses, stall and crash: every offset once.

Each committer loads the table, reads the next offsets, stores a file and appends it. After a failed commit it retries
with the current table, or deletes its file. At the end the table has all rows before its next offsets, and every file
that it names exists.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.harness.catalog.iceberg_tables import ROOT, catalog_over
from tests.harness.catalog.topic_tables import (
    TOPIC_ID,
    entries_of,
    file_of,
    foreign_commit,
    moved,
    offsets_in,
    topic_table,
)

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange
from lakestream.catalog.operations.append import append
from lakestream.catalog.table_metadata.updates import RemoveSnapshots
from lakestream.catalog.topic_table.offsets import ancestors, main_of, next_offsets
from lakestream.clock import RandomIds, SeededIds, SystemClock
from lakestream.errors import LakestreamError
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.sqlite.store import SqliteStore
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import ObjectStore
from lakestream.testing.fault_injection import CALM, FaultRates, Line
from lakestream.testing.faulty_metadata import FaultyMetadata
from lakestream.testing.faulty_object_store import FaultyObjects
from lakestream.testing.simulation import Died, SimClock, SimLoop, simulate

PARTITIONS = 3
ROUNDS = 6
WEATHERS = {
    "calm": CALM,
    "lossy": FaultRates(slow=0.1, refused=0.05, lost_there=0.05, lost_back=0.08, late=0.02, late_s_max=600.0),
    "crashes": FaultRates(slow=0.05, lost_back=0.02, kill=0.01, stall=0.02, stall_s_max=600.0),
}


class Committer:
    def __init__(self, catalog: Catalog, objects: ObjectStore, name: str, luck: random.Random) -> None:
        self._catalog = catalog
        self._objects = objects
        self._name = name
        self._luck = luck
        self._files = 0
        self.committed: Counter[MovedRange] = Counter()

    async def run(self) -> None:
        for _ in range(ROUNDS):
            try:
                await self._round()
            except LakestreamError:
                continue

    async def _round(self) -> None:
        loaded = await self._catalog.load_id(TOPIC_ID)
        offsets = next_offsets(loaded.metadata)
        partitions = self._luck.sample(range(PARTITIONS), self._luck.randint(1, PARTITIONS))
        starts = {partition: offsets.get(partition, 0) for partition in partitions}
        ranges = [MovedRange(number, start, start + self._luck.randint(1, 4)) for number, start in starts.items()]
        files = [await self._stored(loaded, one) for one in ranges if self._luck.random() < 0.8]
        await self._commit(loaded, files, ranges)

    async def _stored(self, loaded: LoadedTable, one: MovedRange) -> FileDescription:
        self._files += 1
        file = file_of(loaded, *one, name=f"{self._name}-{self._files}")
        await self._objects.create(self._catalog.locations.key_of(file.location), [b"rows"])
        return file

    async def _commit(self, loaded: LoadedTable, files: list[FileDescription], ranges: list[MovedRange]) -> None:
        for _ in range(5):
            try:
                await append(self._catalog, loaded, files, ranges)
            except CommitStateUnknown:
                return  # no file may be deleted
            except CommitFailed:
                # Without a check of the next offsets: a range that was moved meanwhile must be rejected again.
                loaded = await self._catalog.load_id(TOPIC_ID)
                continue
            self.committed.update(ranges)
            return
        await self._objects.delete([self._catalog.locations.key_of(file.location) for file in files])


async def rewrite_and_expire(catalog: Catalog, luck: random.Random) -> None:
    """Rewrites files and expires snapshots concurrently."""
    for number in range(1, 4):
        await asyncio.sleep(luck.random() * 2)
        try:
            loaded = await catalog.load_id(TOPIC_ID)
            if main_of(loaded.metadata) is not None:
                rewritten = await foreign_commit(catalog, loaded, number)
                gone = [one["snapshot-id"] for one in list(ancestors(rewritten.metadata))[1:]]
                await catalog.commit(TOPIC_ID, [], [RemoveSnapshots(gone[:: luck.randint(1, 2)])])
        except LakestreamError:
            continue


async def check(catalog: Catalog, objects: ObjectStore, committers: list[Committer]) -> int:
    loaded = await catalog.load_id(TOPIC_ID)
    offsets = next_offsets(loaded.metadata)
    entries = await entries_of(catalog, loaded.metadata)
    for entry in entries:
        assert await objects.get(catalog.locations.key_of(entry[f.DATA_FILE][f.FILE_PATH])) == b"rows"
    found = await offsets_in(catalog, loaded.metadata)
    assert set(found.values()) <= {1}, "every offset at most once"
    assert all(offset < offsets[partition] for partition, offset in found)
    acknowledged = sum((one.committed for one in committers), Counter[MovedRange]())
    assert set(acknowledged.values()) <= {1}, "every range was acknowledged once"
    named = {(one.partition, offset) for one in acknowledged for offset in range(one.start, one.end)}
    assert all(offset < offsets[partition] for partition, offset in named)
    return sum(offsets.values())


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("seed", range(12))
def test_every_range_is_appended_once_with_store_faults(weather: str, seed: int) -> None:
    async def scenario(loop: SimLoop) -> int:
        clock, tally = SimClock(loop), Counter[str]()
        server, objects = MemoryServer(clock), MemoryObjectStore(clock)
        world = catalog_over(server.client(), objects, seed)
        await topic_table(world)
        committers, tasks = [], []
        for number in range(4):
            machine = loop.machine(f"m{number}")
            lines = [Line(loop, machine, kind, WEATHERS[weather], tally) for kind in ("metadata", "objects")]
            far_objects = FaultyObjects(objects, lines[1])
            ids = SeededIds(random.Random(seed * 100 + number))
            far = Catalog(FaultyMetadata(server, lines[0]), far_objects, Locations(ROOT), SimClock(loop, machine), ids)
            luck = random.Random(seed * 7 + number)
            if number == 3:
                tasks.append(machine.call(rewrite_and_expire(far, luck)))
                continue
            committers.append(Committer(far, far_objects, machine.name, luck))
            tasks.append(machine.call(committers[-1].run()))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, Died) for outcome in outcomes), outcomes
        await asyncio.sleep(24 * 3600)  # until all late responses have arrived
        return await check(world, objects, committers)

    moved_in_all = simulate(seed, scenario)
    assert weather != "calm" or moved_in_all > 20


async def test_every_range_is_appended_once_over_sqlite(tmp_path: Path) -> None:
    """Uses several connections, as several processes do."""
    objects = MemoryObjectStore(SystemClock())
    stores = [await SqliteStore.open(tmp_path / "meta.db", SystemClock()) for _ in range(4)]
    catalogs = [Catalog(store, objects, Locations(ROOT), SystemClock(), RandomIds()) for store in stores]
    try:
        await topic_table(catalogs[0])
        committers = [
            Committer(catalog, objects, f"c{number}", random.Random(number)) for number, catalog in enumerate(catalogs)
        ]
        await asyncio.gather(*(committer.run() for committer in committers))
        assert await check(catalogs[0], objects, committers) > 20
        named = sum(len(moved(*committer.committed)) for committer in committers)
        assert named > 10
    finally:
        for store in stores:
            await store.close()
