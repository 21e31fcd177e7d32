"""Layout settings of a topic: applied in one commit, again after a change, without reverting changes of engines."""

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.table import StaticTable
from tests.harness.catalog.topic_tables import TOPIC, TOPIC_ID, entries_of, file_of, manifests_of, moved
from tests.unit.catalog.operations.test_update_schema import GrowTo, struct

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import CommitFailed
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange
from lakestream.catalog.manifests.merge import FAN_IN
from lakestream.catalog.manifests.partition_values import decimal_size
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.operations.update_layout import TableLayout, check_terms, file_layout, own_specs, update_layout
from lakestream.catalog.operations.update_schema import evolve
from lakestream.catalog.table_metadata.json_model import spec_of
from lakestream.catalog.table_metadata.updates import AddSpec, RemovePartitionSpecs, SetDefaultSpec, SetProperties
from lakestream.catalog.topic_table.file_layout import PLAIN_LAYOUT, TransformedColumn
from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Misconfigured, Rejected
from lakestream.metadata.memory import MemoryServer
from lakestream.schemas.column_evolution import EvolvedColumns
from lakestream.schemas.columns import Column
from lakestream.schemas.layout_terms import Transform, partition_terms, sort_terms
from lakestream.schemas.types import Kind, Primitive
from lakestream.storage.local_store import FileStore

REGISTRY = {"lakestream.value.schema": "registry"}


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    objects = FileStore(tmp_path, SystemClock(), RandomIds())
    store = MemoryServer(SystemClock()).client()
    catalog = Catalog(store, objects, Locations(f"file://{tmp_path}"), SystemClock(), RandomIds())
    await catalog.start()
    yield catalog
    await objects.close()


async def typed_table(catalog: Catalog, **columns: Primitive) -> LoadedTable:
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    return (await evolve(catalog, TOPIC_ID, GrowTo(struct(**columns))))[0]


def layout_of(partition: str = "_stream.partition", sort: str = "", **properties: str) -> TableLayout:
    named = tuple(sorted((name.replace("_", "."), text) for name, text in properties.items()))
    return TableLayout(partition=partition_terms(partition), sort=sort_terms(sort), properties=named)


def spec_fields(table: LoadedTable) -> list[tuple[Any, ...]]:
    return [(one["name"], one["transform"], one["source-id"]) for one in spec_of(table.metadata)["fields"]]


INT, LONG, STRING, TIME = (Primitive(kind) for kind in (Kind.INT, Kind.LONG, Kind.STRING, Kind.TIMESTAMPTZ))


async def test_default_settings_change_nothing(catalog: Catalog) -> None:
    table = await ensure_table(catalog, TOPIC, TOPIC_ID, {})
    again, notice = await update_layout(catalog, table, TableLayout())
    assert again is table
    assert (notice, file_layout(table.metadata), sorted(own_specs(table.metadata))) == ("", PLAIN_LAYOUT, [0])


async def test_partition_and_sort_settings_are_applied_in_one_commit(catalog: Catalog) -> None:
    table = await typed_table(catalog, user_id=LONG, country=STRING)
    versions = len(table.metadata["metadata-log"])
    first = layout_of("day(_stream.timestamp), bucket(16, user_id), country", "user_id desc nulls last")
    table, notice = await update_layout(catalog, table, first)
    assert notice == ""
    assert len(table.metadata["metadata-log"]) == versions + 1
    assert spec_fields(table) == [
        ("_stream_timestamp_day", "day", 5),
        ("user_id_bucket_16", "bucket[16]", 16),
        ("country", "identity", 17),
    ]
    layout = file_layout(table.metadata)
    assert (layout.spec_id, layout.order_id) == (1, table.metadata["default-sort-order-id"])
    assert layout.cuts[1] == TransformedColumn(16, LONG, Transform("bucket", 16))
    assert [(key.cut.source_id, key.is_descending, key.nulls_first) for key in layout.sort] == [(16, True, False)]
    assert (await update_layout(catalog, table, first))[0] is table
    # Another spec, then none, then the first: existing specs are used again.
    table, _ = await update_layout(catalog, table, layout_of("country"))
    assert (spec_of(table.metadata)["spec-id"], table.metadata["default-sort-order-id"]) == (2, 1)
    assert spec_of(table.metadata)["fields"][0]["field-id"] == 1003, "the same field has the same id"
    table, _ = await update_layout(catalog, table, layout_of(""))
    assert spec_fields(table) == []
    table, _ = await update_layout(catalog, table, first)
    assert (spec_of(table.metadata)["spec-id"], file_layout(table.metadata)) == (1, layout)
    table, _ = await update_layout(catalog, table, layout_of())
    assert (spec_of(table.metadata)["spec-id"], sorted(own_specs(table.metadata))) == (0, [0, 1, 2, 3])
    assert len(table.metadata["partition-specs"]) == 4
    assert StaticTable.from_metadata(table.metadata_location).spec().spec_id == 0


