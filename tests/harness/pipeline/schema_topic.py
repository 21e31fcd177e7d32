"""A topic with schemas over stores in memory, with a registry, a log and a driver."""

import io
import json
from typing import Any

import fastavro
from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import PipelineDriver
from tests.harness.typed.toy_schema_format import InProcessParser

from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.clock import RandomIds
from lakestream.coordination.schema_registry.registry import RegisterRequest, SchemaRegistry
from lakestream.coordination.schema_registry.subjects import parse
from lakestream.data.log.log import Log
from lakestream.metadata.schemas import Configured
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch
from lakestream.schemas.model import Format
from lakestream.testing.batches import make_batch

REGISTRY = {"lakestream.value.schema": "registry"}


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


def encoded(schema: dict[str, Any], value: Any, schema_id: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return (b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")) + out.getvalue()


class SchemaTopic:
    """One topic, its log, a registry and a driver."""

    def __init__(self, world: World, log: Log, pipeline: PipelineDriver, partition: PartitionId) -> None:
        self.world = world
        self.log = log
        self.pipeline = pipeline
        self.partition = partition
        self.registry = SchemaRegistry(world.server.client(), RandomIds(), InProcessParser())

    @classmethod
    async def start(cls, world: World, settings: dict[str, str]) -> "SchemaTopic":
        (partition,) = await world.topic()
        await world.topics.set("t", settings)
        return cls(world, await world.broker(), await PipelineDriver.start(world), partition)

    async def register(self, schema: dict[str, Any] | str, subject: str = "t-value", kind: Format = Format.AVRO) -> int:
        await self.registry.change(lambda _: Configured("", {"compatibilityLevel": "NONE"}))
        text = schema if isinstance(schema, str) else json.dumps(schema)
        request = RegisterRequest(subject=parse(subject), format=kind, text=text)
        return (await self.registry.register(request)).version.id

    async def append(self, *values: bytes | None, keys: list[bytes | None] | None = None) -> None:
        await self.log.append(self.partition, RecordBatch.parse(make_batch(list(values), keys=keys)))
        self.pipeline.changed.requeue([self.partition])

    async def rows(self) -> list[dict[str, Any]]:
        return await self.pipeline.plain_rows(self.partition)

    async def columns(self) -> dict[str, Any]:
        table = await self.pipeline.catalog.load_id(self.partition.topic_id)
        return {one["name"]: one["type"] for one in schema_of(table.metadata)["fields"] if one["name"] != "_stream"}

    def close(self) -> None:
        """Does nothing: the registry parses in this process."""
