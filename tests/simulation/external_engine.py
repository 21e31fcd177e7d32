"""An external engine on its own machine: rewrites files, deletes rows and expires snapshots through the catalog.

Like Spark, it does not know that a table belongs to a topic. It replaces the files that it read if `main` is unchanged.
"""

import asyncio
import io
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.simulation.world import Host, World

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.errors import CommitFailed, NoSuchTable
from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.manifest import EntryWriter, ManifestFile, partition_summary, write_list
from lakestream.catalog.operations.append import set_main
from lakestream.catalog.operations.expire_snapshots import ExpirySettings, expire
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.table_metadata.builder import LAST_ADDED
from lakestream.catalog.table_metadata.json_model import MAIN, Json, schema_of
from lakestream.catalog.table_metadata.requirements import (
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
)
from lakestream.catalog.table_metadata.updates import AddSchema, AddSnapshot, SetCurrentSchema, SetProperties
from lakestream.catalog.topic_table.checks import layout_of
from lakestream.catalog.topic_table.columns import FIRST_FREE_ID, OFFSET_ID, PARTITION_ID
from lakestream.catalog.topic_table.offsets import main_of
from lakestream.clock import SeededIds
from lakestream.errors import Missing, Unavailable
from lakestream.testing.fault_injection import log_uniform

EXPIRE_ALL = ExpirySettings(age_ms=1, grace_ms=0)
STRING_COLUMN = "n_"
"""Column for string values of `n`, whose own column has numbers (value_generators.py)."""