async def test_void_transform_keeps_its_field(catalog: Catalog) -> None:
    table = await typed_table(catalog, country=STRING, at=TIME)
    table, notice = await update_layout(catalog, table, layout_of("void(country), day(at)"))
    assert (notice, spec_fields(table)) == ("", [("country_null", "void", 16), ("at_day", "day", 17)])
    assert file_layout(table.metadata).cuts[0] == TransformedColumn(16, STRING, Transform("void"))
    spec = StaticTable.from_metadata(table.metadata_location).spec()
    assert [str(one.transform) for one in spec.fields] == ["void", "day"]


async def test_term_is_applied_when_its_column_is_added(catalog: Catalog) -> None:
    table = await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    layout = layout_of("day(_stream.timestamp), country", "country, _stream.offset")
    table, notice = await update_layout(catalog, table, layout)
    assert notice == (
        "its table is not partitioned by country: it has no column country yet;"
        " its table is not sorted by country: it has no column country yet"
    )
    assert spec_fields(table) == [("_stream_timestamp_day", "day", 5)]
    table, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(country=STRING)))
    table, notice = await update_layout(catalog, table, layout)
    assert notice == ""
    assert spec_fields(table) == [("_stream_timestamp_day", "day", 5), ("country", "identity", 16)]


async def test_term_is_left_out_when_its_column_has_an_unsupported_type(catalog: Catalog) -> None:
    table = await typed_table(catalog, user_id=LONG)
    table, notice = await update_layout(catalog, table, layout_of("day(user_id), bucket(4, user_id)"))
    assert "not partitioned by day(user_id): column user_id is long" in notice
    assert spec_fields(table) == [("user_id_bucket_4", "bucket[4]", 16)]
    with pytest.raises(Misconfigured, match=r"lakestream.table.partition: day.user_id.: column user_id is long"):
        await check_terms(catalog, TOPIC_ID, partition_terms("day(user_id)"), [])
    with pytest.raises(Misconfigured, match=r"lakestream.table.sort: hour"):
        await check_terms(catalog, TOPIC_ID, [], partition_terms("hour(user_id)"))
    await check_terms(catalog, TOPIC_ID, partition_terms("other, user_id"), [])
    await check_terms(catalog, "f" * 32, partition_terms("day(user_id)"), [])


async def test_term_finds_its_column_after_a_rename(catalog: Catalog) -> None:
    table = await typed_table(catalog, user_id=LONG)
    table, _ = await update_layout(catalog, table, layout_of("user_id"))
    table, _ = await evolve(catalog, TOPIC_ID, _renamed)
    again, notice = await update_layout(catalog, table, layout_of("user_id"))
    assert (again is table, notice) == (True, "")


def _renamed(columns: Sequence[Column], next_id: int) -> EvolvedColumns:
    named = [replace(one, name="uid") if one.name == "user_id" else one for one in columns]
    return EvolvedColumns(tuple(named), (), (), next_id)


async def test_partition_field_names_are_unique(catalog: Catalog) -> None:
    table = await typed_table(catalog, a_trunc_2=LONG, a=STRING)
    table, _ = await update_layout(catalog, table, layout_of("truncate(2, a)"))
    assert spec_fields(table) == [("a_trunc_2_", "truncate[2]", 17)]
    # A column that is added later does not get the name of a partition field: readers could not distinguish them.
    table, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(a_trunc_2_=LONG, _stream_partition=LONG)))
    names = [field["name"] for field in table.metadata["schemas"][-1]["fields"]]
    assert names == ["a_trunc_2", "a", "a_trunc_2__", "_stream_partition_", "_stream"]


