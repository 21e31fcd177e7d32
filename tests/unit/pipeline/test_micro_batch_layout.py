"""Tests partitioning, sort order and properties of tables by topic settings; consumers get the records by offset."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    LongType,
    TimestamptzType,
    UUIDType,
)
from tests.harness.catalog.topic_tables import entries_of
from tests.harness.log.brokers import World
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record
from tests.unit.pipeline.repair.test_repair import repair

from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.table_metadata.json_model import Json, spec_of
from lakestream.data.table.history import TableHistory
from lakestream.model import MiB
from lakestream.records.file_region import as_bytes
from lakestream.testing.batches import records_of

JSON = {"lakestream.value.schema": "json"}
PARTITION, SORT, PROPERTIES = (f"lakestream.table.{name}" for name in ("partition", "sort", "properties"))
COUNTRIES = ("de", "fr", None, "us")


class LayoutTopic:
    def __init__(self, topic: SchemaTopic) -> None:
        self.topic = topic
        self.sent: list[bytes] = []
        self.history = TableHistory(topic.pipeline.catalog, topic.world.objects, 8 * MiB)

    async def set(self, settings: Mapping[str, str]) -> None:
        await self.topic.world.topics.set("t", {**JSON, **settings})

    async def send(self, count: int = 20, **more: Any) -> None:
        start = len(self.sent)
        values = [
            json.dumps({"n": at, "country": COUNTRIES[at % 4], **more}).encode() for at in range(start, start + count)
        ]
        self.sent += values
        await self.topic.append(*values)
        done = await self.topic.pipeline.micro_batches.run()
        assert (done.records, done.stalled) == (count, [])

    async def metadata(self) -> Json:
        return (await self.topic.pipeline.catalog.load_id(self.topic.partition.topic_id)).metadata

    async def partitions(self) -> Counter[tuple[Any, ...]]:
        """Returns the number of rows of each table partition, from the manifests."""
        found: Counter[tuple[Any, ...]] = Counter()
        for entry in await entries_of(self.topic.pipeline.catalog, await self.metadata()):
            file = entry[f.DATA_FILE]
            found[tuple(file[f.PARTITION].values())] += file[f.RECORD_COUNT]
        return found

    async def served(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        while len(found) < len(self.sent):
            past = await self.history.read(self.topic.partition, len(found), 2_000)
            records = [one for _, pieces in past.batches for one in records_of(as_bytes(pieces))]
            first = past.batches[0][0]
            found += [one.value for at, one in enumerate(records, first) if at >= len(found)]
        return found

    @property
    def pending_layout(self) -> str:
        return self.topic.pipeline.micro_batches.statuses.by_name()["t"].pending_layout


@pytest.fixture
async def layout(world: World) -> AsyncIterator[LayoutTopic]:
    topic = await SchemaTopic.start(world, JSON)
    layout = LayoutTopic(topic)
    yield layout
    await layout.history.close()
    topic.close()


async def test_first_records_are_partitioned_by_columns_of_their_schema(layout: LayoutTopic) -> None:
    await layout.set({PARTITION: "country, bucket(2, n)", SORT: "n desc"})
    await layout.send()
    assert layout.pending_layout == ""
    assert len((await layout.metadata())["partition-specs"]) == 2, "no spec was added before the columns"
    found = await layout.partitions()
    assert {country for country, _ in found} == set(COUNTRIES)
    assert {bucket for _, bucket in found} == {0, 1}
    assert found.total() == 20
    await layout.send(60)
    assert (await layout.partitions()).total() == 80
    assert await layout.served() == layout.sent


async def test_old_files_are_not_rewritten_when_the_layout_changes(layout: LayoutTopic) -> None:
    await layout.send()
    await layout.set({PARTITION: "country"})
    await layout.send()
    await layout.set({PARTITION: "day(_stream.timestamp), truncate(10, n)", SORT: "country nulls last, n desc"})
    await layout.send()
    await layout.set({PARTITION: ""})
    await layout.send()
    await layout.set({})
    await layout.send()
    found = await layout.partitions()
    assert found[0,] == 40
    assert found[()] == 20
    assert {one for one in found if len(one) == 1} == {(0,), *((country,) for country in COUNTRIES)}
    assert {one[1] for one in found if len(one) == 2} == {40, 50}
    metadata = await layout.metadata()
    assert spec_of(metadata)["spec-id"] == 0
    orders = [
        entry[f.DATA_FILE][f.SORT_ORDER_ID] for entry in await entries_of(layout.topic.pipeline.catalog, metadata)
    ]
    assert set(orders) == {1, 2}
    assert await layout.served() == layout.sent


async def test_layout_is_pending_until_its_column_exists(layout: LayoutTopic) -> None:
    await layout.set({PARTITION: "country, city"})
    await layout.send()
    assert layout.pending_layout == "its table is not partitioned by city: it has no column city yet"
    assert set(await layout.partitions()) == {(country,) for country in COUNTRIES}
    await layout.send(city="x")
    assert layout.pending_layout == ""
    assert ("de", "x") in await layout.partitions()
    assert await layout.served() == layout.sent


async def test_properties_are_set_and_removed_with_the_setting(layout: LayoutTopic) -> None:
    await layout.set({PROPERTIES: "write.target-file-size-bytes=1,read.split.target-size=5"})
    await layout.send()
    properties = (await layout.metadata())["properties"]
    assert (properties["write.target-file-size-bytes"], properties["read.split.target-size"]) == ("1", "5")
    await layout.set({})
    await layout.send()
    properties = (await layout.metadata())["properties"]
    assert not {"write.target-file-size-bytes", "read.split.target-size"} & properties.keys()


async def test_unchanged_layout_needs_no_commit(layout: LayoutTopic) -> None:
    await layout.set({PARTITION: "country", SORT: "n", PROPERTIES: "a=b"})
    await layout.send()
    before = len((await layout.metadata())["metadata-log"])
    await layout.send()
    await layout.send()
    assert len((await layout.metadata())["metadata-log"]) == before + 2


async def test_repaired_rows_are_written_to_their_partitions(world: World) -> None:
    v1, v2 = record(("name", "string")), record(("name", "string"), ("n", ["null", "int"]))
    topic = await SchemaTopic.start(world, {**REGISTRY, PARTITION: "name"})
    layout = LayoutTopic(topic)
    one = await topic.register(v1)
    layout.sent = [encoded(v1, {"name": "a"}, one), encoded(v2, {"name": "b", "n": 3}, one + 1)]
    await topic.append(*layout.sent)
    await topic.pipeline.micro_batches.run()
    assert dict(await layout.partitions()) == {("a",): 1, (None,): 1}
    assert await topic.register(v2) == one + 1
    done = await repair(topic)
    assert (done.rows_before, done.rows_after) == (1, 0)
    assert dict(await layout.partitions()) == {("a",): 1, ("b",): 1}
    assert await layout.served() == layout.sent
    await layout.history.close()
    topic.close()


KINDS: dict[str, Any] = {
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "id": {"type": "string", "logicalType": "uuid"},
    "four": {"type": "fixed", "name": "Four", "size": 4},
    "raw": "bytes",
    "born": {"type": "int", "logicalType": "date"},
    "text": "string",
}
TERMS = [
    *("truncate(100, price)", "bucket(4, id)", "bucket(3, four)", "truncate(1, raw)", "year(born)", "void(text)"),
    *("hour(inner.at)", "bucket(2, _key.x)", "day(_stream.timestamp)"),
]


def value_of(number: int) -> dict[str, Any]:
    return {
        "price": Decimal(number * 37 - 400).scaleb(-2),
        "id": UUID(int=number % 5),
        "four": bytes([0, 0, 0, number % 3]),
        "raw": b"ab" if number % 2 else b"c",
        "born": date(1969 + number % 3, 1, 1),
        "text": str(number),
        "inner": {"at": datetime(2024, 1, 1, number % 2, 59, tzinfo=UTC)},
    }


async def test_partition_values_of_all_types_equal_those_of_pyiceberg(world: World) -> None:
    at = {"type": "long", "logicalType": "timestamp-micros"}
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": at}]}
    schema = record(*KINDS.items(), ("inner", inner))
    key = record(("x", "long"), name="Key")
    settings = {**REGISTRY, "lakestream.key.schema": "registry", PARTITION: ", ".join(TERMS)}
    layout = LayoutTopic(topic := await SchemaTopic.start(world, settings))
    one, other = await topic.register(schema), await topic.register(key, "t-key")
    layout.sent = [encoded(schema, value_of(number), one) for number in range(30)]
    keys: list[bytes | None] = [encoded(key, {"x": number}, other) for number in range(30)]
    await topic.append(*layout.sent, keys=keys)
    await topic.pipeline.micro_batches.run()
    assert (await topic.pipeline.micro_batches.run()).stalled == []
    assert layout.pending_layout == ""

    def partition_value(transform: str, kind: IcebergType, value: Any) -> Any:
        found = parse_transform(transform).transform(kind)(value)
        return int(found.scaleb(2)).to_bytes(4, "big", signed=True) if isinstance(found, Decimal) else found

    stamps = {row["_stream"]["offset"]: row["_stream"]["timestamp"] for row in await topic.rows()}
    expected = Counter(
        (
            partition_value("truncate[100]", DecimalType(9, 2), value["price"]),
            partition_value("bucket[4]", UUIDType(), value["id"]),
            partition_value("bucket[3]", FixedType(4), value["four"]),
            partition_value("truncate[1]", BinaryType(), value["raw"]),
            partition_value("year", DateType(), value["born"]),
            None,
            partition_value("hour", TimestamptzType(), value["inner"]["at"]),
            partition_value("bucket[2]", LongType(), number),
            partition_value("day", TimestamptzType(), stamps[number]),
        )
        for number in range(30)
        for value in [value_of(number)]
    )
    assert await layout.partitions() == expected
    assert len(expected) > 10
    assert await layout.served() == layout.sent
    await layout.history.close()
    topic.close()
