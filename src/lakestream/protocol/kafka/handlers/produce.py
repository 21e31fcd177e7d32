"""Produce (key 0), v3-13 (0 is reported, because older librdkafka looks for it before it compresses anything).

Appends one record batch per partition. Batches are placed in the order of the connection's requests, and then wait for
their offsets together: the next request is worked on while this one waits for storage.

Only batches of magic 2 are taken. acks 1 and -1 mean the same: stored. acks 0 is not answered; an error closes.

A batch of a transaction may come to any broker. Up to v11 its partition must have been added to the transaction before
(else 48, or 120); from v12 on that is left to us, and begins the transaction where none is open. What comes while the
one before is just ending waits for a moment, or comes again (51).
v5 log start offset · v8 record errors · v9 flexible · v10 current leader (not sent: any broker is one)
v11 transaction abortable (120) · v12 partitions are added to transactions here · v13 topic ids
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeAlias

from lakestream.batch import RecordBatch
from lakestream.coordination import topic_settings
from lakestream.coordination.admission import InvalidRecords, is_asked
from lakestream.coordination.topic_settings import TopicSettings
from lakestream.coordination.transactions.machine import CLASSIC, IMPLICIT
from lakestream.data.wal.buffer import Appended
from lakestream.errors import Corrupt, LakestreamError, Missing, Rejected, Unavailable
from lakestream.metadata.claims import NO_TRANSACTION
from lakestream.metadata.transactions import Identity
from lakestream.model import PartitionId
from lakestream.protocol.kafka import setbacks
from lakestream.protocol.kafka.dispatch import Call, Done, describe, handles, one_line, tell
from lakestream.protocol.kafka.errors import Code, InvalidRecord, KafkaError
from lakestream.protocol.kafka.keyless import keyless
from lakestream.protocol.kafka.produce_answer import Stored, StoredTopic, written
from lakestream.protocol.kafka.produce_request import PartitionData, ProduceRequest, TopicData
from lakestream.protocol.kafka.rewrite import needs_rewriting, rewritten
from lakestream.protocol.kafka.server import Answer, CloseConnection
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.setbacks import SETBACKS
from lakestream.protocol.kafka.transactions import IMPLICIT_FROM_PRODUCE, checked_id, produce_code

ZSTD = "zstd"
ZSTD_FROM_VERSION = 7
ACKS = (-1, 0, 1)
NO_TIMESTAMP = -1
REASONS_TOLD = 100
"""Records that each hear what is wrong with them; an answer should be small."""

Outcome: TypeAlias = "asyncio.Future[Appended] | LakestreamError"


class Part(NamedTuple):
    """One partition of a request, and what became of it."""

    topic: TopicData
    number: int
    outcome: Outcome
    append_ms: int
    log_start: int = 0


def begin(call: Call, services: Services, done: Done) -> bool:
    """The short way: everything is known and nothing has to be rewritten, so the batches are placed at once, without a
    task. False: nothing was done."""
    if call.connection.produce_turn.taken or call.body.acks not in ACKS or SETBACKS in call.connection.state:
        return False
    plan = []
    for topic, data in _asked(call):
        known = _known(topic, data.number, services)
        if known is None or known[1].compacted or known[1].log_append_time or known[1].compression != "producer":
            return False
        if is_asked(known[1]):
            return False
        plan.append((topic, data, *known))
    transaction = NO_TRANSACTION
    if call.body.transactional_id is not None:
        number = _transaction_known([(data, partition) for _, data, partition, _ in plan], call, services)
        if number is None:
            return False
        transaction = number
    Waiting([_placed_at_once(*item, transaction, call, services) for item in plan], call, services, done)
    return True


@handles(0, versions=range(3, 14), reports_from=0, begin=begin)
async def produce(call: Call, services: Services) -> Answer:
    """The long way."""
    if call.body.acks not in ACKS:
        refusal = KafkaError(Code.INVALID_REQUIRED_ACKS, f"acks={call.body.acks}: give 0, 1 or -1")
        parts = [Part(topic, data.number, refusal, -1) for topic, data in _asked(call)]
    else:
        async with call.connection.produce_turn:
            transactions = await _transactions(call, services)
            parts = [await _placed(topic, data, transactions, call, services) for topic, data in _asked(call)]
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    Waiting(parts, call, services, partial(tell, answer))
    return await answer


def _asked(call: Call) -> Iterator[tuple[TopicData, PartitionData]]:
    request: ProduceRequest = call.body
    return ((topic, data) for topic in request.topics for data in topic.partitions)


# ── find, check, place ───────────────────────────────────────────────────────────────────────────────────────────────


def _known(topic: TopicData, number: int, services: Services) -> tuple[PartitionId, TopicSettings] | None:
    """From memory alone."""
    name = topic.name if topic.topic_id is None else services.view.name_of(topic.topic_id.hex)
    known = None if name is None else services.view.known(name)
    if known is None or not 0 <= number < known.partition_count:
        return None
    return PartitionId(known.topic_id, number), topic_settings.read(known.settings)


async def _found(topic: TopicData, number: int, services: Services) -> tuple[PartitionId, TopicSettings]:
    name = topic.name
    if name is None:
        try:
            name = await services.view.name_of_id(topic.topic_id.hex if topic.topic_id else "")
        except Missing as error:
            raise KafkaError(Code.UNKNOWN_TOPIC_ID, str(error)) from error
    partition = await services.view.partition(name, number)
    if topic.topic_id is not None and partition.topic_id != topic.topic_id.hex:
        raise KafkaError(Code.UNKNOWN_TOPIC_ID, f"topic {name} is another one by now")
    return partition, topic_settings.read((await services.view.topic(name)).settings)


def _placed_at_once(
    topic: TopicData,
    data: PartitionData,
    partition: PartitionId,
    settings: TopicSettings,
    transaction: int,
    call: Call,
    services: Services,
) -> Part:
    try:
        batch = _checked(data.records, settings, call)
        _check_time(batch, settings, services.clock.now_ms(), services)
        outcome = services.log.place(partition, batch, transaction if batch.is_transactional else NO_TRANSACTION)
        return Part(topic, data.number, outcome, -1, services.log.start_known(partition))
    except LakestreamError as error:
        return _failed(topic, data, error, call)


async def _placed(
    topic: TopicData, data: PartitionData, transactions: "Transactions", call: Call, services: Services
) -> Part:
    try:
        partition, settings = await _found(topic, data.number, services)
        now_ms = services.clock.now_ms()
        batch = _checked(data.records, settings, call)
        transaction = _transaction_of(partition, transactions) if batch.is_transactional else NO_TRANSACTION
        if not settings.log_append_time:
            _check_time(batch, settings, now_ms, services)
        if settings.compacted:
            await _check_keys(batch)
        if is_asked(settings):
            await _check_schemas(topic, batch, settings, services)
        if needs_rewriting(batch, settings):
            batch = RecordBatch.parse(await asyncio.to_thread(rewritten, batch, settings, now_ms))
        await setbacks.check(call.connection.state, _place(topic, data), batch, partition, services.log)
        outcome = services.log.place(partition, batch, transaction)
        append_ms = now_ms if settings.log_append_time else -1
        return Part(topic, data.number, outcome, append_ms, services.log.start_known(partition))
    except LakestreamError as error:
        return _failed(topic, data, error, call)


def _failed(topic: TopicData, data: PartitionData, error: LakestreamError, call: Call) -> Part:
    if isinstance(error, Unavailable | Missing):  # it will come again; what is refused for good will not
        setbacks.note(call.connection.state, _place(topic, data), data.records)
    return Part(topic, data.number, error, -1)


def _place(topic: TopicData, data: PartitionData) -> setbacks.Place:
    return topic.topic_id or topic.name, data.number


def _checked(records: memoryview | None, settings: TopicSettings, call: Call) -> RecordBatch:
    try:
        batch = RecordBatch.parse(records or b"")
    except Corrupt as error:
        raise KafkaError(Code.CORRUPT_MESSAGE, str(error)) from error
    except Rejected as error:
        raise KafkaError(Code.INVALID_RECORD, str(error)) from error
    if batch.is_control:
        raise KafkaError(Code.INVALID_RECORD, "control batches are written by brokers, not by clients")
    if batch.is_transactional and call.body.transactional_id is None:
        raise KafkaError(
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a batch of a transaction comes with a transactional id"
        )
    if batch.size > settings.batch_bytes_max:
        raise KafkaError(
            Code.MESSAGE_TOO_LARGE, f"batch of {batch.size} bytes: the topic takes {settings.batch_bytes_max}"
        )
    if call.version < ZSTD_FROM_VERSION and batch.compression == ZSTD:
        raise KafkaError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs produce version {ZSTD_FROM_VERSION} or newer")
    return batch


async def _check_keys(batch: RecordBatch) -> None:
    try:
        numbers = await asyncio.to_thread(keyless, batch)
    except Rejected as error:
        raise KafkaError(Code.INVALID_RECORD, str(error)) from error
    if numbers:
        why = "a record in a compacted topic needs a key"
        raise InvalidRecord(numbers, f"{why}, and record {numbers[0]} of the batch has none")


async def _check_schemas(topic: TopicData, batch: RecordBatch, settings: TopicSettings, services: Services) -> None:
    if services.admission is None:
        return
    name = topic.name if topic.topic_id is None else await services.view.name_of_id(topic.topic_id.hex)
    try:
        await services.admission.check(name or "", settings, batch)
    except InvalidRecords as error:
        told = {number: one_line(reason) for number, reason in islice(error.reasons.items(), REASONS_TOLD)}
        raise InvalidRecord(error.numbers, str(error), told) from error
    except Corrupt as error:
        raise KafkaError(Code.INVALID_RECORD, str(error)) from error


def _check_time(batch: RecordBatch, settings: TopicSettings, now_ms: int, services: Services) -> None:
    late = batch.max_timestamp - now_ms > settings.timestamp_after_ms_max
    early = batch.base_timestamp != NO_TIMESTAMP and now_ms - batch.base_timestamp > settings.timestamp_before_ms_max
    if late or early:
        services.log.check_clock()  # it may be we who are wrong, and then the batch is welcome elsewhere, or later
        way, timestamp = ("future", batch.max_timestamp) if late else ("past", batch.base_timestamp)
        raise KafkaError(Code.INVALID_TIMESTAMP, f"timestamp {timestamp} is too far in the {way}")


# ── which transaction ────────────────────────────────────────────────────────────────────────────────────────────────

Transactions: TypeAlias = dict[PartitionId, int | LakestreamError]
"""The transaction that a batch for a partition belongs to, or why there is none."""


def _transaction_known(batches: list[tuple[PartitionData, PartitionId]], call: Call, services: Services) -> int | None:
    """From memory alone: the one that all of them belong to."""
    heads = [(_head(data), partition) for data, partition in batches]
    owners = {Identity(head.producer_id, head.producer_epoch) for head, _ in heads if head is not None}
    if len(owners) != 1:
        return None
    partitions = [partition for _, partition in heads]
    return services.transactions.number_known(call.body.transactional_id, owners.pop(), partitions)


async def _transactions(call: Call, services: Services) -> Transactions:
    """Of all batches that are part of one. Partitions that the client leaves to us to add are added together."""
    if call.body.transactional_id is None:
        return {}
    wanted: dict[Identity, list[PartitionId]] = {}
    for topic, data in _asked(call):
        head = _head(data)
        if head is not None and head.is_transactional:
            with suppress(LakestreamError):  # it is told when the batch is placed
                partition, _ = await _found(topic, data.number, services)
                wanted.setdefault(Identity(head.producer_id, head.producer_epoch), []).append(partition)
    found: Transactions = {}
    for who, partitions in wanted.items():
        implicit = call.version >= IMPLICIT_FROM_PRODUCE
        for some in [partitions] if implicit else [[partition] for partition in partitions]:
            number = await _admitted(who, some, implicit, call, services)
            found.update(dict.fromkeys(some, number))
    return found


def _transaction_of(partition: PartitionId, transactions: Transactions) -> int:
    found = transactions.get(partition)
    if found is None:  # when its transaction was asked for, the topic could not be found, or was another one
        raise Unavailable(f"log {partition} has only just been found; send the batch again")
    if isinstance(found, LakestreamError):
        raise found
    return found


async def _admitted(
    who: Identity, partitions: list[PartitionId], implicit: bool, call: Call, services: Services
) -> int | LakestreamError:
    try:
        transactional_id = checked_id(call.body.transactional_id)
        return await services.transactions.admit(transactional_id, who, partitions, IMPLICIT if implicit else CLASSIC)
    except LakestreamError as error:
        return error


def _head(data: PartitionData) -> RecordBatch | None:
    """None: what is wrong with it is told when it is placed."""
    try:
        return RecordBatch(data.records or b"")
    except LakestreamError:
        return None


# ── wait, answer ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Waiting:
    """A request whose batches are placed. Answers when all of them have their offsets, or its time is over."""

    __slots__ = ("_call", "_done", "_left", "_parts", "_services", "_step")

    def __init__(self, parts: list[Part], call: Call, services: Services, done: Done) -> None:
        self._parts = parts
        self._call = call
        self._services = services
        self._done: Done | None = done
        self._left = 0
        for part in parts:
            if isinstance(part.outcome, asyncio.Future):
                self._left += 1
                part.outcome.add_done_callback(self._settled)
        self._step: int | None = None
        if self._left:
            self._step = services.deadlines.add(self, call.body.timeout_ms / 1000)
        else:
            self._finish()

    def time_is_over(self) -> None:
        self._finish()

    def _settled(self, outcome: "asyncio.Future[Appended]") -> None:
        if not outcome.cancelled():
            outcome.exception()  # looked at, though the request's time may be over
        self._left -= 1
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        if self._step is not None:
            self._services.deadlines.remove(self, self._step)
        if self._call.body.acks == 0:
            done(_failure_of(self._parts))
        else:
            done([written(self._call.request, _by_topic(self._parts, self._call.version, self._services))])


def _failure_of(parts: list[Part]) -> CloseConnection | None:
    """Without acks nothing is said of a success, and a failure closes the connection."""
    for part in parts:
        if isinstance(error := _outcome(part), LakestreamError):
            return CloseConnection(f"produced without acks, and it failed: {describe(error)}")
    return None


def _outcome(part: Part) -> Appended | LakestreamError:
    outcome = part.outcome
    if isinstance(outcome, LakestreamError):
        return outcome
    if not outcome.done() or outcome.cancelled():
        return Unavailable("not stored within the request's time; it may be later")
    error = outcome.exception()
    if error is None:
        return outcome.result()
    assert isinstance(error, LakestreamError)
    return error


def _by_topic(parts: list[Part], version: int, services: Services) -> list[StoredTopic]:
    topics: list[StoredTopic] = []
    last: TopicData | None = None
    for part in parts:
        if part.topic is not last:  # they come as they were asked for, topic by topic
            last = part.topic
            topics.append(StoredTopic(last.name, last.topic_id, []))
        topics[-1].parts.append(_stored(part, version, services))
    return topics


def _stored(part: Part, version: int, services: Services) -> Stored:
    outcome = _outcome(part)
    if isinstance(outcome, Appended):
        return Stored(part.number, Code.NONE, outcome.offset_start, part.append_ms, part.log_start)
    # All records that are to blame, as Kafka does: clients tell each record whether it or another one was the reason.
    to_blame = (
        [(number, outcome.reasons.get(number)) for number in outcome.numbers]
        if isinstance(outcome, InvalidRecord)
        else []
    )
    return Stored(
        part.number,
        produce_code(outcome, version),
        record_errors=to_blame,
        message=describe(outcome, services),
    )