async def test_defaults_changed_by_an_engine_stay(catalog: Catalog) -> None:
    table = await typed_table(catalog, country=STRING)
    table, _ = await update_layout(catalog, table, layout_of("country", write_x="1"))
    foreign = {"fields": [{"name": "b", "transform": "bucket[2]", "source-id": 16}]}
    table = await catalog.change(
        TOPIC_ID, lambda _: [AddSpec(foreign), SetDefaultSpec(-1), SetProperties({"write.x": "2"})]
    )
    again, _ = await update_layout(catalog, table, layout_of("country", write_x="1"))
    assert again is table
    assert (file_layout(table.metadata).spec_id, sorted(own_specs(table.metadata))) == (1, [0, 1])
    table, _ = await update_layout(catalog, table, layout_of("country", write_x="3"))
    assert table.metadata["properties"]["write.x"] == "3"


async def test_properties_are_set_and_reset_with_the_settings(catalog: Catalog) -> None:
    table = await ensure_table(catalog, TOPIC, TOPIC_ID, {})
    before = table.metadata["properties"]
    table, _ = await update_layout(catalog, table, layout_of(commit_x="1", write_y="2"))
    assert table.metadata["properties"]["commit.x"] == "1"
    own = TableLayout(properties=(("history.expire.max-snapshot-age-ms", "5"), ("write.y", "3")))
    table, _ = await update_layout(catalog, table, own)
    assert "commit.x" not in table.metadata["properties"]
    assert table.metadata["properties"]["history.expire.max-snapshot-age-ms"] == "5"
    table, _ = await update_layout(catalog, table, layout_of())
    assert {**table.metadata["properties"], "lakestream.layout": ""} == {**before, "lakestream.layout": ""}


# Files of all partitions


KINDS: dict[str, tuple[Primitive, list[Any], list[Any]]] = {
    "boolean": (Primitive(Kind.BOOLEAN), [True, False], [True, False]),
    "int": (INT, [-5, 7], [-5, 7]),
    "long": (LONG, [-(2**40), 2**40], [-(2**40), 2**40]),
    "double": (Primitive(Kind.DOUBLE), [math.nan, -1.5], [math.nan, -1.5]),
    "string": (STRING, ["", "äö"], ["", "äö"]),
    "binary": (Primitive(Kind.BINARY), [b"\xff", b""], [b"\xff", b""]),
    "fixed": (Primitive(Kind.FIXED, length=3), [b"abc", b"abd"], [b"abc", b"abd"]),
    "decimal": (
        Primitive(Kind.DECIMAL, precision=9, scale=2),
        [(-1234).to_bytes(decimal_size(9), "big", signed=True), (5).to_bytes(decimal_size(9), "big", signed=True)],
        [Decimal("-12.34"), Decimal("0.05")],
    ),
}


def in_partition(table: LoadedTable, start: int, spec_id: int, *values: Any) -> FileDescription:
    made = file_of(table, 0, start, start + 1, f"s{spec_id}")
    return msgspec.structs.replace(made, spec_id=spec_id, values=values)


async def put(catalog: Catalog, table: LoadedTable, files: Sequence[FileDescription]) -> LoadedTable:
    ends = [MovedRange(0, min(one.offset_first for one in files), max(one.offset_last for one in files) + 1)]
    return await append(catalog, table, files, ends)


@pytest.mark.parametrize("name", KINDS)
async def test_pyiceberg_reads_partition_values_of_every_type(catalog: Catalog, name: str) -> None:
    kind, values, seen = KINDS[name]
    table = await typed_table(catalog, c=kind)
    table, _ = await update_layout(catalog, table, layout_of("c"))
    files = [in_partition(table, start, 1, value) for start, value in enumerate([*values, None])]
    table = await put(catalog, table, files)
    static = StaticTable.from_metadata(table.metadata_location)
    found = {one.file.file_path: one.file.partition[0] for one in static.scan().plan_files()}
    assert str([found[file.location] for file in files]) == str([*seen, None])
    (manifest,) = await manifests_of(catalog, table.metadata)
    assert manifest.partitions is not None
    assert (manifest.partitions[0][f.CONTAINS_NULL], bool(manifest.partitions[0][f.CONTAINS_NAN])) == (
        True,
        name == "double",
    )
    if name in ("int", "long", "string", "decimal"):
        literal = f"'{seen[1]}'" if name == "string" else str(seen[1])
        (only,) = static.scan(row_filter=f"c = {literal}").plan_files()
        assert only.file.file_path == files[1].location


