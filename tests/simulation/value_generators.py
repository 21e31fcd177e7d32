"""Keys and values that producers write into typed topics, valid and invalid ones.

A topic has one generator. During a run it adds kinds of values: fields are added, removed, renamed and widened; some
contradict the columns of the table; some do not match their schema. Every value contains a unique label.

    json      JSON without a schema; the columns are inferred
    registry  schema id and value: Avro and JSON Schema, several ids, also ids that are not registered yet
    latest    Avro without an id, of a subject whose newest version changes while producers use the previous one

In some scenarios keys have schemas, too, some schemas are Protobuf, the layout of tables changes (layouts.py), and
invalid records stop a topic until its settings are changed to keep them.
"""

import asyncio
import io
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any, Final

import fastavro
from tests.harness.typed.toy_schema_format import InProcessParser
from tests.simulation import layouts
from tests.simulation.world import Host, Scenario, World

from lakestream.clock import SeededIds
from lakestream.coordination.schema_registry.registry import RegisterRequest, SchemaRegistry
from lakestream.coordination.schema_registry.subjects import DEFAULT, Subject
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.metadata.topics import Topics
from lakestream.schemas.model import Format
from lakestream.testing.fault_injection import log_uniform

SCHEMA: Final = "lakestream.value.schema"
KEY_SCHEMA: Final = "lakestream.key.schema"
ON_INVALID: Final = "lakestream.invalid.record.action"
FORMATS: Final = "lakestream.table.formats"
VALUES_PER_STAGE: Final = 5
"""Number of values after which a generator adds the next kind."""
UNREGISTERED_ID: Final = 4_000


def _record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Event", "fields": list(fields)})


