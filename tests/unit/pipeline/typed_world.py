"""A typed topic over stores in memory, with a registry, a log and a driver."""

import io
import json
from typing import Any

import fastavro
from tests.unit.data.brokers import World
from tests.unit.pipeline.driving import Driving

from lakestream.batch import RecordBatch
from lakestream.catalog.shapes import schema_of
from lakestream.clock import RandomIds
from lakestream.coordination.schemas.names import parse
from lakestream.coordination.schemas.registry import SchemaRegistry, Wanted
from lakestream.data.log.log import Log
from lakestream.metadata.schemas import Configured
from lakestream.model import PartitionId
from lakestream.schemas.model import Format
from lakestream.testing.batches import make_batch

REGISTRY = {"lakestream.value.schema": "registry"}


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


def encoded(schema: dict[str, Any], value: Any, schema_id: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return (b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")) + out.getvalue()


class Typed:
    """One topic, its log, a registry and a driver."""

    def __init__(self, world: World, log: Log, driving: Driving, partition: PartitionId) -> None:
        self.world = world
        self.log = log
        self.driving = driving
        self.partition = partition
        self.registry = SchemaRegistry(world.server.client(), RandomIds())

    @classmethod
    async def start(cls, world: World, settings: dict[str, str]) -> "Typed":
        (partition,) = await world.topic()
        await world.topics.set("t", settings)
        return cls(world, await world.broker(), await Driving.start(world), partition)

    async def register(self, schema: dict[str, Any] | str, subject: str = "t-value", kind: Format = Format.AVRO) -> int:
        await self.registry.change(lambda _: Configured("", {"compatibilityLevel": "NONE"}))
        text = schema if isinstance(schema, str) else json.dumps(schema)
        wanted = Wanted(subject=parse(subject), format=kind, text=text)
        return (await self.registry.register(wanted)).version.id

    async def append(self, *values: bytes | None, keys: list[bytes | None] | None = None) -> None:
        await self.log.append(self.partition, RecordBatch.parse(make_batch(list(values), keys=keys)))
        self.driving.changed.look_again([self.partition])

    async def rows(self) -> list[dict[str, Any]]:
        return await self.driving.plain_rows(self.partition)

    async def columns(self) -> dict[str, Any]:
        table = await self.driving.catalog.load_id(self.partition.topic_id)
        return {one["name"]: one["type"] for one in schema_of(table.metadata)["fields"] if one["name"] != "_stream"}

    def close(self) -> None:
        self.registry.close()
