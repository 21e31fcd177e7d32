"""What producers write into typed topics: values with schemas, and those that only look so.

A topic has one dialect. The longer a run goes on, the more kinds of values it has: fields come, go, are renamed and
widened; some contradict the columns that the table has by then; some are no values of their schema at all. Every value
has a label of its own in it, so that no two are the same.

    json      plain JSON, whose columns are found in it
    registry  the id of a schema in front: Avro and JSON Schema, several ids, also of schemas that nobody registered yet
    latest    Avro without an id, of a subject whose newest version changes while producers still use the one before

In some moods keys have schemas as well, some schemas are Protobuf, tables are laid out in ways that change
(layouts.py), and what does not fit holds a topic up until somebody says that it is to be kept.
"""

import asyncio
import io
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any, Final, TypeVar

import fastavro
from tests.simulation import layouts
from tests.simulation.world import Host, Mood, World

from lakestream.clock import SeededIds
from lakestream.coordination.schemas.names import DEFAULT, Subject
from lakestream.coordination.schemas.reading import Reading
from lakestream.coordination.schemas.registry import SchemaRegistry, Wanted
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.metadata.topics import Topics
from lakestream.schemas.model import Format
from lakestream.testing.faults import spread

T = TypeVar("T")

SCHEMA: Final = "lakestream.value.schema"
KEY_SCHEMA: Final = "lakestream.key.schema"
ON_INVALID: Final = "lakestream.on.invalid"
FORMATS: Final = "lakestream.table.formats"
VALUES_PER_STAGE: Final = 5
"""Then producers begin with the next kind of values."""
NOBODYS_ID: Final = 4_000


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
CONTRARY: Final = _record(LABEL, {"name": "n", "type": "string"})
"""Its `n` does not fit the column that the others have."""
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
class Known:
    """A schema that somebody registers in the course of a run."""

    subject: str
    format: Format
    text: str


def schemas_of(topic: str, mode: str, has_protobuf: bool = False) -> list[Known]:
    if mode == "latest":
        return [Known(f"{topic}-value", Format.AVRO, text) for text in (FIRST, WIDER)]
    texts = (FIRST, CONTRARY, WIDER, RENAMED, JSON_SCHEMA)
    if has_protobuf:
        texts = (PROTO, FIRST, WIDER_PROTO, RENAMED, JSON_SCHEMA)
    return [Known(f"{topic}-{number}", _format(text), text) for number, text in enumerate(texts)]


def keys_of(topic: str) -> list[Known]:
    return [Known(f"{topic}-key-{number}", Format.AVRO, text) for number, text in enumerate((KEY, WIDER_KEY))]


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
    value: dict[str, Any] = {"label": label, "n": str(number) if text is CONTRARY else number}
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
    lambda label, n: _compact({"label": label, "n": n + 0.5}),  # wider, or beside it
    lambda label, n: json.dumps({"label": label, "n": n}).encode(),  # another style
    lambda label, n: _compact({"label": label, "inner": {"a": n, "b": [1, n]}}),
    lambda label, n: label.encode(),  # no JSON
    lambda label, n: _compact({"n": str(n), "label": label}),  # contradicts what was a number
    lambda label, n: f'{{"label":"{label}","n":1.50e0,"n":{n}}}'.encode(),  # nothing that is written so again
    lambda label, n: _compact({"label": label, "n": None, "inner": {"c": label}}),
    lambda label, n: _compact({"label": label, "n": 2**70 + n}),
)


@dataclass(slots=True)
class Dialect:
    mode: str
    topic: str
    delta: bool = False
    late: bool = False
    """Its topic is said to be one of bytes at first."""
    ids: list[int] = field(default_factory=list)
    """Of the schemas that were registered so far."""
    count: int = 0
    key_mode: str = "none"
    key_ids: list[int] = field(default_factory=list)
    has_protobuf: bool = False
    arranged: layouts.Arranged | None = None
    """As it is now; None: as every table is."""
    stops: bool = False
    """Nothing that does not fit is moved, since the topic was made and until now."""

    @property
    def settings(self) -> dict[str, str]:
        formats = {FORMATS: "iceberg,delta"} if self.delta else {}
        keys = {KEY_SCHEMA: self.key_mode} if self.key_mode != "none" else {}
        arranged = {} if self.arranged is None else self.arranged.settings
        return {SCHEMA: self.mode, ON_INVALID: "stop" if self.stops else "keep", **formats, **keys, **arranged}

    def around(self, count: int, luck: Random) -> dict[str, Any]:
        """What a batch of so many values has besides them."""
        around: dict[str, Any] = {}
        if self.key_mode != "none":
            around["keys"] = [self.key(luck) for _ in range(count)]
        if self.arranged is not None:
            around["timestamp_ms"] = layouts.timestamp_ms(luck)
        return around

    def key(self, luck: Random) -> bytes | None:
        number, place = luck.randrange(20), luck.randrange(len(PLAIN_KEYS))
        if self.key_mode == "json" or place in (0, len(PLAIN_KEYS) - 1):
            # One that does not fit holds up all that is behind it: where that is so, they are few.
            return PLAIN_KEYS[place](number) if not self.stops or place < 3 or luck.random() < 0.1 else None
        if place == 1 or len(self.key_ids) < 2:
            return _framed(self.key_ids[0] if self.key_ids else 1, avro(KEY, {"id": number}))
        return _framed(self.key_ids[1], avro(WIDER_KEY, {"id": number << 33, "region": "eu" if number % 2 else None}))

    def value(self, label: str, luck: Random) -> bytes:
        self.count += 1
        stage, number = 1 + self.count // VALUES_PER_STAGE, luck.randrange(100)
        if self.mode == "json":
            return luck.choice(PLAIN[:stage])(label, number)
        known = schemas_of(self.topic, self.mode, self.has_protobuf)
        known = known[: stage if self.mode == "latest" else len(self.ids) + 1]
        place = luck.randrange(len(known))
        body = _of_schema(known[place].text, label, number)
        if luck.random() < 0.1:
            body = body[:-1] if luck.random() < 0.5 else body + b"."  # too short, too long
        if self.mode == "latest":
            return label.encode() if luck.random() < 0.1 else body
        if luck.random() < 0.1:
            return label.encode()  # it has no id at all
        # One that is not registered yet may get this id, or the next schema that somebody else registers.
        schema_id = self.ids[place] if place < len(self.ids) else len(self.ids) + 1
        if luck.random() < 0.1:
            schema_id = luck.choice([*self.ids, NOBODYS_ID])  # a value that lies about its id
        return _framed(schema_id, body)


