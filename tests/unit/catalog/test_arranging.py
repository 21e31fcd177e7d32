"""A table is laid out as its topic says, in one commit, again when that changes, and never against somebody else."""

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.table import StaticTable
from tests.unit.catalog.test_evolve import Growing, struct
from tests.unit.catalog.topic import TOPIC, TOPIC_ID, entries_of, file_of, manifests_of, moved

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.append import append
from lakestream.catalog.arranging import Arrangement, arrange, check_terms, file_layout, own_specs
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import FileDescription, MovedRange
from lakestream.catalog.errors import CommitRefused
from lakestream.catalog.evolve import evolve
from lakestream.catalog.file_layout import PLAIN_LAYOUT, Cut
from lakestream.catalog.locations import Locations
from lakestream.catalog.merging import FAN_IN
from lakestream.catalog.partition_values import decimal_size
from lakestream.catalog.shapes import spec_of
from lakestream.catalog.topic_tables import ensure_table
from lakestream.catalog.updates import AddSpec, RemovePartitionSpecs, SetDefaultSpec, SetProperties
from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Misconfigured, Rejected
from lakestream.metadata.memory import MemoryServer
from lakestream.schemas.columns import Column
from lakestream.schemas.growing import Grown
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.terms import Transform, partition_terms, sort_terms
from lakestream.storage.file import FileStore

TYPED = {"lakestream.value.schema": "registry"}


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    objects = FileStore(tmp_path, SystemClock(), RandomIds())
    store = MemoryServer(SystemClock()).client()
    catalog = Catalog(store, objects, Locations(f"file://{tmp_path}"), SystemClock(), RandomIds())
    await catalog.start()
    yield catalog
    await objects.close()


async def typed_table(catalog: Catalog, **columns: Primitive) -> LoadedTable:
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    return (await evolve(catalog, TOPIC_ID, Growing(struct(**columns))))[0]


def wanted(partition: str = "_stream.partition", sort: str = "", **properties: str) -> Arrangement:
    named = tuple(sorted((name.replace("_", "."), text) for name, text in properties.items()))
    return Arrangement(partition=partition_terms(partition), sort=sort_terms(sort), properties=named)


def spec_fields(table: LoadedTable) -> list[tuple[Any, ...]]:
    return [(one["name"], one["transform"], one["source-id"]) for one in spec_of(table.metadata)["fields"]]


INT, LONG, STRING, TIME = (Primitive(kind) for kind in (Kind.INT, Kind.LONG, Kind.STRING, Kind.TIMESTAMPTZ))


async def test_a_table_is_as_it_was_made_unless_somebody_says_otherwise(catalog: Catalog) -> None:
    table = await ensure_table(catalog, TOPIC, TOPIC_ID, {})
    again, notice = await arrange(catalog, table, Arrangement())
    assert again is table
    assert (notice, file_layout(table.metadata), sorted(own_specs(table.metadata))) == ("", PLAIN_LAYOUT, [0])


async def test_partitions_and_order_come_in_one_commit_and_change_later(catalog: Catalog) -> None:
    table = await typed_table(catalog, user_id=LONG, country=STRING)
    versions = len(table.metadata["metadata-log"])
    first = wanted("day(_stream.timestamp), bucket(16, user_id), country", "user_id desc nulls last")
    table, notice = await arrange(catalog, table, first)
    assert notice == ""
    assert len(table.metadata["metadata-log"]) == versions + 1
    assert spec_fields(table) == [
        ("_stream_timestamp_day", "day", 5),
        ("user_id_bucket_16", "bucket[16]", 16),
        ("country", "identity", 17),
    ]
    layout = file_layout(table.metadata)
    assert (layout.spec_id, layout.order_id) == (1, table.metadata["default-sort-order-id"])
    assert layout.cuts[1] == Cut(16, LONG, Transform("bucket", 16))
    assert [(key.cut.source_id, key.is_descending, key.nulls_first) for key in layout.sort] == [(16, True, False)]
    assert (await arrange(catalog, table, first))[0] is table
    # Another one, then by nothing, then back: what was there is found again.
    table, _ = await arrange(catalog, table, wanted("country"))
    assert (spec_of(table.metadata)["spec-id"], table.metadata["default-sort-order-id"]) == (2, 1)
    assert spec_of(table.metadata)["fields"][0]["field-id"] == 1003, "the same field has the same id"
    table, _ = await arrange(catalog, table, wanted(""))
    assert spec_fields(table) == []
    table, _ = await arrange(catalog, table, first)
    assert (spec_of(table.metadata)["spec-id"], file_layout(table.metadata)) == (1, layout)
    table, _ = await arrange(catalog, table, wanted())
    assert (spec_of(table.metadata)["spec-id"], sorted(own_specs(table.metadata))) == (0, [0, 1, 2, 3])
    assert len(table.metadata["partition-specs"]) == 4
    assert StaticTable.from_metadata(table.metadata_location).spec().spec_id == 0


