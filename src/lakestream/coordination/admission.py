"""Records that are not what their topic says are refused at produce: `lakestream.on.invalid=reject`.

Before: protocol/kafka/handlers/produce.py, for such topics only.  After: data/typed/checking.py, in a thread; then, for
values of a JSON Schema, judging.py.

Schemas are looked up in the registry when they are first met. One that it does not know is a refusal, and is looked for
again with the next batch: a producer registers before it produces.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, TypeAlias

from lakestream.batch import RecordBatch
from lakestream.clock import Clock
from lakestream.coordination.judging import Judges
from lakestream.coordination.schemas.names import parse
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.coordination.topic_settings import SchemaChoice, TopicSettings
from lakestream.errors import Missing, Rejected
from lakestream.metadata.store import MetadataStore
from lakestream.schemas.model import Format, Source
from lakestream.schemas.sources import kept
from lakestream.schemas.typing import Mode, OnInvalid, Part, Typed, WantedSchema
from lakestream.schemas.writers import Writer
from lakestream.seldom import Seldom

log = logging.getLogger(__name__)

WRITERS_MAX: Final = 1_000
Writers: TypeAlias = OrderedDict[tuple[str, WantedSchema], Writer]
"""By context."""
ASKS_MAX: Final = 100
"""Schemas that one batch may bring."""


class InvalidRecords(Rejected):
    """`reasons`: by their places in the batch, in order."""

    def __init__(self, reasons: Mapping[int, str], message: str = "") -> None:
        first = next(iter(reasons))
        super().__init__(message or f"record {first} of the batch is not what its topic says: {reasons[first]}")
        self.reasons = reasons

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self.reasons)


def is_asked(settings: TopicSettings) -> bool:
    modes = settings.value_schema.mode, settings.key_schema.mode
    return settings.on_invalid is OnInvalid.REJECT and any(mode is not Mode.NONE for mode in modes)


class Admission:
    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._seldom = Seldom(clock)
        self._shelf = SchemaShelf(store)
        self._judges = Judges()
        self._writers: Writers = OrderedDict()

    async def check(self, topic: str, settings: TopicSettings, batch: RecordBatch) -> None:
        """InvalidRecords: some are not what the topic says, and why."""
        # Here and not above: most brokers have no use for the kernels of it.
        from lakestream.data.typed.checking import Wrong, check, first_of, noted

        unknown: Writers = OrderedDict()
        context = settings.schema_context
        for _ in range(ASKS_MAX):
            value = await self._typed(topic, Part.VALUE, settings.value_schema, context, unknown)
            key = await self._typed(topic, Part.KEY, settings.key_schema, context, unknown)
            checked = await asyncio.to_thread(check, batch.data, value, key)
            if not checked.wanted:
                break
            for wanted in dict.fromkeys(checked.wanted):
                await self._look_up(context, wanted, unknown)
        else:
            message = f"the batch has records of more than {ASKS_MAX} schemas that nobody knows"
            raise InvalidRecords({0: message}, message)
        until_s = self._judges.deadline_s()
        for one in checked.unjudged:
            found = await self._judges.wrong(one.rules, one.values, until_s)
            verdict = {one.numbers[place]: reason for place, reason in found}
            reasons = one.misfits | verdict
            checked.wrong.extend(Wrong((number,), noted(one.part, why)) for number, why in reasons.items())
        if checked.wrong:
            refused = InvalidRecords(first_of(checked.wrong))
            if self._seldom.is_news(topic):  # some clients show nothing but the number of the error
                log.warning("admission.refused topic=%s reason=%r", topic, str(refused))
            raise refused

    async def close(self) -> None:
        await self._judges.close()

    async def _typed(self, topic: str, part: Part, choice: SchemaChoice, context: str, unknown: "Writers") -> Typed:
        match choice.mode:
            case Mode.NONE | Mode.JSON:
                return Typed(choice.mode)
            case Mode.REGISTRY:
                known = (*self._writers.items(), *unknown.items())
                mine = [one for (where, wanted), one in known if where == context and wanted.part is part]
                return Typed(choice.mode, tuple(mine))
            case Mode.LATEST | Mode.FIXED:
                return Typed(choice.mode, (await self._chosen(topic, part, choice, context),))

    async def _chosen(self, topic: str, part: Part, choice: SchemaChoice, context: str) -> Writer:
        subject = str(parse(choice.subject or f"{topic}-{part.value}", context))
        try:
            if choice.mode is Mode.LATEST:
                found = await self._shelf.latest(subject)
            else:
                found = await self._shelf.version(subject, choice.version)
        except (Missing, Rejected) as error:
            return Writer(0, "", f"the topic's schema is not to be had: {error}")
        return Writer(found.id, found.source.format.value, found.source.text, kept(found.source), schema_id=found.id)

    async def _look_up(self, context: str, wanted: WantedSchema, unknown: "Writers") -> None:
        try:
            source = await self._shelf.source_of(context, wanted.schema_id)
        except (Missing, Rejected) as error:
            nobody = Writer(wanted.schema_id, "", str(error), schema_id=wanted.schema_id, framed=True)
            unknown[context, wanted] = nobody
            return
        message = wanted.message if source.format is Format.PROTOBUF and any(wanted.message) else ()
        known = WantedSchema(wanted.part, wanted.schema_id, message)
        self._writers[context, known] = _framed(source, wanted.schema_id, message)
        while len(self._writers) > WRITERS_MAX:
            self._writers.popitem(last=False)


def _framed(source: Source, schema_id: int, message: tuple[int, ...]) -> Writer:
    return Writer(
        schema_id, source.format.value, source.text, kept(source), schema_id=schema_id, framed=True, message=message
    )
