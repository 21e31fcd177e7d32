"""A table is partitioned, sorted and has properties as its topic says, from the first records on and when it changes;
a consumer gets what was produced, by offset, whatever the files are."""

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
from tests.unit.catalog.topic import entries_of
from tests.unit.data.brokers import World
from tests.unit.pipeline.maintenance.test_repair import repair
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.shapes import Json, spec_of
from lakestream.data.table.history import TableHistory
from lakestream.filed import as_bytes
from lakestream.model import MiB
from lakestream.testing.batches import records_of

JSON = {"lakestream.value.schema": "json"}
PARTITION, SORT, PROPERTIES = (f"lakestream.table.{name}" for name in ("partition", "sort", "properties"))
COUNTRIES = ("de", "fr", None, "us")


class Arranged:
    def __init__(self, typed: Typed) -> None:
        self.typed = typed
        self.sent: list[bytes] = []
        self.history = TableHistory(typed.driving.catalog, typed.world.objects, 8 * MiB)

    async def set(self, settings: Mapping[str, str]) -> None:
        await self.typed.world.topics.set("t", {**JSON, **settings})

    async def send(self, count: int = 20, **more: Any) -> None:
        start = len(self.sent)
        values = [
            json.dumps({"n": at, "country": COUNTRIES[at % 4], **more}).encode() for at in range(start, start + count)
        ]
        self.sent += values
        await self.typed.append(*values)
        done = await self.typed.driving.rounds.run()
        assert (done.records, done.stuck) == (count, [])

    async def metadata(self) -> Json:
        return (await self.typed.driving.catalog.load_id(self.typed.partition.topic_id)).metadata

    async def partitions(self) -> Counter[tuple[Any, ...]]:
        """How many rows each has, by what stands in the manifests."""
        found: Counter[tuple[Any, ...]] = Counter()
        for entry in await entries_of(self.typed.driving.catalog, await self.metadata()):
            file = entry[f.DATA_FILE]
            found[tuple(file[f.PARTITION].values())] += file[f.RECORD_COUNT]
        return found

    async def served(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        while len(found) < len(self.sent):
            past = await self.history.read(self.typed.partition, len(found), 2_000)
            records = [one for _, pieces in past.batches for one in records_of(as_bytes(pieces))]
            first = past.batches[0][0]
            found += [one.value for at, one in enumerate(records, first) if at >= len(found)]
        return found

    @property
    def unmet(self) -> str:
        return self.typed.driving.rounds.named_standings()["t"].unmet


@pytest.fixture
async def arranged(world: World) -> AsyncIterator[Arranged]:
    typed = await Typed.start(world, JSON)
    arranged = Arranged(typed)
    yield arranged
    await arranged.history.close()
    typed.close()


async def test_the_first_records_are_partitioned_by_columns_that_come_with_them(arranged: Arranged) -> None:
    await arranged.set({PARTITION: "country, bucket(2, n)", SORT: "n desc"})
    await arranged.send()
    assert arranged.unmet == ""
    assert len((await arranged.metadata())["partition-specs"]) == 2, "none of what was there before the columns"
    found = await arranged.partitions()
    assert {country for country, _ in found} == set(COUNTRIES)
    assert {bucket for _, bucket in found} == {0, 1}
    assert found.total() == 20
    await arranged.send(60)
    assert (await arranged.partitions()).total() == 80
    assert await arranged.served() == arranged.sent


async def test_a_layout_changes_and_files_stay_as_they_are(arranged: Arranged) -> None:
    await arranged.send()
    await arranged.set({PARTITION: "country"})
    await arranged.send()
    await arranged.set({PARTITION: "day(_stream.timestamp), truncate(10, n)", SORT: "country nulls last, n desc"})
    await arranged.send()
    await arranged.set({PARTITION: ""})
    await arranged.send()
    await arranged.set({})
    await arranged.send()
    found = await arranged.partitions()
    assert found[0,] == 40
    assert found[()] == 20
    assert {one for one in found if len(one) == 1} == {(0,), *((country,) for country in COUNTRIES)}
    assert {one[1] for one in found if len(one) == 2} == {40, 50}
    metadata = await arranged.metadata()
    assert spec_of(metadata)["spec-id"] == 0
    orders = [
        entry[f.DATA_FILE][f.SORT_ORDER_ID] for entry in await entries_of(arranged.typed.driving.catalog, metadata)
    ]
    assert set(orders) == {1, 2}
    assert await arranged.served() == arranged.sent


async def test_what_cannot_be_had_yet_is_told_until_it_can(arranged: Arranged) -> None:
    await arranged.set({PARTITION: "country, city"})
    await arranged.send()
    assert arranged.unmet == "its table is not partitioned by city: it has no column city yet"
    assert set(await arranged.partitions()) == {(country,) for country in COUNTRIES}
    await arranged.send(city="x")
    assert arranged.unmet == ""
    assert ("de", "x") in await arranged.partitions()
    assert await arranged.served() == arranged.sent


async def test_properties_are_set_and_obeyed(arranged: Arranged) -> None:
    await arranged.set({PROPERTIES: "write.target-file-size-bytes=1,read.split.target-size=5"})
    await arranged.send()
    properties = (await arranged.metadata())["properties"]
    assert (properties["write.target-file-size-bytes"], properties["read.split.target-size"]) == ("1", "5")
    await arranged.set({})
    await arranged.send()
    properties = (await arranged.metadata())["properties"]
    assert not {"write.target-file-size-bytes", "read.split.target-size"} & properties.keys()


async def test_in_steady_state_nothing_is_committed_but_rows(arranged: Arranged) -> None:
    await arranged.set({PARTITION: "country", SORT: "n", PROPERTIES: "a=b"})
    await arranged.send()
    before = len((await arranged.metadata())["metadata-log"])
    await arranged.send()
    await arranged.send()
    assert len((await arranged.metadata())["metadata-log"]) == before + 2


async def test_rows_that_are_repaired_come_into_their_partitions(world: World) -> None:
    v1, v2 = record(("name", "string")), record(("name", "string"), ("n", ["null", "int"]))
    typed = await Typed.start(world, {**REGISTRY, PARTITION: "name"})
    arranged = Arranged(typed)
    one = await typed.register(v1)
    arranged.sent = [encoded(v1, {"name": "a"}, one), encoded(v2, {"name": "b", "n": 3}, one + 1)]
    await typed.append(*arranged.sent)
    await typed.driving.rounds.run()
    assert dict(await arranged.partitions()) == {("a",): 1, (None,): 1}
    assert await typed.register(v2) == one + 1
    done = await repair(typed)
    assert (done.rows_before, done.rows_after) == (1, 0)
    assert dict(await arranged.partitions()) == {("a",): 1, ("b",): 1}
    assert await arranged.served() == arranged.sent
    await arranged.history.close()
    typed.close()


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


def valued(number: int) -> dict[str, Any]:
    return {
        "price": Decimal(number * 37 - 400).scaleb(-2),
        "id": UUID(int=number % 5),
        "four": bytes([0, 0, 0, number % 3]),
        "raw": b"ab" if number % 2 else b"c",
        "born": date(1969 + number % 3, 1, 1),
        "text": str(number),
        "inner": {"at": datetime(2024, 1, 1, number % 2, 59, tzinfo=UTC)},
    }


async def test_every_type_and_place_as_pyiceberg_divides_it(world: World) -> None:
    at = {"type": "long", "logicalType": "timestamp-micros"}
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": at}]}
    schema = record(*KINDS.items(), ("inner", inner))
    key = record(("x", "long"), name="Key")
    settings = {**REGISTRY, "lakestream.key.schema": "registry", PARTITION: ", ".join(TERMS)}
    arranged = Arranged(typed := await Typed.start(world, settings))
    one, other = await typed.register(schema), await typed.register(key, "t-key")
    arranged.sent = [encoded(schema, valued(number), one) for number in range(30)]
    keys: list[bytes | None] = [encoded(key, {"x": number}, other) for number in range(30)]
    await typed.append(*arranged.sent, keys=keys)
    await typed.driving.rounds.run()
    assert (await typed.driving.rounds.run()).stuck == []
    assert arranged.unmet == ""

    def divided(transform: str, kind: IcebergType, value: Any) -> Any:
        found = parse_transform(transform).transform(kind)(value)
        return int(found.scaleb(2)).to_bytes(4, "big", signed=True) if isinstance(found, Decimal) else found

    stamps = {row["_stream"]["offset"]: row["_stream"]["timestamp"] for row in await typed.rows()}
    wanted = Counter(
        (
            divided("truncate[100]", DecimalType(9, 2), value["price"]),
            divided("bucket[4]", UUIDType(), value["id"]),
            divided("bucket[3]", FixedType(4), value["four"]),
            divided("truncate[1]", BinaryType(), value["raw"]),
            divided("year", DateType(), value["born"]),
            None,
            divided("hour", TimestamptzType(), value["inner"]["at"]),
            divided("bucket[2]", LongType(), number),
            divided("day", TimestamptzType(), stamps[number]),
        )
        for number in range(30)
        for value in [valued(number)]
    )
    assert await arranged.partitions() == wanted
    assert len(wanted) > 10
    assert await arranged.served() == arranged.sent
    await arranged.history.close()
    typed.close()