class Engine:
    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host
        self.catalog = host.catalog
        self.ids = SeededIds(world.rng)

    async def run(self) -> None:
        """Changes random tables until the faults stop. Runs on the engine's machine."""
        world = self.world
        work = [self.rewrite, self.rewrite, self.expire, self.shorten_metadata_log]
        if not world.scenario.kafka:  # the response checker of Kafka requests does not expect deleted rows
            work.append(self.delete)
        if world.scenario.typed:
            work.append(self.alter)
        while not world.healed:
            await asyncio.sleep(log_uniform(world.rng, 0.5, world.scenario.move_s_max))
            if not (live_partitions := world.live_partitions()):
                continue
            change, partition = world.rng.choice(work), world.rng.choice(live_partitions)
            try:
                await change(await self.catalog.load_id(partition.topic_id))
            except NoSuchTable:
                continue  # the pipeline has not created the table yet
            except (Unavailable, CommitFailed, Missing) as error:
                world.tally["foreign changes failed"] += 1
                world.loop.trace.note(world.loop.now, self.host.name, change.__name__, error)
            else:
                world.tally[f"foreign {change.__name__}"] += 1

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def rewrite(self, loaded: LoadedTable) -> None:
        """Writes the same rows into other files in another order. Often expires the old files immediately."""
        await self._replace(loaded, await self._rows(loaded), frozenset())
        if self.world.rng.random() < 0.5:
            await self.expire(loaded)

    async def delete(self, loaded: LoadedTable) -> None:
        """Deletes random rows."""
        rows = await self._rows(loaded)
        positions = list(_positions(rows))
        deleted = {position for position in positions if self.world.rng.random() < 0.2}
        if deleted:
            kept = rows.filter(pa.array([position not in deleted for position in positions]))
            await self._replace(loaded, kept, frozenset(deleted))

    async def expire(self, loaded: LoadedTable) -> None:
        """Expires all snapshots but the newest and deletes unreferenced files immediately, even if they are being read.

        Tables with Delta are left to Lakestream's maintenance: an engine does not know which files Delta lists."""
        listings = LiveFileReader(self.host.objects, self.catalog.locations)
        properties = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
        loaded = await self.catalog.commit(loaded.table_id, [], [SetProperties(properties)])
        if (generator := self.world.generators.get(loaded.topic_id)) is None or not generator.delta:
            await expire(self.catalog, loaded, listings, await self.host.metadata.now_ms(), EXPIRE_ALL)

    async def shorten_metadata_log(self, loaded: LoadedTable) -> None:
        """Limits the table's metadata log to one entry."""
        await self.catalog.commit(loaded.table_id, [], [SetProperties({"write.metadata.previous-versions-max": "1"})])

    async def alter(self, loaded: LoadedTable) -> None:
        """Renames a value column, or adds one: an unrelated one, or a string column for values that are no numbers."""
        rng, base = self.world.rng, loaded.metadata
        fields: list[Json] = list(schema_of(base)["fields"])
        own = [index for index, field in enumerate(fields) if field["id"] >= FIRST_FREE_ID]
        if own and rng.random() < 0.5:
            index = rng.choice(own)
            name = f"{fields[index]['name'].split('~')[0]}~{rng.randrange(100)}"
            if all(field["name"] != name for field in fields):
                fields[index] = {**fields[index], "name": name}
        else:
            number = base["last-column-id"] + 1
            has_string_column = any(field["name"] == STRING_COLUMN for field in fields)
            name = f"note{number}" if has_string_column else STRING_COLUMN
            fields.append({"id": number, "name": name, "type": "string", "required": False})
        await self.catalog.commit(
            loaded.table_id,
            [
                AssertCurrentSchemaId(base["current-schema-id"]),
                AssertLastAssignedFieldId(base["last-column-id"]),
            ],
            [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(LAST_ADDED)],
        )

    # ── reading, writing and committing files ────────────────────────────────────────────────────────────────────────

    async def _rows(self, loaded: LoadedTable) -> pa.Table:
        listing = await LiveFileReader(self.host.objects, self.catalog.locations).of_main(loaded.metadata)
        if not listing.data:
            raise Missing(f"{loaded.name} has no rows yet")
        bodies = [await self.host.objects.get(self.catalog.locations.key_of(file.location)) for file in listing.data]
        tables = [pq.read_table(io.BytesIO(bytes(body)), use_threads=False) for body in bodies]
        # Files of a typed table differ in columns and types: read all columns, with the wider types.
        return pa.concat_tables(tables, promote_options="permissive")

    async def _replace(self, loaded: LoadedTable, rows: pa.Table, deleted: frozenset[tuple[int, int]]) -> None:
        stored: list[str] = []
        try:
            files = [await self._written(loaded, part, stored) for part in self._parts(rows)]
            await self._commit(loaded, files, deleted, stored)
        except CommitFailed:
            await self.host.objects.delete([self.catalog.locations.key_of(location) for location in stored])
            raise

    def _parts(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yields the rows of each partition in one to three parts, whose offset ranges may overlap."""
        rng = self.world.rng
        numbers = rows.column("_stream").combine_chunks().field("partition")
        for number in sorted(pc.unique(numbers).to_pylist()):
            own = rows.filter(pc.equal(numbers, number))
            order = list(range(len(own)))
            rng.shuffle(order)
            count = rng.randint(1, 3)
            for part in (order[start::count] for start in range(count)):
                if part:
                    yield own.take(part)

    async def _written(self, loaded: LoadedTable, rows: pa.Table, stored: list[str]) -> FileDescription:
        positions = list(_positions(rows))
        number, offsets = positions[0][0], [offset for _, offset in positions]
        sink = io.BytesIO()
        pq.write_table(rows, sink, row_group_size=self.world.rng.choice((2, 5, 1_000)))
        location = f"{loaded.metadata['location']}/data/foreign-{self.ids.new()}.parquet"
        stored.append(location)
        await self.host.objects.create(self.catalog.locations.key_of(location), [sink.getvalue()])
        has_bounds = self.world.rng.random() < 0.7  # column bounds are optional
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
            lower_bounds={PARTITION_ID: _bytes(number, 4), OFFSET_ID: _bytes(min(offsets), 8)} if has_bounds else {},
            upper_bounds={PARTITION_ID: _bytes(number, 4), OFFSET_ID: _bytes(max(offsets), 8)} if has_bounds else {},
            split_offsets=(),
        )

    async def _commit(
        self, loaded: LoadedTable, files: list[FileDescription], deleted: frozenset[tuple[int, int]], stored: list[str]
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
            "summary": {"operation": "overwrite" if deleted else "replace"},
            "schema-id": base["current-schema-id"],
        }
        await self._store(snapshot["manifest-list"], write_list(manifests, snapshot, base["format-version"]), stored)
        self.world.oracle.tables.deletes[snapshot_id] = set(deleted)
        await self.catalog.commit(
            loaded.table_id,
            [AssertRefSnapshotId(MAIN, main_of(base))],
            [AddSnapshot(snapshot), set_main(snapshot_id, base)],
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


def _positions(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Yields partition and offset of each row."""
    stream = rows.column("_stream").combine_chunks()
    return zip(stream.field("partition").to_pylist(), stream.field("offset").to_pylist(), strict=True)


def _bytes(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=True)