async def test_void_keeps_a_place(catalog: Catalog) -> None:
    table = await typed_table(catalog, country=STRING, at=TIME)
    table, notice = await arrange(catalog, table, wanted("void(country), day(at)"))
    assert (notice, spec_fields(table)) == ("", [("country_null", "void", 16), ("at_day", "day", 17)])
    assert file_layout(table.metadata).cuts[0] == Cut(16, STRING, Transform("void"))
    spec = StaticTable.from_metadata(table.metadata_location).spec()
    assert [str(one.transform) for one in spec.fields] == ["void", "day"]


async def test_a_column_that_is_not_there_is_waited_for(catalog: Catalog) -> None:
    table = await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    asked = wanted("day(_stream.timestamp), country", "country, _stream.offset")
    table, notice = await arrange(catalog, table, asked)
    assert notice == (
        "its table is not partitioned by country: it has no column country yet;"
        " its table is not sorted by country: it has no column country yet"
    )
    assert spec_fields(table) == [("_stream_timestamp_day", "day", 5)]
    table, _ = await evolve(catalog, TOPIC_ID, Growing(struct(country=STRING)))
    table, notice = await arrange(catalog, table, asked)
    assert notice == ""
    assert spec_fields(table) == [("_stream_timestamp_day", "day", 5), ("country", "identity", 16)]


async def test_a_type_that_does_not_fit_is_told_and_left_out(catalog: Catalog) -> None:
    table = await typed_table(catalog, user_id=LONG)
    table, notice = await arrange(catalog, table, wanted("day(user_id), bucket(4, user_id)"))
    assert "not partitioned by day(user_id): column user_id is long" in notice
    assert spec_fields(table) == [("user_id_bucket_4", "bucket[4]", 16)]
    with pytest.raises(Misconfigured, match=r"lakestream.table.partition: day.user_id.: column user_id is long"):
        await check_terms(catalog, TOPIC_ID, partition_terms("day(user_id)"), [])
    with pytest.raises(Misconfigured, match=r"lakestream.table.sort: hour"):
        await check_terms(catalog, TOPIC_ID, [], partition_terms("hour(user_id)"))
    await check_terms(catalog, TOPIC_ID, partition_terms("other, user_id"), [])
    await check_terms(catalog, "f" * 32, partition_terms("day(user_id)"), [])


async def test_a_column_that_was_renamed_is_still_meant(catalog: Catalog) -> None:
    table = await typed_table(catalog, user_id=LONG)
    table, _ = await arrange(catalog, table, wanted("user_id"))
    table, _ = await evolve(catalog, TOPIC_ID, _renamed)
    again, notice = await arrange(catalog, table, wanted("user_id"))
    assert (again is table, notice) == (True, "")


def _renamed(columns: Sequence[Column], next_id: int) -> Grown:
    named = [replace(one, name="uid") if one.name == "user_id" else one for one in columns]
    return Grown(tuple(named), (), (), next_id)


async def test_names_of_partitions_are_free(catalog: Catalog) -> None:
    table = await typed_table(catalog, a_trunc_2=LONG, a=STRING)
    table, _ = await arrange(catalog, table, wanted("truncate(2, a)"))
    assert spec_fields(table) == [("a_trunc_2_", "truncate[2]", 17)]
    # And a column that comes later does not take the name of one, which no reader could tell from it.
    table, _ = await evolve(catalog, TOPIC_ID, Growing(struct(a_trunc_2_=LONG, _stream_partition=LONG)))
    names = [field["name"] for field in table.metadata["schemas"][-1]["fields"]]
    assert names == ["a_trunc_2", "a", "a_trunc_2__", "_stream_partition_", "_stream"]


