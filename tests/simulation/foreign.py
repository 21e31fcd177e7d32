"""A foreign engine, on a machine of its own: it rewrites, deletes and expires in the tables through the catalog, as
Spark would. It knows nothing of streams: it replaces what it read, if `main` is still where it was.
"""

import asyncio
import io
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.simulation.world import Host, World

from lakestream.catalog.append import main_at
from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.draft import LAST_ADDED
from lakestream.catalog.errors import CommitRefused, NoSuchTable
from lakestream.catalog.expire import ExpirySettings, expire
from lakestream.catalog.listing import Listings
from lakestream.catalog.manifests import EntryWriter, ManifestFile, partition_summary, write_list
from lakestream.catalog.next_offsets import main_of
from lakestream.catalog.requirements import AssertCurrentSchemaId, AssertLastAssignedFieldId, AssertRefSnapshotId
from lakestream.catalog.shapes import MAIN, Json, schema_of
from lakestream.catalog.topic_layout import FIRST_FREE_ID, OFFSET_ID, PARTITION_ID
from lakestream.catalog.topic_shape import layout_of
from lakestream.catalog.updates import AddSchema, AddSnapshot, SetCurrentSchema, SetProperties
from lakestream.clock import SeededIds
from lakestream.errors import Missing, Unavailable
from lakestream.testing.faults import spread

AT_ONCE = ExpirySettings(age_ms=1, grace_ms=0)
ROOM = "n_"
"""Where a text goes for which the column `n` is none (dialects.py)."""