def drawn(topic: str, luck: Random, mood: Mood) -> Dialect:
    mode = luck.choice(("json", "json", "registry", "registry", "latest"))
    dialect = Dialect(mode, topic, luck.random() < 0.5, luck.random() < 0.2)
    # What a mood has not is not drawn for it, either: the others go on as they always did.
    if mood.arranged and luck.random() < mood.arranged:
        dialect.arranged = layouts.drawn(luck)
    if mood.keyed and luck.random() < mood.keyed:
        dialect.key_mode = luck.choice(("registry", "registry", "json"))
    if mood.stops and luck.random() < mood.stops:
        dialect.stops = not dialect.late
    if mood.protobuf and luck.random() < mood.protobuf:
        dialect.has_protobuf = True
    return dialect


# ── who says so ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def decide_late(world: World, dialect: Dialect) -> None:
    """The topic gets its schema when there are rows of bytes already."""
    await asyncio.sleep(spread(world.luck, 1.0, world.mood.think_s_max * 3))
    await _settle(world, dialect)


def changes(world: World, dialect: Dialect) -> list[Coroutine[Any, Any, None]]:
    """What somebody decides otherwise in the course of a run."""
    return [
        *([_arrange(world, dialect)] if dialect.arranged is not None else []),
        *([_go_on(world, dialect)] if dialect.stops else []),
    ]


async def _arrange(world: World, dialect: Dialect) -> None:
    for _ in range(world.luck.randint(0, 4)):
        await asyncio.sleep(spread(world.luck, 1.0, world.mood.think_s_max * 3))
        dialect.arranged = layouts.drawn(world.luck)
        await _settle(world, dialect)
        world.tally["layouts changed"] += 1


async def _go_on(world: World, dialect: Dialect) -> None:
    """What does not fit is kept from now on."""
    await asyncio.sleep(spread(world.luck, 5.0, world.mood.think_s_max * 10))
    dialect.stops = False
    await _settle(world, dialect)


async def _settle(world: World, dialect: Dialect) -> None:
    """The settings of the topic are those of the dialect."""
    while True:
        host = world.any_broker()
        topics = Topics(host.metadata)
        try:
            await host.ask(lambda _, topics=topics: topics.alter(dialect.topic, lambda _: dialect.settings))  # type: ignore[misc]
        except Missing:
            return
        except LakestreamError:
            await asyncio.sleep(spread(world.luck, 0.1, 5.0))
        else:
            return


# ── who registers them ───────────────────────────────────────────────────────────────────────────────────────────────


class ReadingHere(Reading):
    """Without a thread."""

    async def _do(self, work: Callable[[], T]) -> T:
        return work()


async def use(world: World, dialect: Dialect) -> None:
    """One schema after the other is registered, each until some broker says what its id is."""
    if dialect.late:
        await decide_late(world, dialect)
    keys = keys_of(dialect.topic) if dialect.key_mode == "registry" else []
    values = schemas_of(dialect.topic, dialect.mode, dialect.has_protobuf) if dialect.mode != "json" else []
    for known in (*keys[:1], *values, *keys[1:]):
        (dialect.key_ids if known in keys else dialect.ids).append(await _registered(world, known))
        world.tally["schemas registered"] += 1
        await asyncio.sleep(spread(world.luck, 0.5, world.mood.think_s_max))


async def _registered(world: World, known: Known) -> int:
    wanted = Wanted(subject=Subject(DEFAULT, known.subject), format=known.format, text=known.text)
    while True:
        host = world.any_broker()
        register = partial(_registry(world, host).register, wanted)
        try:
            found = (await host.ask(lambda _, register=register: register())).version.id  # type: ignore[misc]
        except Unavailable:
            await asyncio.sleep(spread(world.luck, 0.1, 5.0))
        except LakestreamError as error:
            world.witness.accuse("known errors", f"registering {known.subject} raised {error!r}")
            return 0
        else:
            world.witness.types.registered(found, known.text, known.format.value)
            return int(found)


def _registry(world: World, host: Host) -> SchemaRegistry:
    if (known := world.registries.get(host)) is None:
        known = world.registries[host] = SchemaRegistry(host.metadata, SeededIds(world.luck), ReadingHere())
    assert isinstance(known, SchemaRegistry)
    return known
