"""Tests two concurrent maintenance processes and two writers with faults: no row is lost or duplicated.

In the end the folder has only the files that the table names.
"""

import asyncio
import io
import json
import random
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.harness.catalog.iceberg_tables import ROOT
from tests.harness.catalog.maintenance_tables import TOPIC_ID, Row, World, filed

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests.data_file import MovedRange
from lakestream.catalog.manifests.manifest import read_list
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.expire_snapshots import ExpirySettings
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.clock import Ids, RandomIds, SeededIds, SystemClock
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.sqlite.store import SqliteStore
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import Topics
from lakestream.pipeline.maintenance.key_compaction import COMPACTED_TO
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.worker import FileRewriter
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import ObjectStore
from lakestream.testing.fault_injection import CALM, FaultRates, Line
from lakestream.testing.faulty_metadata import FaultyMetadata
from lakestream.testing.faulty_object_store import FaultyObjects
from lakestream.testing.simulation import Died, SimClock, SimLoop, simulate

ROUNDS = 10
EAGER = MaintenanceSettings(
    visit_ms=0,
    idle_ms=0,
    merge=MergeSettings(files_min=2, many=2, young_ms=0),
    expiry=ExpirySettings(age_ms=20_000, grace_ms=10_000),
)
FAULT_RATES = {
    "calm": CALM,
    "lossy": FaultRates(slow=0.05, refused=0.02, lost_there=0.02, lost_back=0.04, late=0.01, late_s_max=600.0),
    "crashes": FaultRates(slow=0.05, lost_back=0.01, kill=0.003, stall=0.01, stall_s_max=600.0),
}


def row(offset: int) -> Row:
    """Returns the record of the log at an offset, the same for each writer."""
    rng = random.Random(offset)
    return Row(offset, b"key %d" % rng.randrange(12), None if rng.random() < 0.2 else b"at %d" % offset, 5)


class Mover:
    def __init__(self, catalog: Catalog, objects: ObjectStore, ids: Ids, rng: random.Random) -> None:
        self._catalog, self._objects, self._ids, self._luck = catalog, objects, ids, rng

    async def run(self) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(self._luck.random() * 10)
            try:
                await self._round()
            except LakestreamError:
                continue

    async def _round(self) -> None:
        loaded = await self._catalog.load_id(TOPIC_ID)
        start = next_offsets(loaded.metadata).get(0, 0)
        end = start + self._luck.randint(1, 6)
        rows = [row(offset) for offset in range(start, end)]
        files = filed(rows, 0, loaded.metadata["location"], self._ids)
        for body, description in files:
            await self._objects.create(self._catalog.locations.key_of(description.location), [bytes(body)])
        for _ in range(5):
            try:
                await append(self._catalog, loaded, [one.description for one in files], [MovedRange(0, start, end)])
                return
            except CommitStateUnknown:
                return
            except CommitFailed:
                loaded = await self._catalog.load_id(TOPIC_ID)
                if next_offsets(loaded.metadata).get(0, 0) != start:
                    return  # its files are orphan files now


class Maintainer:
    def __init__(self, maintenance: Maintenance, rng: random.Random) -> None:
        self._maintenance, self._luck = maintenance, rng

    async def run(self) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(self._luck.random() * 10)
            try:
                await self._maintenance.maintain()
            except LakestreamError:
                continue


def maintenance_of(
    catalog: Catalog, metadata: MetadataStore, ids: Ids, settings: MaintenanceSettings = EAGER
) -> Maintenance:
    class LocalTasks:
        rewriter = FileRewriter(catalog.objects, catalog.locations, ids)

        async def run(self, tasks):  # type: ignore[no-untyped-def]
            return await LocalTasks.rewriter.run(tasks)

    return Maintenance(catalog, Topics(metadata), Claims(metadata), LocalTasks(), metadata.now_ms, settings)