class Engine:
    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host
        self.catalog = host.catalog
        self.ids = SeededIds(world.luck)

    async def run(self) -> None:
        """On its machine."""
        world = self.world
        work = [self.rewrite, self.rewrite, self.expire, self.forget_soon]
        if not world.mood.kafka:  # whose judge does not know of rows that go
            work.append(self.delete)
        if world.mood.typed:
            work.append(self.alter)
        while not world.healed:
            await asyncio.sleep(spread(world.luck, 0.5, world.mood.move_s_max))
            if not (living := world.living()):
                continue
            what, partition = world.luck.choice(work), world.luck.choice(living)
            try:
                await what(await self.catalog.load_id(partition.topic_id))
            except NoSuchTable:
                continue  # nothing was moved yet
            except (Unavailable, CommitRefused, Missing) as error:
                world.tally["foreign changes failed"] += 1
                world.loop.trace.note(world.loop.now, self.host.name, what.__name__, error)
            else:
                world.tally[f"foreign {what.__name__}"] += 1

    # ── what it does ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def rewrite(self, loaded: LoadedTable) -> None:
        """The same rows in other files, in another order. Whoever still reads the old ones may have to be quick."""
        await self._replace(loaded, await self._rows(loaded), frozenset())
        if self.world.luck.random() < 0.5:
            await self.expire(loaded)

    async def delete(self, loaded: LoadedTable) -> None:
        """Some rows go: those that hash to it, or all before an offset."""
        rows = await self._rows(loaded)
        found = list(_places(rows))
        gone = {place for place in found if self.world.luck.random() < 0.2}
        if gone:
            kept = rows.filter(pa.array([place not in gone for place in found]))
            await self._replace(loaded, kept, frozenset(gone))

    async def expire(self, loaded: LoadedTable) -> None:
        """All snapshots but the newest, whoever reads them; and at once the files that none names any more. Where there
        is a Delta table that is left to our own maintenance: an engine does not know that Delta still lists them."""
        listings = Listings(self.host.objects, self.catalog.locations)
        properties = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
        loaded = await self.catalog.commit(loaded.table_id, [], [SetProperties(properties)])
        if (dialect := self.world.dialects.get(loaded.topic_id)) is None or not dialect.delta:
            await expire(self.catalog, loaded, listings, await self.host.metadata.now_ms(), AT_ONCE)

    async def forget_soon(self, loaded: LoadedTable) -> None:
        """The table's own history becomes as short as it can."""
        await self.catalog.commit(loaded.table_id, [], [SetProperties({"write.metadata.previous-versions-max": "1"})])

    async def alter(self, loaded: LoadedTable) -> None:
        """A column of values gets another name, or there is one more: of which nobody else knows, or in which values
        have room that contradicted the others."""
        luck, base = self.world.luck, loaded.metadata
        fields: list[Json] = list(schema_of(base)["fields"])
        own = [place for place, one in enumerate(fields) if one["id"] >= FIRST_FREE_ID]
        if own and luck.random() < 0.5:
            place = luck.choice(own)
            name = f"{fields[place]['name'].split('~')[0]}~{luck.randrange(100)}"
            if all(one["name"] != name for one in fields):
                fields[place] = {**fields[place], "name": name}
        else:
            number = base["last-column-id"] + 1
            room = ROOM if all(one["name"] != ROOM for one in fields) else f"note{number}"
            fields.append({"id": number, "name": room, "type": "string", "required": False})
        await self.catalog.commit(
            loaded.table_id,
            [
                AssertCurrentSchemaId(base["current-schema-id"]),
                AssertLastAssignedFieldId(base["last-column-id"]),
            ],
            [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(LAST_ADDED)],
        )

    # ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _rows(self, loaded: LoadedTable) -> pa.Table:
        listing = await Listings(self.host.objects, self.catalog.locations).of_main(loaded.metadata)
        if not listing.data:
            raise Missing(f"{loaded.name} has no rows yet")
        bodies = [await self.host.objects.get(self.catalog.locations.key_of(one.location)) for one in listing.data]
        tables = [pq.read_table(io.BytesIO(bytes(body)), use_threads=False) for body in bodies]
        # Files of a typed table have columns of their own; those that were widened since are read so.
        return pa.concat_tables(tables, promote_options="permissive")

    async def _replace(self, loaded: LoadedTable, rows: pa.Table, gone: frozenset[tuple[int, int]]) -> None:
        stored: list[str] = []
        try:
            files = [await self._written(loaded, part, stored) for part in self._parts(rows)]
            await self._commit(loaded, files, gone, stored)
        except CommitRefused:
            await self.host.objects.delete([self.catalog.locations.key_of(location) for location in stored])
            raise

    def _parts(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The rows of each partition, in one file or in several that lie beside or across one another."""
        luck = self.world.luck
        numbers = rows.column("_stream").combine_chunks().field("partition")
        for number in sorted(pc.unique(numbers).to_pylist()):
            own = rows.filter(pc.equal(numbers, number))
            order = list(range(len(own)))
            luck.shuffle(order)
            count = luck.randint(1, 3)
            for part in (order[start::count] for start in range(count)):
                if part:
                    yield own.take(part)

    async def _written(self, loaded: LoadedTable, rows: pa.Table, stored: list[str]) -> FileDescription:
        places = list(_places(rows))
        number, offsets = places[0][0], [offset for _, offset in places]
        sink = io.BytesIO()
        pq.write_table(rows, sink, row_group_size=self.world.luck.choice((2, 5, 1_000)))
        location = f"{loaded.metadata['location']}/data/foreign-{self.ids.new()}.parquet"
        stored.append(location)
        await self.host.objects.create(self.catalog.locations.key_of(location), [sink.getvalue()])
        told = self.world.luck.random() < 0.7  # what an engine says of its columns is its own choice
        return FileDescription(
            location=location,
            partition=number,
            offset_first=min(offsets),
            offset_last=max(offsets),
            record_count=len(rows),
            size=len(sink.getvalue()),
            column_sizes={},
            value_counts={},
            null_counts={},
            lower_bounds={PARTITION_ID: _bytes(number, 4), OFFSET_ID: _bytes(min(offsets), 8)} if told else {},
            upper_bounds={PARTITION_ID: _bytes(number, 4), OFFSET_ID: _bytes(max(offsets), 8)} if told else {},
            split_offsets=(),
        )

    async def _commit(
        self, loaded: LoadedTable, files: list[FileDescription], gone: frozenset[tuple[int, int]], stored: list[str]
    ) -> None:
        base, layout = loaded.metadata, layout_of(loaded.metadata)
        snapshot_id = int(self.ids.new(), 16) >> 65
        folder, name = f"{base['location']}/metadata", self.ids.new()
        writer = EntryWriter(layout)
        manifests = []
        if files:
            body = writer.manifest([writer.added(file, snapshot_id) for file in files])
            manifests.append(_manifest(f"{folder}/{name}-m0.avro", body, base, snapshot_id, files))
            await self._store(manifests[0].manifest_path, body, stored)
        snapshot: Json = {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": main_of(base),
            "sequence-number": base["last-sequence-number"] + 1,
            "timestamp-ms": max(self.host.clock.now_ms(), base["last-updated-ms"]),
            "manifest-list": f"{folder}/snap-{snapshot_id}-{name}.avro",
            "summary": {"operation": "overwrite" if gone else "replace"},
            "schema-id": base["current-schema-id"],
        }
        await self._store(snapshot["manifest-list"], write_list(manifests, snapshot, base["format-version"]), stored)
        self.world.witness.tables.deletes[snapshot_id] = set(gone)
        await self.catalog.commit(
            loaded.table_id,
            [AssertRefSnapshotId(MAIN, main_of(base))],
            [AddSnapshot(snapshot), main_at(snapshot_id, base)],
        )

    async def _store(self, location: str, body: bytes, stored: list[str]) -> None:
        stored.append(location)
        await self.host.objects.create(self.catalog.locations.key_of(location), [body])


def _manifest(location: str, body: bytes, base: Json, snapshot_id: int, files: list[FileDescription]) -> ManifestFile:
    layout = layout_of(base)
    number = base["last-sequence-number"] + 1
    return ManifestFile(
        manifest_path=location,
        manifest_length=len(body),
        partition_spec_id=layout.spec["spec-id"],
        sequence_number=number,
        min_sequence_number=number,
        added_snapshot_id=snapshot_id,
        added_files_count=len(files),
        added_rows_count=sum(file.record_count for file in files),
        partitions=partition_summary(layout, files),
    )


def _places(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Partition and offset of each row."""
    stream = rows.column("_stream").combine_chunks()
    return zip(stream.field("partition").to_pylist(), stream.field("offset").to_pylist(), strict=True)


def _bytes(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=True)