async def test_what_others_have_changed_stays(catalog: Catalog) -> None:
    table = await typed_table(catalog, country=STRING)
    table, _ = await arrange(catalog, table, wanted("country", write_x="1"))
    foreign = {"fields": [{"name": "b", "transform": "bucket[2]", "source-id": 16}]}
    table = await catalog.change(
        TOPIC_ID, lambda _: [AddSpec(foreign), SetDefaultSpec(-1), SetProperties({"write.x": "2"})]
    )
    again, _ = await arrange(catalog, table, wanted("country", write_x="1"))
    assert again is table
    assert (file_layout(table.metadata).spec_id, sorted(own_specs(table.metadata))) == (1, [0, 1])
    table, _ = await arrange(catalog, table, wanted("country", write_x="3"))
    assert table.metadata["properties"]["write.x"] == "3"


async def test_properties_come_and_go(catalog: Catalog) -> None:
    table = await ensure_table(catalog, TOPIC, TOPIC_ID, {})
    before = table.metadata["properties"]
    table, _ = await arrange(catalog, table, wanted(commit_x="1", write_y="2"))
    assert table.metadata["properties"]["commit.x"] == "1"
    own = Arrangement(properties=(("history.expire.max-snapshot-age-ms", "5"), ("write.y", "3")))
    table, _ = await arrange(catalog, table, own)
    assert "commit.x" not in table.metadata["properties"]
    assert table.metadata["properties"]["history.expire.max-snapshot-age-ms"] == "5"
    table, _ = await arrange(catalog, table, wanted())
    assert {**table.metadata["properties"], "lakestream.layout": ""} == {**before, "lakestream.layout": ""}


# Files of any partition


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
async def test_pyiceberg_reads_partitions_of_every_type(catalog: Catalog, name: str) -> None:
    kind, values, seen = KINDS[name]
    table = await typed_table(catalog, c=kind)
    table, _ = await arrange(catalog, table, wanted("c"))
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


async def test_manifests_are_of_one_spec_and_are_merged_within_it(catalog: Catalog) -> None:
    table = await typed_table(catalog, c=INT)
    table, _ = await arrange(catalog, table, wanted("c, day(_stream.timestamp)"))
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
    assert len(list(static.scan(row_filter="c = 3").plan_files())) == 1 + FAN_IN + 1  # of the others nothing is known
    # What is widened later is merged with what was there.
    table, _ = await evolve(catalog, TOPIC_ID, Growing(struct(c=LONG)))
    for number in range(3 * (FAN_IN + 1), 3 * (FAN_IN + 1) + FAN_IN):
        table = await put(catalog, table, [in_partition(table, number, 1, 2**40, 1)])
    sizes = [one.live_files_count for one in await manifests_of(catalog, table.metadata) if one.partition_spec_id == 1]
    assert len(sizes) < FAN_IN
    assert (
        len(list(StaticTable.from_metadata(table.metadata_location).scan().plan_files())) == 2 * (FAN_IN + 1) + FAN_IN
    )


async def test_files_of_several_partitions_share_a_range_and_none_of_its_rows(catalog: Catalog) -> None:
    table = await typed_table(catalog, c=INT)
    table, _ = await arrange(catalog, table, wanted("c"))
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


async def test_a_spec_that_is_gone_refuses_the_commit(catalog: Catalog) -> None:
    table = await typed_table(catalog, c=INT)
    table, _ = await arrange(catalog, table, wanted("c"))
    file = in_partition(table, 0, 1, 1)
    gone = await catalog.change(TOPIC_ID, lambda _: [SetDefaultSpec(0), RemovePartitionSpecs([1])])
    with pytest.raises(CommitRefused, match="partition spec 1 was removed"):
        await put(catalog, gone, [file])
    assert file_layout(gone.metadata) == PLAIN_LAYOUT
    back, _ = await arrange(catalog, gone, wanted("c"))
    assert file_layout(back.metadata).spec_id == 1