async def check(catalog: Catalog, objects: ObjectStore, *, compacted: bool) -> int:
    metadata = (await catalog.load_id(TOPIC_ID)).metadata
    for snapshot in metadata["snapshots"]:  # each snapshot can be read
        listed = read_list(await objects.get(catalog.locations.key_of(snapshot["manifest-list"])), "")
        for manifest in listed:
            await objects.head(catalog.locations.key_of(manifest.manifest_path))
    listing = await LiveFileReader(objects, catalog.locations).of_main(metadata)
    found: list[Row] = []
    for file in listing.data:
        body = await objects.get(catalog.locations.key_of(file.location))
        rows = pq.read_table(io.BytesIO(bytes(body))).to_pylist()
        found += [Row(one["_stream"]["offset"], one["_stream"]["key"], one["value"], 5) for one in rows]
    found.sort()
    end = next_offsets(metadata).get(0, 0)
    log = [row(offset) for offset in range(end)]
    assert set(Counter(one.offset for one in found).values()) <= {1}, "no row is duplicated"
    assert set(found) <= set(log), "every row is what was produced"
    if not compacted:
        assert found == log
        return end
    reached = json.loads(metadata["properties"].get(COMPACTED_TO, "{}")).get("0", 0)
    for key, one in {one.key: one for one in log}.items():
        of_key = [other for other in found if other.key == key]
        assert one in of_key or (one.value is None and not of_key), (
            "the table has the last row of every key, or no row if that is a tombstone"
        )
    clean = [one.key for one in found if one.offset < reached]
    assert len(set(clean)) == len(clean), "the clean range has each key once"
    return end


@pytest.mark.parametrize("faults", FAULT_RATES)
@pytest.mark.parametrize("seed", [*range(6), 134])
def test_no_row_is_lost_or_duplicated_with_faults(faults: str, seed: int) -> None:
    compacted = seed % 2 == 1

    async def scenario(loop: SimLoop) -> int:
        clock, tally = SimClock(loop), Counter[str]()
        server, objects = MemoryServer(clock), MemoryObjectStore(clock)
        world = World(server.client(), seed, objects, clock)
        policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"} if compacted else {}
        await world.start(policy)
        tasks = []
        for number in range(4):
            machine = loop.machine(f"m{number}")
            lines = [Line(loop, machine, kind, FAULT_RATES[faults], tally) for kind in ("metadata", "objects")]
            faulty_objects, faulty_metadata = FaultyObjects(objects, lines[1]), FaultyMetadata(server, lines[0])
            ids, rng = SeededIds(random.Random(seed * 100 + number)), random.Random(seed * 7 + number)
            catalog = Catalog(faulty_metadata, faulty_objects, Locations(ROOT), SimClock(loop, machine), ids)
            actor = (
                Mover(catalog, faulty_objects, ids, rng)
                if number < 2
                else Maintainer(maintenance_of(catalog, faulty_metadata, ids), rng)
            )
            tasks.append(machine.call(actor.run()))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, Died) for outcome in outcomes), outcomes
        await asyncio.sleep(24 * 3600)  # all late calls have arrived then
        end = await check(world.catalog, objects, compacted=compacted)
        await check_no_files_left(world, loop)
        assert await check(world.catalog, objects, compacted=compacted) == end
        return end

    offsets_moved = simulate(seed, scenario)
    assert faults == "crashes" or offsets_moved > 10


async def check_no_files_left(world: World, loop: SimLoop) -> None:
    """Checks that after some days only files are left that the table names."""
    maintenance = maintenance_of(world.catalog, world.metadata, world.ids, EAGER)
    for _ in range(3):
        await maintenance.maintain()
        await asyncio.sleep(4 * 24 * 3600)
    await maintenance.maintain()
    table = await world.table()
    assert len(table.metadata["snapshots"]) <= 1
    listing = await LiveFileReader(world.objects, world.catalog.locations).of_main(table.metadata)
    left = {key for key in await world.keys() if key.endswith(".parquet")}
    assert left == {world.catalog.locations.key_of(file.location) for file in listing.data}


async def test_no_row_is_lost_or_duplicated_with_several_sqlite_connections(tmp_path: Path) -> None:
    """Each connection stands for a process."""
    objects = MemoryObjectStore(SystemClock())
    stores = [await SqliteStore.open(tmp_path / "meta.db", SystemClock()) for _ in range(3)]
    try:
        catalogs = [Catalog(store, objects, Locations(ROOT), SystemClock(), RandomIds()) for store in stores]
        world = World(stores[0], 1, objects, SystemClock())
        await world.start()
        mover = Mover(catalogs[0], objects, RandomIds(), random.Random(1))

        async def move() -> None:
            for _ in range(12):
                await mover._round()

        async def keep(number: int) -> None:
            maintenance = maintenance_of(catalogs[number], stores[number], RandomIds())
            for _ in range(6):
                await maintenance.maintain()

        await asyncio.gather(move(), keep(1), keep(2))
        assert await check(world.catalog, objects, compacted=False) > 10
    finally:
        for store in stores:
            await store.close()