LABEL: Final = {"name": "label", "type": "string"}
INNER: Final = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "double"]}],
}
FIRST: Final = _record(LABEL, {"name": "n", "type": "int"})
WIDER: Final = _record(
    LABEL, {"name": "n", "type": "long"}, {"name": "extra", "type": ["null", "string"], "default": None}
)
RENAMED: Final = _record(
    {"name": "title", "type": "string", "aliases": ["label"]},
    {"name": "inner", "type": INNER},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
)
CONTRADICTING: Final = _record(LABEL, {"name": "n", "type": "string"})
"""The type of its `n` contradicts that of the other schemas."""
JSON_SCHEMA: Final = json.dumps(
    {
        "type": "object",
        "properties": {"label": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"}},
    }
)


KEY: Final = json.dumps({"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]})
WIDER_KEY: Final = json.dumps(
    {
        "type": "record",
        "name": "Key",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "region", "type": ["null", "string"], "default": None},
        ],
    }
)
PROTO: Final = 'syntax = "proto3"; message Event { string label = 1; int32 n = 2; }'
WIDER_PROTO: Final = (
    'syntax = "proto3"; message Event { string label = 1; int32 n = 2; optional int64 big = 3; string note = 4; }'
)


@dataclass(frozen=True, slots=True)
class SubjectSchema:
    """A schema that is registered during a run."""

    subject: str
    format: Format
    text: str


def value_schemas_of(topic: str, mode: str, has_protobuf: bool = False) -> list[SubjectSchema]:
    if mode == "latest":
        return [SubjectSchema(f"{topic}-value", Format.AVRO, text) for text in (FIRST, WIDER)]
    texts = (FIRST, CONTRADICTING, WIDER, RENAMED, JSON_SCHEMA)
    if has_protobuf:
        texts = (PROTO, FIRST, WIDER_PROTO, RENAMED, JSON_SCHEMA)
    return [SubjectSchema(f"{topic}-{number}", _format(text), text) for number, text in enumerate(texts)]


def key_schemas_of(topic: str) -> list[SubjectSchema]:
    return [SubjectSchema(f"{topic}-key-{number}", Format.AVRO, text) for number, text in enumerate((KEY, WIDER_KEY))]


def _format(text: str) -> Format:
    if text in (PROTO, WIDER_PROTO):
        return Format.PROTOBUF
    return Format.JSON if text is JSON_SCHEMA else Format.AVRO


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def parsed(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


def avro(text: str, value: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, parsed(text), value)
    return sink.getvalue()


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _of_schema(text: str, label: str, number: int) -> bytes:
    if text is JSON_SCHEMA:
        return _compact({"label": label, "n": number, "ok": number % 2 == 0})
    if text is PROTO or text is WIDER_PROTO:
        more = b"" if text is PROTO else b"\x18" + _varint(number << 40) + b"\x22\x01y" * (number % 2)
        return b"\0\x0a" + bytes([len(label)]) + label.encode() + (b"\x10" + _varint(number)) * (number > 0) + more
    if text is RENAMED:
        inner = {"a": number, "b": None if number % 2 else number / 2}
        return avro(text, {"title": label, "inner": inner, "tags": ["x"] * (number % 3)})
    value: dict[str, Any] = {"label": label, "n": str(number) if text is CONTRADICTING else number}
    if text is WIDER:
        value |= {"n": number << 40, "extra": None if number % 2 else "y"}
    return avro(text, value)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _framed(schema_id: int, body: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + body


PLAIN_KEYS: Final[Sequence[Callable[[int], bytes | None]]] = (
    lambda n: None,
    lambda n: _compact({"id": n}),
    lambda n: _compact({"id": n, "region": "eu"}),
    lambda n: _compact({"id": f"{n}"}),
    lambda n: f"k{n}".encode(),
)
PLAIN: Final[Sequence[Callable[[str, int], bytes]]] = (
    lambda label, n: _compact({"label": label, "n": n}),
    lambda label, n: _compact({"label": label, "n": n, "ok": True}),
    lambda label, n: _compact({"label": label, "n": n + 0.5}),  # widens the column, or gets a second one
    lambda label, n: json.dumps({"label": label, "n": n}).encode(),  # another style
    lambda label, n: _compact({"label": label, "inner": {"a": n, "b": [1, n]}}),
    lambda label, n: label.encode(),  # no JSON
    lambda label, n: _compact({"n": str(n), "label": label}),  # contradicts the number column
    lambda label, n: (
        f'{{"label":"{label}","n":1.50e0,"n":{n}}}'.encode()
    ),  # cannot be restored from columns byte for byte
    lambda label, n: _compact({"label": label, "n": None, "inner": {"c": label}}),
    lambda label, n: _compact({"label": label, "n": 2**70 + n}),
)


@dataclass(slots=True)
class ValueGenerator:
    mode: str
    topic: str
    delta: bool = False
    late: bool = False
    """The topic has no schema setting at first."""
    ids: list[int] = field(default_factory=list)
    """Ids of the schemas registered so far."""
    count: int = 0
    key_mode: str = "none"
    key_ids: list[int] = field(default_factory=list)
    has_protobuf: bool = False
    layout: layouts.TableLayout | None = None
    """Present layout, or None for the default of all tables."""
    stops: bool = False
    """Invalid records have stopped the topic since it was created."""

    @property
    def settings(self) -> dict[str, str]:
        formats = {FORMATS: "iceberg,delta"} if self.delta else {}
        keys = {KEY_SCHEMA: self.key_mode} if self.key_mode != "none" else {}
        layout = {} if self.layout is None else self.layout.settings
        return {SCHEMA: self.mode, ON_INVALID: "stop" if self.stops else "keep", **formats, **keys, **layout}

    def batch_options(self, count: int, rng: Random) -> dict[str, Any]:
        """Draws keys and timestamp of a batch of `count` values, as options of `make_batch`."""
        options: dict[str, Any] = {}
        if self.key_mode != "none":
            options["keys"] = [self.key(rng) for _ in range(count)]
        if self.layout is not None:
            options["timestamp_ms"] = layouts.timestamp_ms(rng)
        return options

    def key(self, rng: Random) -> bytes | None:
        number, kind = rng.randrange(20), rng.randrange(len(PLAIN_KEYS))
        if self.key_mode == "json" or kind in (0, len(PLAIN_KEYS) - 1):
            # An invalid key stops all records after it, so a topic that stops gets few of them.
            return PLAIN_KEYS[kind](number) if not self.stops or kind < 3 or rng.random() < 0.1 else None
        if kind == 1 or len(self.key_ids) < 2:
            return _framed(self.key_ids[0] if self.key_ids else 1, avro(KEY, {"id": number}))
        return _framed(self.key_ids[1], avro(WIDER_KEY, {"id": number << 33, "region": "eu" if number % 2 else None}))

    def value(self, label: str, rng: Random) -> bytes:
        self.count += 1
        stage, number = 1 + self.count // VALUES_PER_STAGE, rng.randrange(100)
        if self.mode == "json":
            return rng.choice(PLAIN[:stage])(label, number)
        schemas = value_schemas_of(self.topic, self.mode, self.has_protobuf)
        schemas = schemas[: stage if self.mode == "latest" else len(self.ids) + 1]
        index = rng.randrange(len(schemas))
        body = _of_schema(schemas[index].text, label, number)
        if rng.random() < 0.1:
            body = body[:-1] if rng.random() < 0.5 else body + b"."  # too short, too long
        if self.mode == "latest":
            return label.encode() if rng.random() < 0.1 else body
        if rng.random() < 0.1:
            return label.encode()  # without a schema id
        # The id that an unregistered schema may get; another topic's schema may get it instead.
        schema_id = self.ids[index] if index < len(self.ids) else len(self.ids) + 1
        if rng.random() < 0.1:
            schema_id = rng.choice([*self.ids, UNREGISTERED_ID])  # maybe the id of another schema
        return _framed(schema_id, body)


def draw_generator(topic: str, rng: Random, scenario: Scenario) -> ValueGenerator:
    mode = rng.choice(("json", "json", "registry", "registry", "latest"))
    generator = ValueGenerator(mode, topic, rng.random() < 0.5, rng.random() < 0.2)
    # Draw only what the scenario uses, so that runs of older scenarios do not change.
    if scenario.layouts and rng.random() < scenario.layouts:
        generator.layout = layouts.draw_layout(rng)
    if scenario.keyed and rng.random() < scenario.keyed:
        generator.key_mode = rng.choice(("registry", "registry", "json"))
    if scenario.stops and rng.random() < scenario.stops:
        generator.stops = not generator.late
    if scenario.protobuf and rng.random() < scenario.protobuf:
        generator.has_protobuf = True
    return generator


# ── topic settings ───────────────────────────────────────────────────────────────────────────────────────────────────


async def _set_schema_late(world: World, generator: ValueGenerator) -> None:
    """Sets the topic's schema when its table already has rows of bytes."""
    await asyncio.sleep(log_uniform(world.rng, 1.0, world.scenario.think_s_max * 3))
    await _alter_topic(world, generator)


def changes(world: World, generator: ValueGenerator) -> list[Coroutine[Any, Any, None]]:
    """Returns the changes of the topic's settings during a run."""
    return [
        *([_change_layouts(world, generator)] if generator.layout is not None else []),
        *([_keep_invalid(world, generator)] if generator.stops else []),
    ]


async def _change_layouts(world: World, generator: ValueGenerator) -> None:
    for _ in range(world.rng.randint(0, 4)):
        await asyncio.sleep(log_uniform(world.rng, 1.0, world.scenario.think_s_max * 3))
        generator.layout = layouts.draw_layout(world.rng)
        await _alter_topic(world, generator)
        world.tally["layouts changed"] += 1


async def _keep_invalid(world: World, generator: ValueGenerator) -> None:
    """Changes the topic's setting so that invalid records no longer stop it."""
    await asyncio.sleep(log_uniform(world.rng, 5.0, world.scenario.think_s_max * 10))
    generator.stops = False
    await _alter_topic(world, generator)


async def _alter_topic(world: World, generator: ValueGenerator) -> None:
    """Writes the generator's settings to the topic."""
    while True:
        host = world.any_broker()
        topics = Topics(host.metadata)
        try:
            await host.call(lambda _, topics=topics: topics.alter(generator.topic, lambda _: generator.settings))  # type: ignore[misc]
        except Missing:
            return
        except LakestreamError:
            await asyncio.sleep(log_uniform(world.rng, 0.1, 5.0))
        else:
            return


# ── schema registration ──────────────────────────────────────────────────────────────────────────────────────────────


async def register_schemas(world: World, generator: ValueGenerator) -> None:
    """Registers the schemas one after the other, each until a broker returns its id."""
    if generator.late:
        await _set_schema_late(world, generator)
    keys = key_schemas_of(generator.topic) if generator.key_mode == "registry" else []
    values = (
        value_schemas_of(generator.topic, generator.mode, generator.has_protobuf) if generator.mode != "json" else []
    )
    for schema in (*keys[:1], *values, *keys[1:]):
        (generator.key_ids if schema in keys else generator.ids).append(await _register(world, schema))
        world.tally["schemas registered"] += 1
        await asyncio.sleep(log_uniform(world.rng, 0.5, world.scenario.think_s_max))


async def _register(world: World, schema: SubjectSchema) -> int:
    request = RegisterRequest(subject=Subject(DEFAULT, schema.subject), format=schema.format, text=schema.text)
    while True:
        host = world.any_broker()
        register = partial(_registry(world, host).register, request)
        try:
            schema_id = (await host.call(lambda _, register=register: register())).version.id  # type: ignore[misc]
        except Unavailable:
            await asyncio.sleep(log_uniform(world.rng, 0.1, 5.0))
        except LakestreamError as error:
            world.oracle.report("only documented errors", f"registering {schema.subject} raised {error!r}")
            return 0
        else:
            world.oracle.types.registered(schema_id, schema.text, schema.format.value)
            return int(schema_id)


def _registry(world: World, host: Host) -> SchemaRegistry:
    if (registry := world.registries.get(host)) is None:
        registry = world.registries[host] = SchemaRegistry(host.metadata, SeededIds(world.rng), InProcessParser())
    assert isinstance(registry, SchemaRegistry)
    return registry
