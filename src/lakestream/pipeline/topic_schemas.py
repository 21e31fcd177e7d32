"""Schemas of topics in the driver: looks them up, adds columns to the tables, and stores writer schemas.

Before: table_setup.py, for each topic that is moved, and again when workers lack schemas (`SchemasMissing`).
After: `ConversionSettings`, sent with the moves; catalog/operations/update_schema.py, for new columns.

    schema id  →  registry  →  shape  →  columns of the table, one commit  →  stored writer schema

The writer schema is stored after the columns and before any row, so each number in `_stream.schema_id` has one. A crash
in between leaves columns that the next attempt finds. In steady state there is no request to registry or catalog.

No record stops a topic. Unknown ids, unreadable schemas and shapes beyond the limit are sent to the workers marked as
such, and the values keep their bytes. Unknown schemas are looked up again later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.operations.update_schema import EvolvingCatalog, evolve, with_value_column
from lakestream.catalog.table_metadata.json_model import schema_of as table_schema
from lakestream.catalog.topic_table.columns import VALUE_ID
from lakestream.clock import Clock
from lakestream.coordination.config_values import SchemaChoice
from lakestream.coordination.schema_registry.subjects import Subject, parse
from lakestream.coordination.topic_config import TopicSettings
from lakestream.coordination.topic_config import read as read_settings
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.schemas.column_evolution import (
    NOT_IN_DELTA,
    NOTHING,
    BoundShape,
    EvolvedColumns,
    evolve_columns,
    evolve_key_columns,
)
from lakestream.schemas.columns import Column
from lakestream.schemas.model import Format, Schema, Source
from lakestream.schemas.parse import flatten_references, read_message, source_of
from lakestream.schemas.types import Kind, Primitive, Struct, Type, children
from lakestream.schemas.value_format import (
    ConversionSettings,
    FieldConversion,
    InferredSchema,
    MissingSchema,
    SchemaMode,
    ValuePart,
)
from lakestream.schemas.writer_schema import DEFAULT_CONTEXT, ColumnBinding, WriterSchema

log = logging.getLogger(__name__)

WRITERS_MAX: Final = 1_000
"""Writer schemas of one table: JSON may add one for each new shape."""
UNKNOWN_MAX: Final = 200
"""Unknown schema ids of one topic. Beyond that, no more ids are looked up: the values are probably not framed."""
UNKNOWN_AGAIN_MS: Final = 30_000
UNKNOWN_AGAIN_MS_MAX: Final = 600_000
FORGOTTEN_MS: Final = 3_600_000
WRITERS_AGAIN_MS: Final = 60_000
"""Between reads of the stored writer schemas: a repair of the table or another driver may add some."""
READ_S_MAX: Final = 20.0
REASONS_LOGGED: Final = 5


class RegisteredSource(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def source(self) -> Source: ...


class Registry(Protocol):
    """The schema registry: `coordination/schema_registry/schema_reader.py`."""

    async def source_of(self, context: str, schema_id: int) -> Source: ...

    async def latest(self, subject: str) -> RegisteredSource: ...

    async def version(self, subject: str, number: int) -> RegisteredSource: ...


Read = Callable[[Source, tuple[int, ...]], Awaitable[Schema]]


async def read_in_thread(source: Source, message: tuple[int, ...]) -> Schema:
    """Parses a schema in a thread: Protobuf may need its compiler."""
    try:
        async with asyncio.timeout(READ_S_MAX):
            return await asyncio.to_thread(read_message, source, message)
    except TimeoutError:
        raise Unavailable(f"reading a schema took longer than {READ_S_MAX:g} s") from None
    except RecursionError:
        raise Rejected("it is nested too deeply") from None


class Prepared(NamedTuple):
    table: LoadedTable
    conversion: ConversionSettings | None


class _ParsedShape(NamedTuple):
    shape: Struct
    message: str = ""
    """Protobuf: the full name. Field numbers are only comparable within one message."""
    has_schema: bool = True


@dataclass(slots=True)
class _UnknownSchema:
    writer: WriterSchema
    """Sent to workers in place of the schema; its text is the reason."""
    wait_ms: int = 0
    again_ms: int = 0


@dataclass(slots=True)
class _PartState:
    """Schemas of the values, or of the keys, of one topic."""

    writers: dict[int, WriterSchema]
    parsed: dict[int, _ParsedShape] = field(default_factory=dict)
    unknown: dict[MissingSchema, _UnknownSchema] = field(default_factory=dict)

    def current(self) -> list[WriterSchema]:
        """Returns, of writer schemas with an id in front of values, the newest one for each schema and message."""
        framed = {_identity(one): one for one in sorted(self.writers.values(), key=_age) if one.framed}
        return [one for one in self.writers.values() if not one.framed or framed[_identity(one)] is one]

    def unknown_writers(self, now_ms: int) -> list[WriterSchema]:
        """Returns unknown schemas that are not looked up again yet. Removes those that were not seen for an hour."""
        for schema in [one for one, why in self.unknown.items() if why.again_ms + FORGOTTEN_MS < now_ms]:
            del self.unknown[schema]
        return [one.writer for one in self.unknown.values() if one.again_ms > now_ms]

    def has(self, missing: MissingSchema, context: str) -> bool:
        message, number = missing.message if any(missing.message) else (), (context, missing.schema_id)
        candidates = [one for one in self.writers.values() if one.framed and (one.context, one.schema_id) == number]
        return any(one.message == message or one.format != Format.PROTOBUF.value for one in candidates)

    def free_number(self) -> int:
        return min(0, *self.writers, 0) - 1

    def find_equal(self, new: WriterSchema) -> WriterSchema | None:
        """Returns the newest writer schema that differs only in number and columns."""
        candidates = sorted(self.writers.values(), key=_age, reverse=True)
        return next((one for one in candidates if _content(one) == _content(new)), None)


@dataclass(slots=True)
class _Topic:
    parts: Mapping[ValuePart, _PartState]
    read_ms: int
    unsupported: frozenset[Kind] = NOTHING
    """Kinds of values that its tables cannot have, by its current settings."""
    has_new_writers: bool = True
    """Some writer schemas are new: their columns were added to the table before, so the table must be loaded again."""


class TopicSchemas:
    def __init__(self, catalog: EvolvingCatalog, registry: Registry, clock: Clock, read: Read = read_in_thread) -> None:
        self._catalog = catalog
        self._registry = registry
        self._clock = clock
        self._read = read
        self._topics: dict[str, _Topic] = {}

    def forget(self, topic_id: str) -> None:
        self._topics.pop(topic_id, None)

    async def prepare(self, named: NamedTopic, table: LoadedTable) -> Prepared:
        """Returns the conversion for the moves of a topic; None if it has no schemas, and never had."""
        settings = read_settings(named.topic.settings)
        has_value = any(one["id"] == VALUE_ID for one in table_schema(table.metadata)["fields"])
        choices = {ValuePart.VALUE: settings.value_schema, ValuePart.KEY: settings.key_schema}
        if all(choice.mode is SchemaMode.NONE for choice in choices.values()) and has_value:
            return Prepared(table, None)
        if settings.value_schema.mode is SchemaMode.NONE and not has_value:
            table, _ = await evolve(self._catalog, table.table_id, with_value_column)
        topic = await self._topic(table.table_id, settings)
        numbers: dict[ValuePart, int] = {}
        for part, choice in choices.items():
            if choice.mode in (SchemaMode.LATEST, SchemaMode.FIXED):
                subject = parse(choice.subject or f"{named.name}-{part.value}", settings.schema_context)
                table, numbers[part] = await self._choose(topic, subject, table, part, choice)
        return Prepared(await self._with_all_columns(topic, table), self._conversion_of(topic, settings, numbers))

    async def prepare_repair(self, named: NamedTopic, table: LoadedTable) -> Prepared:
        """Like `prepare`, for the repair of existing rows.

        Looks up unknown schemas again, and adds columns for fields that have none, if their types fit now.
        """
        topic = await self._topic(table.table_id, read_settings(named.topic.settings))
        for part, state in topic.parts.items():
            state.unknown.clear()
            for writer in state.current():
                if _lacks_columns(writer.columns):
                    table = await self._rebind_columns(topic, table, part, writer)
        return await self.prepare(named, table)

    async def resolve(
        self,
        named: NamedTopic,
        table: LoadedTable,
        conversion: ConversionSettings,
        schemas: Sequence[MissingSchema],
        shapes: Sequence[InferredSchema],
    ) -> Prepared:
        """Returns the conversion with the schemas that workers lack, as far as they can be found."""
        settings = read_settings(named.topic.settings)
        topic = await self._topic(table.table_id, settings)
        for missing in dict.fromkeys(schemas):
            if len(topic.parts[missing.part].unknown_writers(self._clock.now_ms())) < UNKNOWN_MAX:
                table = await self._look_up(topic, table, missing, settings.schema_context)
        for inferred in _widest(shapes):
            state = topic.parts[inferred.part]
            writer = WriterSchema(state.free_number(), inferred.format, inferred.text, style=inferred.style)
            table, _ = await self._ensure(
                topic, table, inferred.part, writer, _ParsedShape(inferred.shape, has_schema=False)
            )
        numbers = {ValuePart.VALUE: conversion.value.number, ValuePart.KEY: conversion.key.number}
        return Prepared(await self._with_all_columns(topic, table), self._conversion_of(topic, settings, numbers))

    def _conversion_of(
        self, topic: _Topic, settings: TopicSettings, numbers: Mapping[ValuePart, int]
    ) -> ConversionSettings:
        parts, now_ms = topic.parts.values(), self._clock.now_ms()
        return ConversionSettings(
            self._field_conversion(
                topic.parts[ValuePart.VALUE], settings, settings.value_schema, numbers.get(ValuePart.VALUE, 0)
            ),
            self._field_conversion(
                topic.parts[ValuePart.KEY], settings, settings.key_schema, numbers.get(ValuePart.KEY, 0)
            ),
            settings.on_invalid,
            requests_schemas=all(
                len(one.unknown_writers(now_ms)) < UNKNOWN_MAX and len(one.writers) < WRITERS_MAX for one in parts
            ),
        )

    def _field_conversion(
        self, state: _PartState, settings: TopicSettings, choice: SchemaChoice, number: int
    ) -> FieldConversion:
        match choice.mode:
            case SchemaMode.NONE:
                return FieldConversion()
            case SchemaMode.REGISTRY:
                framed = [one for one in (*state.current(), *state.unknown_writers(self._clock.now_ms())) if one.framed]
                return FieldConversion(
                    choice.mode, tuple(one for one in framed if one.context == settings.schema_context)
                )
            case SchemaMode.LATEST | SchemaMode.FIXED:
                none_found = state.unknown.get(MissingSchema(ValuePart.VALUE, 0))
                chosen = state.writers.get(number) or (none_found.writer if none_found else None)
                return FieldConversion(choice.mode, () if chosen is None else (chosen,), number)
            case SchemaMode.JSON:
                return FieldConversion(choice.mode, tuple(one for one in state.writers.values() if not one.schema_id))

    # Schemas

    async def _topic(self, topic_id: str, settings: TopicSettings) -> _Topic:
        topic, now_ms = self._topics.get(topic_id), self._clock.now_ms()
        if topic is None:
            found = await self._catalog.writers.all(topic_id)
            topic = _Topic({part: _PartState(dict(found.of(part))) for part in ValuePart}, now_ms)
            self._topics[topic_id] = topic
        elif now_ms - topic.read_ms >= WRITERS_AGAIN_MS:
            found, topic.read_ms = await self._catalog.writers.all(topic_id), now_ms
            for part, state in topic.parts.items():
                topic.has_new_writers |= not found.of(part).keys() <= state.writers.keys()
                state.writers.update(found.of(part))
        topic.unsupported = NOT_IN_DELTA if settings.delta else NOTHING
        return topic

    async def _with_all_columns(self, topic: _Topic, table: LoadedTable) -> LoadedTable:
        """Returns the table with the columns of all writer schemas, loaded again if some are new."""
        if topic.has_new_writers:
            table = await self._catalog.load_id(table.table_id, confirmed=True)
            topic.has_new_writers = False
        return table

    async def _choose(
        self, topic: _Topic, subject: Subject, table: LoadedTable, part: ValuePart, choice: SchemaChoice
    ) -> tuple[LoadedTable, int]:
        """Returns the number of the writer schema for values without an id in front; 0 if there is none."""
        state, none_found = topic.parts[part], MissingSchema(ValuePart.VALUE, 0)
        try:
            if choice.mode is SchemaMode.LATEST:
                found = await self._registry.latest(str(subject))
            else:
                found = await self._registry.version(str(subject), choice.version)
            writer = _without_number(found.source, found.id, subject.context)
            if (existing := state.find_equal(writer)) is None:
                schema = await self._read(found.source, ())
                table, existing = await self._ensure(topic, table, part, writer, _parsed_shape(schema))
        except (Missing, Rejected) as error:
            state.unknown[none_found] = _UnknownSchema(
                WriterSchema(0, "", f"the topic's schema is not available: {error}")
            )
            return table, 0
        state.unknown.pop(none_found, None)
        return table, existing.number

    async def _look_up(self, topic: _Topic, table: LoadedTable, missing: MissingSchema, context: str) -> LoadedTable:
        state, schema_id = topic.parts[missing.part], missing.schema_id
        if state.has(missing, context):  # several moves may lack the same
            return table
        try:
            source = await self._registry.source_of(context, schema_id)
        except (Missing, Rejected) as error:
            why = f"schema {schema_id}: {error}"
            none_found = WriterSchema(schema_id, "", why, schema_id=schema_id, framed=True, context=context)
            self._mark_unknown(state, MissingSchema(missing.part, schema_id), none_found, str(error))
            return table
        message = missing.message if source.format is Format.PROTOBUF and any(missing.message) else ()
        style = missing.style if source.format is Format.JSON else ""
        number = schema_id if context == DEFAULT_CONTEXT and not message else state.free_number()
        writer = _framed(source, number, schema_id, message, style, context)
        try:
            parsed = _parsed_shape(await self._read(source, message))
        except Rejected as error:
            # Other messages of the schema may be valid; workers distinguish messages if they have the format.
            self._mark_unknown(state, MissingSchema(missing.part, schema_id, message), writer, str(error))
            return table
        table, _ = await self._ensure(topic, table, missing.part, writer, parsed)
        for one in (missing, MissingSchema(missing.part, schema_id)):
            state.unknown.pop(one, None)
        return table

    def _mark_unknown(self, state: _PartState, missing: MissingSchema, writer: WriterSchema, reason: str) -> None:
        """Marks a schema as unknown for a while, longer each time."""
        before = state.unknown.get(missing)
        wait_ms = min(before.wait_ms * 2, UNKNOWN_AGAIN_MS_MAX) if before else UNKNOWN_AGAIN_MS
        state.unknown[missing] = _UnknownSchema(writer, wait_ms, self._clock.now_ms() + wait_ms)
        log.warning(
            "pipeline.schema_unknown part=%s schema=%d reason=%s", missing.part.value, missing.schema_id, reason
        )

    async def _ensure(
        self, topic: _Topic, table: LoadedTable, part: ValuePart, new: WriterSchema, parsed: _ParsedShape
    ) -> tuple[LoadedTable, WriterSchema]:
        """Adds the columns of a writer schema to the table, stores it and returns it."""
        state = topic.parts[part]
        if (existing := state.find_equal(new)) is not None:
            return table, existing
        table, evolved = await self._add_columns(topic, table, part, parsed)
        for reason in evolved.reasons[:REASONS_LOGGED]:
            log.warning("pipeline.no_column table=%s schema=%d reason=%s", table.name, new.schema_id, reason)
        writer = await self._record(topic, part, table.table_id, new, evolved)
        state.parsed[writer.number] = parsed
        return table, writer

    async def _rebind_columns(
        self, topic: _Topic, table: LoadedTable, part: ValuePart, writer: WriterSchema
    ) -> LoadedTable:
        """Stores the schema under another number: rows with the old number are read as before."""
        state = topic.parts[part]
        if await self._bound_shape(state, writer, "") is None:
            return table
        parsed = state.parsed[writer.number]
        table, evolved = await self._add_columns(topic, table, part, parsed)
        if evolved.bindings != writer.columns:
            again = _numbered(writer, state.free_number(), evolved)
            stored = await self._record(topic, part, table.table_id, again, evolved)
            state.parsed[stored.number] = parsed
        return table

    async def _add_columns(
        self, topic: _Topic, table: LoadedTable, part: ValuePart, parsed: _ParsedShape
    ) -> tuple[LoadedTable, EvolvedColumns]:
        state, unsupported = topic.parts[part], topic.unsupported
        before = [await self._bound_shape(state, one, parsed.message) for one in state.writers.values()]
        grow = evolve_columns if part is ValuePart.VALUE else evolve_key_columns

        def growing(columns: Sequence[Column], next_id: int) -> EvolvedColumns:
            known = [one for one in before if one is not None]
            return grow(
                columns, parsed.shape, next_id, known, adds_on_conflict=not parsed.has_schema, unsupported=unsupported
            )

        return await evolve(self._catalog, table.table_id, growing)

    async def _record(
        self, topic: _Topic, part: ValuePart, topic_id: str, new: WriterSchema, evolved: EvolvedColumns
    ) -> WriterSchema:
        """Stores a writer schema under a free number. Another driver may do the same concurrently."""
        state = topic.parts[part]
        number = new.number or state.free_number()
        for _ in range(WRITERS_MAX):
            writer = _numbered(new, number, evolved)
            stored = await self._catalog.writers.create(topic_id, part, writer)
            state.writers[stored.number] = stored
            topic.has_new_writers = (
                True  # also after a writer of this driver: a later step may fail, and the caller keeps the old table
            )
            if _content(stored) == _content(new):
                return stored
            number = state.free_number()
        raise Unavailable("other drivers took each free number of its writer schemas: retry")

    async def _bound_shape(self, state: _PartState, writer: WriterSchema, message: str) -> BoundShape | None:
        """Returns None if the schema cannot be parsed any more; its rows are read as before."""
        if writer.number not in state.parsed:
            try:
                state.parsed[writer.number] = await self._shape_of(writer)
            except LakestreamError as error:
                log.warning("pipeline.schema_unreadable number=%d error=%s", writer.number, error)
                return None
        parsed = state.parsed[writer.number]
        return BoundShape(parsed.shape, writer.columns, matches_by_number=bool(message) and parsed.message == message)

    async def _shape_of(self, writer: WriterSchema) -> _ParsedShape:
        if writer.schema_id:
            return _parsed_shape(await self._read(source_of(writer), writer.message))
        # JSON without a schema: only its codec can parse the stored shape.
        from lakestream.data.typed.format_codecs import codec_of

        return _ParsedShape(codec_of(writer).shape, has_schema=False)


def _widest(shapes: Sequence[InferredSchema]) -> list[InferredSchema]:
    """Returns one shape for values and one for keys. Workers request the others again, unless these fit.

    Shapes with more doubles first: a double column accepts whole numbers, but a column of whole numbers no doubles.
    """
    ordered = sorted(shapes, key=lambda one: (_count(one.shape, Kind.DOUBLE), len(one.shape.fields)), reverse=True)
    return list({one.part: one for one in reversed(ordered)}.values())


def _count(kind: Type, searched: Kind) -> int:
    here = isinstance(kind, Primitive) and kind.kind is searched
    return here + sum(_count(child, searched) for child in children(kind))


def _lacks_columns(bounds: Sequence[ColumnBinding | None]) -> bool:
    return any(one is None or _lacks_columns(one.children) for one in bounds)


def _without_number(source: Source, schema_id: int, context: str) -> WriterSchema:
    """Returns a writer schema for values without an id in front. Number 0: not assigned yet."""
    return WriterSchema(
        0, source.format.value, source.text, flatten_references(source), schema_id=schema_id, context=context
    )


def _framed(
    source: Source, number: int, schema_id: int, message: tuple[int, ...], style: str, context: str
) -> WriterSchema:
    return WriterSchema(
        number,
        source.format.value,
        source.text,
        flatten_references(source),
        schema_id=schema_id,
        framed=True,
        message=message,
        style=style,
        context=context,
    )


def _numbered(new: WriterSchema, number: int, evolved: EvolvedColumns) -> WriterSchema:
    return WriterSchema(
        number,
        new.format,
        new.text,
        new.references,
        schema_id=new.schema_id,
        framed=new.framed,
        message=new.message,
        style=new.style,
        columns=evolved.bindings,
        context=new.context,
    )


def _identity(writer: WriterSchema) -> tuple[object, ...]:
    """What identifies the schema in front of its values."""
    return writer.context, writer.schema_id, writer.message


def _content(writer: WriterSchema) -> tuple[object, ...]:
    """What distinguishes writer schemas, except for columns. The text of a schema id never changes in a context."""
    text = writer.text if not writer.schema_id else ""
    return writer.format, writer.context, writer.schema_id, writer.framed, writer.message, text, writer.style


def _age(writer: WriterSchema) -> int:
    """Later writer schemas of a schema have numbers of the table, which count down."""
    return -writer.number if writer.number < 0 else 0


def _parsed_shape(schema: Schema) -> _ParsedShape:
    if schema.source.format is not Format.PROTOBUF:
        return _ParsedShape(schema.shape())
    from lakestream.schemas.protobuf.schema import ProtobufSchema

    assert isinstance(schema, ProtobufSchema)
    return _ParsedShape(schema.shape(), schema.descriptor.full_name)
