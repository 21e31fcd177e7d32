"""Rejects produced records that do not match the topic's format: `lakestream.invalid.record.action=reject`.

Before: protocol/kafka/handlers/records/produce.py, for such topics only.  After: data/typed/validation.py, in a thread;
then, for values of a JSON Schema, validator_process.py.

A schema is read from the registry when the first batch with its id arrives, and then cached. A batch with an id that is
not registered is rejected, and the next batch reads the registry again: producers register before they produce.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Final, TypeAlias

from lakestream.aio.log_limiter import LogRateLimiter
from lakestream.clock import Clock
from lakestream.coordination.config_values import SchemaChoice
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.coordination.schema_registry.subjects import parse
from lakestream.coordination.topic_config import TopicSettings
from lakestream.coordination.validation.validator_process import ValidatorProcess
from lakestream.errors import InvalidRecords, Missing, Rejected
from lakestream.metadata.store import MetadataStore
from lakestream.records.batch import RecordBatch
from lakestream.schemas.model import Format, Source
from lakestream.schemas.parse import flatten_references
from lakestream.schemas.value_format import FieldConversion, MissingSchema, OnInvalid, SchemaMode, ValuePart
from lakestream.schemas.writer_schema import WriterSchema

log = logging.getLogger(__name__)

WRITERS_MAX: Final = 1_000
WriterSchemas: TypeAlias = OrderedDict[tuple[str, MissingSchema], WriterSchema]
"""The first part of the key is the context."""
LOOKUPS_MAX: Final = 100
"""Attempts to validate one batch. After each, the schemas that were missing are read from the registry."""


def validates_schemas(settings: TopicSettings) -> bool:
    modes = settings.value_schema.mode, settings.key_schema.mode
    return settings.on_invalid is OnInvalid.REJECT and any(mode is not SchemaMode.NONE for mode in modes)


class SchemaValidator:
    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._log_limiter = LogRateLimiter(clock)
        self._schemas = SchemaReader(store)
        self._validator = ValidatorProcess()
        self._writers: WriterSchemas = OrderedDict()

    async def check(self, topic: str, settings: TopicSettings, batch: RecordBatch) -> None:
        """Raises InvalidRecords, with the reason for each invalid record, if there is one."""
        # Imported late: it loads numba, which most brokers do not need.
        from lakestream.data.typed.validation import InvalidRecordSet, check, first_reasons, reason_of

        unknown: WriterSchemas = OrderedDict()
        context = settings.schema_context
        for _ in range(LOOKUPS_MAX):
            value = await self._conversion(topic, ValuePart.VALUE, settings.value_schema, context, unknown)
            key = await self._conversion(topic, ValuePart.KEY, settings.key_schema, context, unknown)
            checked = await asyncio.to_thread(check, batch.data, value, key)
            if not checked.missing:
                break
            for missing in dict.fromkeys(checked.missing):
                await self._look_up(context, missing, unknown)
        else:
            message = f"the batch has too many schemas that are not cached: use at most {LOOKUPS_MAX} per batch"
            raise InvalidRecords({0: message}, message)
        deadline_s = self._validator.deadline_s()
        for one in checked.to_validate:
            problems = await self._validator.find_invalid(one.schema, one.values, deadline_s)
            reasons = one.misfits | {one.numbers[index]: reason for index, reason in problems}
            checked.invalid.extend(
                InvalidRecordSet((number,), reason_of(one.part, why)) for number, why in reasons.items()
            )
        if checked.invalid:
            error = _invalid(first_reasons(checked.invalid))
            if self._log_limiter.should_log(topic):  # some clients show only the number of the error
                log.warning("validation.rejected topic=%s reason=%r", topic, str(error))
            raise error

    async def close(self) -> None:
        await self._validator.close()

    async def _conversion(
        self, topic: str, part: ValuePart, choice: SchemaChoice, context: str, unknown: WriterSchemas
    ) -> FieldConversion:
        match choice.mode:
            case SchemaMode.NONE | SchemaMode.JSON:
                return FieldConversion(choice.mode)
            case SchemaMode.REGISTRY:
                entries = (*self._writers.items(), *unknown.items())
                writers = [one for (its_context, key), one in entries if its_context == context and key.part is part]
                return FieldConversion(choice.mode, tuple(writers))
            case SchemaMode.LATEST | SchemaMode.FIXED:
                return FieldConversion(choice.mode, (await self._writer_of_choice(topic, part, choice, context),))

    async def _writer_of_choice(self, topic: str, part: ValuePart, choice: SchemaChoice, context: str) -> WriterSchema:
        subject = str(parse(choice.subject or f"{topic}-{part.value}", context))
        try:
            if choice.mode is SchemaMode.LATEST:
                schema = await self._schemas.latest(subject)
            else:
                schema = await self._schemas.version(subject, choice.version)
        except (Missing, Rejected) as error:
            return WriterSchema(0, "", f"the topic's schema cannot be read from the registry: {error}")
        source = schema.source
        return WriterSchema(
            schema.id, source.format.value, source.text, flatten_references(source), schema_id=schema.id
        )

    async def _look_up(self, context: str, missing: MissingSchema, unknown: WriterSchemas) -> None:
        try:
            source = await self._schemas.source_of(context, missing.schema_id)
        except (Missing, Rejected) as error:
            unknown[context, missing] = WriterSchema(
                missing.schema_id, "", str(error), schema_id=missing.schema_id, framed=True
            )
            return
        message = missing.message if source.format is Format.PROTOBUF and any(missing.message) else ()
        key = MissingSchema(missing.part, missing.schema_id, message)
        self._writers[context, key] = _framed(source, missing.schema_id, message)
        while len(self._writers) > WRITERS_MAX:
            self._writers.popitem(last=False)


def _invalid(reasons: dict[int, str]) -> InvalidRecords:
    first = next(iter(reasons))
    return InvalidRecords(
        reasons, f"record {first} of the batch does not match the format of the topic: {reasons[first]}"
    )


def _framed(source: Source, schema_id: int, message: tuple[int, ...]) -> WriterSchema:
    return WriterSchema(
        schema_id,
        source.format.value,
        source.text,
        flatten_references(source),
        schema_id=schema_id,
        framed=True,
        message=message,
    )