async def test_manifests_of_one_spec_are_merged(catalog: Catalog) -> None:
    table = await typed_table(catalog, c=INT)
    table, _ = await update_layout(catalog, table, layout_of("c, day(_stream.timestamp)"))
    for number in range(FAN_IN + 1):
        files = [in_partition(table, 3 * number, 1, number, 20_000), file_of(table, 0, 3 * number + 1, 3 * number + 2)]
        table = await put(catalog, table, files)
        table = await append(catalog, table, [], moved((0, 3 * number + 2, 3 * number + 3)))
    found = await manifests_of(catalog, table.metadata)
    assert {one.partition_spec_id for one in found} == {0, 1}
    assert len(found) == 4
    large = next(one for one in found if one.partition_spec_id == 1 and one.live_files_count > 1)
    assert large.partitions is not None
    assert [(one[f.LOWER_BOUND], one[f.UPPER_BOUND]) for one in large.partitions] == [
        ((0).to_bytes(4, "little"), (FAN_IN - 1).to_bytes(4, "little")),
        ((20_000).to_bytes(4, "little"),) * 2,
    ]
    static = StaticTable.from_metadata(table.metadata_location)
    assert len(list(static.scan().plan_files())) == 2 * (FAN_IN + 1)
    assert (
        len(list(static.scan(row_filter="c = 3").plan_files())) == 1 + FAN_IN + 1
    )  # the other files have no statistics
    # After the column was widened, its manifests are merged with the existing ones.
    table, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(c=LONG)))
    for number in range(3 * (FAN_IN + 1), 3 * (FAN_IN + 1) + FAN_IN):
        table = await put(catalog, table, [in_partition(table, number, 1, 2**40, 1)])
    sizes = [one.live_files_count for one in await manifests_of(catalog, table.metadata) if one.partition_spec_id == 1]
    assert len(sizes) < FAN_IN
    assert (
        len(list(StaticTable.from_metadata(table.metadata_location).scan().plan_files())) == 2 * (FAN_IN + 1) + FAN_IN
    )


async def test_files_of_several_table_partitions_may_have_overlapping_offsets(catalog: Catalog) -> None:
    table = await typed_table(catalog, c=INT)
    table, _ = await update_layout(catalog, table, layout_of("c"))
    one = msgspec.structs.replace(in_partition(table, 0, 1, 1), offset_last=9, record_count=5)
    other = msgspec.structs.replace(in_partition(table, 0, 1, 2), offset_first=1, offset_last=8, record_count=5)
    table = await append(catalog, table, [one, other], moved((0, 0, 10)))
    assert len(await entries_of(catalog, table.metadata)) == 2
    assert table.metadata["snapshots"][-1]["summary"]["changed-partition-count"] == "2"
    same = msgspec.structs.replace(one, offset_first=10, offset_last=19, location="x/one")
    again = msgspec.structs.replace(same, offset_first=12, offset_last=16, record_count=2, location="x/two")
    with pytest.raises(Rejected, match="overlaps"):
        await append(catalog, table, [same, again], moved((0, 10, 20)))
    many = msgspec.structs.replace(same, record_count=10, location="x/three")
    with pytest.raises(Rejected, match="15 records"):
        await append(catalog, table, [many, msgspec.structs.replace(same, values=(2,))], moved((0, 10, 20)))


async def test_append_fails_when_the_spec_was_removed(catalog: Catalog) -> None:
    table = await typed_table(catalog, c=INT)
    table, _ = await update_layout(catalog, table, layout_of("c"))
    file = in_partition(table, 0, 1, 1)
    gone = await catalog.change(TOPIC_ID, lambda _: [SetDefaultSpec(0), RemovePartitionSpecs([1])])
    with pytest.raises(CommitFailed, match="partition spec 1 was removed"):
        await put(catalog, gone, [file])
    assert file_layout(gone.metadata) == PLAIN_LAYOUT
    back, _ = await update_layout(catalog, gone, layout_of("c"))
    assert file_layout(back.metadata).spec_id == 1
