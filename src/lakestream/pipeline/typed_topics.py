"""How the values of topics become columns: what the driver knows of their schemas, and what it finds out.

Before: rounds.py, which asks for each topic that it moves, and again when workers want to know more (`Wants`).
After: a `Typing` that travels with the moves; catalog/evolve.py, where a schema brings new columns.

    a schema id  →  the registry  →  its shape  →  columns for it in the table, one commit  →  a record of the writer

The record is stored after the columns and before any row, so a number in `_stream.schema_id` always has one. A crash in
between leaves columns that the next try finds. In steady state nothing is asked of anybody.

Nothing that is in the data stops a topic: an id that nobody knows, a schema that nobody can read, shapes without end
are told to the workers as such, and values of them keep their bytes. What was not known is looked for again later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.evolve import Evolving, evolve, with_value
from lakestream.catalog.shapes import schema_of as table_schema
from lakestream.catalog.topic_layout import VALUE_ID
from lakestream.clock import Clock
from lakestream.coordination.schemas.names import Subject, parse
from lakestream.coordination.topic_settings import SchemaChoice, TopicSettings
from lakestream.coordination.topic_settings import read as read_settings
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.schemas.columns import Column
from lakestream.schemas.growing import NOT_IN_DELTA, NOTHING, Grown, Known, grown, grown_key
from lakestream.schemas.model import Format, Schema, Source
from lakestream.schemas.shape import Kind, Primitive, Struct, Type, children
from lakestream.schemas.sources import kept, read_message, source_of
from lakestream.schemas.typing import Inferred, Mode, Part, Typed, Typing, WantedSchema
from lakestream.schemas.writers import DEFAULT_CONTEXT, Bound, Writer

log = logging.getLogger(__name__)

WRITERS_MAX: Final = 1_000
"""Of one table. JSON with ever new shapes would have one for each."""
UNKNOWN_MAX: Final = 200
"""Ids that nobody knows, of one topic. Whoever sends more is not believed to mean any of them."""
UNKNOWN_AGAIN_MS: Final = 30_000
UNKNOWN_AGAIN_MS_MAX: Final = 600_000
FORGOTTEN_MS: Final = 3_600_000
WRITERS_AGAIN_MS: Final = 60_000
"""Others make some, too: whoever repairs a table."""
READ_S_MAX: Final = 20.0
REASONS_TOLD: Final = 5


class Shelved(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def source(self) -> Source: ...


class Registry(Protocol):
    """What is asked of the registry: `coordination/schemas/shelf.py`."""

    async def source_of(self, context: str, schema_id: int) -> Source: ...

    async def latest(self, subject: str) -> Shelved: ...

    async def version(self, subject: str, number: int) -> Shelved: ...


Read = Callable[[Source, tuple[int, ...]], Awaitable[Schema]]


async def read_beside(source: Source, message: tuple[int, ...]) -> Schema:
    """In a thread: a compiler may be run for it."""
    try:
        async with asyncio.timeout(READ_S_MAX):
            return await asyncio.to_thread(read_message, source, message)
    except TimeoutError:
        raise Unavailable(f"reading a schema took longer than {READ_S_MAX:g} s") from None
    except RecursionError:
        raise Rejected("it is nested too deeply") from None


class Prepared(NamedTuple):
    table: LoadedTable
    typing: Typing | None


class _Shaped(NamedTuple):
    shape: Struct
    message: str = ""
    """Protobuf: the full name; numbers of fields count within one message alone."""
    has_schema: bool = True


@dataclass(slots=True)
class _Unknown:
    writer: Writer
    """Of whom workers only hear that nobody can read it, and why."""
    wait_ms: int = 0
    again_ms: int = 0


@dataclass(slots=True)
class _Side:
    """Values, or keys, of one topic."""

    writers: dict[int, Writer]
    shaped: dict[int, _Shaped] = field(default_factory=dict)
    unknown: dict[WantedSchema, _Unknown] = field(default_factory=dict)

    def current(self) -> list[Writer]:
        """Of those with an id in front one for each schema and message: the one that was made last."""
        framed = {_front(one): one for one in sorted(self.writers.values(), key=_age) if one.framed}
        return [one for one in self.writers.values() if not one.framed or framed[_front(one)] is one]

    def given_up(self, now_ms: int) -> list[Writer]:
        """Those that are not asked for just now. What was not met for long is forgotten."""
        for wanted in [one for one, why in self.unknown.items() if why.again_ms + FORGOTTEN_MS < now_ms]:
            del self.unknown[wanted]
        return [one.writer for one in self.unknown.values() if one.again_ms > now_ms]

    def has(self, wanted: WantedSchema, context: str) -> bool:
        message, number = wanted.message if any(wanted.message) else (), (context, wanted.schema_id)
        known = [one for one in self.writers.values() if one.framed and (one.context, one.schema_id) == number]
        return any(one.message == message or one.format != Format.PROTOBUF.value for one in known)

    def free_number(self) -> int:
        return min(0, *self.writers, 0) - 1

    def same(self, wanted: Writer) -> Writer | None:
        """One that is the same but for its number and its columns."""
        known = sorted(self.writers.values(), key=_age, reverse=True)
        return next((one for one in known if _essence(one) == _essence(wanted)), None)


@dataclass(slots=True)
class _Topic:
    sides: Mapping[Part, _Side]
    read_ms: int
    unsaid: frozenset[Kind] = NOTHING
    """What its tables have no type for, as its settings are now."""
    taken_over: bool = True
    """Some writers are new: who made them had widened the table before, so it is to be looked at again."""


class TypedTopics:
    def __init__(self, catalog: Evolving, registry: Registry, clock: Clock, read: Read = read_beside) -> None:
        self._catalog = catalog
        self._registry = registry
        self._clock = clock
        self._read = read
        self._topics: dict[str, _Topic] = {}

    def forget(self, topic_id: str) -> None:
        self._topics.pop(topic_id, None)

    async def prepare(self, named: NamedTopic, table: LoadedTable) -> Prepared:
        """What the moves of a topic are told. None: it has no schemas, and never had."""
        settings = read_settings(named.topic.settings)
        has_value = any(one["id"] == VALUE_ID for one in table_schema(table.metadata)["fields"])
        choices = {Part.VALUE: settings.value_schema, Part.KEY: settings.key_schema}
        if all(choice.mode is Mode.NONE for choice in choices.values()) and has_value:
            return Prepared(table, None)
        if settings.value_schema.mode is Mode.NONE and not has_value:
            table, _ = await evolve(self._catalog, table.table_id, with_value)
        topic = await self._topic(table.table_id, settings)
        numbers: dict[Part, int] = {}
        for part, choice in choices.items():
            if choice.mode in (Mode.LATEST, Mode.FIXED):
                subject = parse(choice.subject or f"{named.name}-{part.value}", settings.schema_context)
                table, numbers[part] = await self._chosen(topic, subject, table, part, choice)
        return Prepared(await self._wide_enough(topic, table), self._typing(topic, settings, numbers))

    async def mend(self, named: NamedTopic, table: LoadedTable) -> Prepared:
        """As `prepare`, for who types rows of the table anew: what nobody knew is looked for again, and fields that had
        no column get one where it fits by now."""
        topic = await self._topic(table.table_id, read_settings(named.topic.settings))
        for part, side in topic.sides.items():
            side.unknown.clear()
            for writer in side.current():
                if _lacks_some(writer.columns):
                    table = await self._bind_again(topic, table, part, writer)
        return await self.prepare(named, table)

    async def learn(
        self,
        named: NamedTopic,
        table: LoadedTable,
        typing: Typing,
        schemas: Sequence[WantedSchema],
        shapes: Sequence[Inferred],
    ) -> Prepared:
        """With what workers wanted to know, as far as anybody knows it."""
        settings = read_settings(named.topic.settings)
        topic = await self._topic(table.table_id, settings)
        for wanted in dict.fromkeys(schemas):
            if len(topic.sides[wanted.part].given_up(self._clock.now_ms())) < UNKNOWN_MAX:
                table = await self._look_up(topic, table, wanted, settings.schema_context)
        for inferred in _widest(shapes):
            side = topic.sides[inferred.part]
            writer = Writer(side.free_number(), inferred.format, inferred.text, style=inferred.style)
            table, _ = await self._have(topic, table, inferred.part, writer, _Shaped(inferred.shape, has_schema=False))
        numbers = {Part.VALUE: typing.value.number, Part.KEY: typing.key.number}
        return Prepared(await self._wide_enough(topic, table), self._typing(topic, settings, numbers))

    def _typing(self, topic: _Topic, settings: TopicSettings, numbers: Mapping[Part, int]) -> Typing:
        sides, now_ms = topic.sides.values(), self._clock.now_ms()
        return Typing(
            self._typed(topic.sides[Part.VALUE], settings, settings.value_schema, numbers.get(Part.VALUE, 0)),
            self._typed(topic.sides[Part.KEY], settings, settings.key_schema, numbers.get(Part.KEY, 0)),
            settings.on_invalid,
            asks=all(len(one.given_up(now_ms)) < UNKNOWN_MAX and len(one.writers) < WRITERS_MAX for one in sides),
        )

    def _typed(self, side: _Side, settings: TopicSettings, choice: SchemaChoice, number: int) -> Typed:
        match choice.mode:
            case Mode.NONE:
                return Typed()
            case Mode.REGISTRY:
                framed = [one for one in (*side.current(), *side.given_up(self._clock.now_ms())) if one.framed]
                return Typed(choice.mode, tuple(one for one in framed if one.context == settings.schema_context))
            case Mode.LATEST | Mode.FIXED:
                nobody = side.unknown.get(WantedSchema(Part.VALUE, 0))
                chosen = side.writers.get(number) or (nobody.writer if nobody else None)
                return Typed(choice.mode, () if chosen is None else (chosen,), number)
            case Mode.JSON:
                return Typed(choice.mode, tuple(one for one in side.writers.values() if not one.schema_id))

    # Schemas

    async def _topic(self, topic_id: str, settings: TopicSettings) -> _Topic:
        known, now_ms = self._topics.get(topic_id), self._clock.now_ms()
        if known is None:
            found = await self._catalog.writers.all(topic_id)
            known = _Topic({part: _Side(dict(found.of(part))) for part in Part}, now_ms)
            self._topics[topic_id] = known
        elif now_ms - known.read_ms >= WRITERS_AGAIN_MS:
            found, known.read_ms = await self._catalog.writers.all(topic_id), now_ms
            for part, side in known.sides.items():
                known.taken_over |= not found.of(part).keys() <= side.writers.keys()
                side.writers.update(found.of(part))
        known.unsaid = NOT_IN_DELTA if settings.delta else NOTHING
        return known

    async def _wide_enough(self, topic: _Topic, table: LoadedTable) -> LoadedTable:
        """The table as it was when the newest writer came, or later: its columns hold what all writers write."""
        if topic.taken_over:
            table = await self._catalog.load_id(table.table_id, confirmed=True)
            topic.taken_over = False
        return table

    async def _chosen(
        self, topic: _Topic, subject: Subject, table: LoadedTable, part: Part, choice: SchemaChoice
    ) -> tuple[LoadedTable, int]:
        """The writer of values that have nothing in front; 0: there is no such schema."""
        side, nobody = topic.sides[part], WantedSchema(Part.VALUE, 0)
        try:
            if choice.mode is Mode.LATEST:
                found = await self._registry.latest(str(subject))
            else:
                found = await self._registry.version(str(subject), choice.version)
            writer = _unnumbered(found.source, found.id, subject.context)
            if (known := side.same(writer)) is None:
                schema = await self._read(found.source, ())
                table, known = await self._have(topic, table, part, writer, _shaped(schema))
        except (Missing, Rejected) as error:
            side.unknown[nobody] = _Unknown(Writer(0, "", f"the topic's schema is not to be had: {error}"))
            return table, 0
        side.unknown.pop(nobody, None)
        return table, known.number

    async def _look_up(self, topic: _Topic, table: LoadedTable, wanted: WantedSchema, context: str) -> LoadedTable:
        side, schema_id = topic.sides[wanted.part], wanted.schema_id
        if side.has(wanted, context):  # several moves may want the same
            return table
        try:
            source = await self._registry.source_of(context, schema_id)
        except (Missing, Rejected) as error:
            why = f"schema {schema_id}: {error}"
            nobody = Writer(schema_id, "", why, schema_id=schema_id, framed=True, context=context)
            self._give_up(side, WantedSchema(wanted.part, schema_id), nobody, str(error))
            return table
        message = wanted.message if source.format is Format.PROTOBUF and any(wanted.message) else ()
        style = wanted.style if source.format is Format.JSON else ""
        number = schema_id if context == DEFAULT_CONTEXT and not message else side.free_number()
        writer = _framed(source, number, schema_id, message, style, context)
        try:
            shaped = _shaped(await self._read(source, message))
        except Rejected as error:
            # Other messages of the schema may be fine: workers tell these apart if they know the format.
            self._give_up(side, WantedSchema(wanted.part, schema_id, message), writer, str(error))
            return table
        table, _ = await self._have(topic, table, wanted.part, writer, shaped)
        for one in (wanted, WantedSchema(wanted.part, schema_id)):
            side.unknown.pop(one, None)
        return table

    def _give_up(self, side: _Side, wanted: WantedSchema, writer: Writer, reason: str) -> None:
        """For a while, and for longer each time."""
        before = side.unknown.get(wanted)
        wait_ms = min(before.wait_ms * 2, UNKNOWN_AGAIN_MS_MAX) if before else UNKNOWN_AGAIN_MS
        side.unknown[wanted] = _Unknown(writer, wait_ms, self._clock.now_ms() + wait_ms)
        log.warning("pipeline.schema_unknown part=%s schema=%d reason=%s", wanted.part.value, wanted.schema_id, reason)

    async def _have(
        self, topic: _Topic, table: LoadedTable, part: Part, wanted: Writer, shaped: _Shaped
    ) -> tuple[LoadedTable, Writer]:
        """The writer, with columns in the table and a record that says so."""
        side = topic.sides[part]
        if (known := side.same(wanted)) is not None:
            return table, known
        table, made = await self._grown(topic, table, part, shaped)
        for reason in made.reasons[:REASONS_TOLD]:
            log.warning("pipeline.no_column table=%s schema=%d reason=%s", table.name, wanted.schema_id, reason)
        writer = await self._record(topic, part, table.table_id, wanted, made)
        side.shaped[writer.number] = shaped
        return table, writer

    async def _bind_again(self, topic: _Topic, table: LoadedTable, part: Part, writer: Writer) -> LoadedTable:
        """Under a number of its own: what was typed by the old one is read as before."""
        side = topic.sides[part]
        if await self._known(side, writer, "") is None:
            return table
        shaped = side.shaped[writer.number]
        table, made = await self._grown(topic, table, part, shaped)
        if made.bounds != writer.columns:
            again = _numbered(writer, side.free_number(), made)
            stored = await self._record(topic, part, table.table_id, again, made)
            side.shaped[stored.number] = shaped
        return table

    async def _grown(self, topic: _Topic, table: LoadedTable, part: Part, shaped: _Shaped) -> tuple[LoadedTable, Grown]:
        side, unsaid = topic.sides[part], topic.unsaid
        before = [await self._known(side, one, shaped.message) for one in side.writers.values()]
        grow = grown if part is Part.VALUE else grown_key

        def growing(columns: Sequence[Column], next_id: int) -> Grown:
            known = [one for one in before if one is not None]
            return grow(columns, shaped.shape, next_id, known, spreads=not shaped.has_schema, unsaid=unsaid)

        return await evolve(self._catalog, table.table_id, growing)

    async def _record(self, topic: _Topic, part: Part, topic_id: str, wanted: Writer, made: Grown) -> Writer:
        """Under a number that nobody has. Another driver may be at it too, also for the same."""
        side = topic.sides[part]
        number = wanted.number or side.free_number()
        for _ in range(WRITERS_MAX):
            writer = _numbered(wanted, number, made)
            stored = await self._catalog.writers.create(topic_id, part, writer)
            side.writers[stored.number] = stored
            topic.taken_over = True  # also of ours: what comes next may fail, and who asked has the table as it was
            if _essence(stored) == _essence(wanted):
                return stored
            number = side.free_number()
        raise Unavailable("its writers are numbered by others all the time: try again")

    async def _known(self, side: _Side, writer: Writer, message: str) -> Known | None:
        """None: nobody can read it any more, though what it wrote is as before."""
        if writer.number not in side.shaped:
            try:
                side.shaped[writer.number] = await self._shape_of(writer)
            except LakestreamError as error:
                log.warning("pipeline.schema_unreadable number=%d error=%s", writer.number, error)
                return None
        shaped = side.shaped[writer.number]
        return Known(shaped.shape, writer.columns, numbers_count=bool(message) and shaped.message == message)

    async def _shape_of(self, writer: Writer) -> _Shaped:
        if writer.schema_id:
            return _shaped(await self._read(source_of(writer), writer.message))
        # JSON that has no schema: only who reads it knows how its shape was written down.
        from lakestream.data.typed.codecs import codec_of

        return _Shaped(codec_of(writer).shape, has_schema=False)


def _widest(shapes: Sequence[Inferred]) -> list[Inferred]:
    """One for values, one for keys: the others are asked for again, by workers who know of these, and then mostly fit
    them. Doubles first: a column of theirs takes whole numbers, too, and never the other way round."""
    ordered = sorted(shapes, key=lambda one: (_count(one.shape, Kind.DOUBLE), len(one.shape.fields)), reverse=True)
    return list({one.part: one for one in reversed(ordered)}.values())


def _count(kind: Type, wanted: Kind) -> int:
    here = isinstance(kind, Primitive) and kind.kind is wanted
    return here + sum(_count(child, wanted) for child in children(kind))


def _lacks_some(bounds: Sequence[Bound | None]) -> bool:
    return any(one is None or _lacks_some(one.children) for one in bounds)


def _unnumbered(source: Source, schema_id: int, context: str) -> Writer:
    """Of values without an id in front; 0: its number is yet to be given."""
    return Writer(0, source.format.value, source.text, kept(source), schema_id=schema_id, context=context)


def _framed(source: Source, number: int, schema_id: int, message: tuple[int, ...], style: str, context: str) -> Writer:
    return Writer(
        number,
        source.format.value,
        source.text,
        kept(source),
        schema_id=schema_id,
        framed=True,
        message=message,
        style=style,
        context=context,
    )


def _numbered(wanted: Writer, number: int, made: Grown) -> Writer:
    return Writer(
        number,
        wanted.format,
        wanted.text,
        wanted.references,
        schema_id=wanted.schema_id,
        framed=wanted.framed,
        message=wanted.message,
        style=wanted.style,
        columns=made.bounds,
        context=wanted.context,
    )


def _front(writer: Writer) -> tuple[object, ...]:
    """What stands in front of its values, and where that means it."""
    return writer.context, writer.schema_id, writer.message


def _essence(writer: Writer) -> tuple[object, ...]:
    """What makes it another one, but for the columns. The text of an id never changes, in a context."""
    text = writer.text if not writer.schema_id else ""
    return writer.format, writer.context, writer.schema_id, writer.framed, writer.message, text, writer.style


def _age(writer: Writer) -> int:
    """Later ones of a schema have numbers of the table's own, counted down."""
    return -writer.number if writer.number < 0 else 0


def _shaped(schema: Schema) -> _Shaped:
    if schema.source.format is not Format.PROTOBUF:
        return _Shaped(schema.shape())
    from lakestream.schemas.protobuf.schema import ProtobufSchema

    assert isinstance(schema, ProtobufSchema)
    return _Shaped(schema.shape(), schema.descriptor.full_name)
