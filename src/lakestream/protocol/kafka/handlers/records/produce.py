"""Produce (key 0), v3-13 (0 is reported, because older librdkafka requires it for compression).

Appends one record batch per partition. Batches are submitted to the log in the order of the connection's requests, and
then wait for their offsets concurrently: the next request is served while this one waits for storage.

Only batches of magic 2 are accepted, and every record in them is validated. acks 1 and -1 mean the same: stored. A
request with acks 0 gets no response; an error closes the connection.

Any broker accepts batches of a transaction. Up to v11 the partition must have been added to the transaction before
(else 48, or 120); from v12 on the broker adds it, and begins the transaction if none is open. A batch that arrives
while the previous transaction completes waits for a moment, or is to be retried (51).
v5 log start offset · v8 record errors · v9 flexible · v10 current leader (not sent: any broker is one)
v11 transaction abortable (120) · v12 partitions are added to transactions here · v13 topic ids
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from lakestream.coordination import topic_config
from lakestream.coordination.topic_config import TopicSettings
from lakestream.coordination.transactions.state_machine import CLASSIC, IMPLICIT
from lakestream.coordination.validation.record_validator import Validated, needs_thread
from lakestream.coordination.validation.schema_validation import validates_schemas
from lakestream.data.wal.buffer import Appended
from lakestream.errors import Corrupt, InvalidRecords, LakestreamError, Missing, Rejected, Unavailable
from lakestream.metadata.claims import NO_TRANSACTION
from lakestream.metadata.transactions import Identity
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Call, Done, complete, error_message, handles, single_line
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.handlers.records import produce_checks
from lakestream.protocol.kafka.handlers.records.produce_checks import (
    FAILED_BATCHES,
    needs_rewriting,
    rewritten,
    with_create_time,
)
from lakestream.protocol.kafka.handlers.transactions.shared import IMPLICIT_FROM_PRODUCE, checked_id, produce_code
from lakestream.protocol.kafka.network.connection import CloseConnection, ResponseBytes
from lakestream.protocol.kafka.services import RecordsContext
from lakestream.protocol.kafka.wire.produce_request import PartitionData, ProduceRequest, TopicData
from lakestream.protocol.kafka.wire.produce_response import ProducedPartition, ProducedTopic, encode_response
from lakestream.records.batch import RecordBatch, Timestamps

ZSTD = "zstd"
ZSTD_FROM_VERSION = 7
ACKS = (-1, 0, 1)
NO_TIMESTAMP = -1
REASONS_MAX = 100
"""Records whose reasons are in the response; of further records it has only the numbers."""

Outcome: TypeAlias = "asyncio.Future[Appended] | LakestreamError"


class ProducePartition(NamedTuple):
    """One partition of a request, and its result."""

    topic: TopicData
    number: int
    outcome: Outcome
    append_ms: int
    log_start: int = 0


def begin(call: Call, context: RecordsContext, done: Done) -> bool:
    """Begins a request without a task if possible. Returns False if `produce` has to serve it in a task.

    The next request of the connection may arrive before that task starts, and must not overtake it.
    """
    if _try_submit_all(call, context, done):
        return True
    call.connection.produce_lock.reserve()
    if call.body.acks == 0:  # the client waits for no response: it may close the connection as soon as all is sent
        call.connection.outlive()
    return False


def _try_submit_all(call: Call, context: RecordsContext, done: Done) -> bool:
    """Submits the batches if all metadata is cached, none is to be rewritten, and all are cheap to validate."""
    if call.connection.produce_lock.taken or call.body.acks not in ACKS or FAILED_BATCHES in call.connection.state:
        return False
    if needs_thread(data.records or b"" for _, data in _batches(call)):
        return False
    plan = []
    for topic, data in _batches(call):
        resolved = _resolve_cached(topic, data.number, context)
        if resolved is None or resolved[1].log_append_time or resolved[1].compression != "producer":
            return False
        if validates_schemas(resolved[1]):
            return False
        plan.append((topic, data, *resolved))
    transaction = NO_TRANSACTION
    if call.body.transactional_id is not None:
        number = _cached_transaction([(data, partition) for _, data, partition, _ in plan], call, context)
        if number is None:
            return False
        transaction = number
    PendingProduce([_try_submit(*item, transaction, call, context) for item in plan], call, context, done)
    return True


@handles(0, versions=range(3, 14), reports_from=0, begin=begin)
async def produce(call: Call, context: RecordsContext) -> ResponseBytes:
    """Serves a request in a task. `begin` has reserved its turn."""
    async with call.connection.produce_lock.reserved():
        if call.body.acks not in ACKS:
            error = KafkaError(Code.INVALID_REQUIRED_ACKS, f"acks={call.body.acks}: use 0, 1 or -1")
            parts = [ProducePartition(topic, data.number, error, -1) for topic, data in _batches(call)]
        else:
            transactions = await _transactions(call, context)
            batches = [await _check(topic, data, call, context) for topic, data in _batches(call)]
            validated = iter(
                await context.validator.validate_all([one for one in batches if isinstance(one, CheckedBatch)])
            )
            parts = [
                one
                if isinstance(one, ProducePartition)
                else await _submit(one, next(validated), transactions, call, context)
                for one in batches
            ]
    response: asyncio.Future[ResponseBytes] = asyncio.get_running_loop().create_future()
    PendingProduce(parts, call, context, partial(complete, response))
    return await response


def _batches(call: Call) -> Iterator[tuple[TopicData, PartitionData]]:
    request: ProduceRequest = call.body
    return ((topic, data) for topic in request.topics for data in topic.partitions)


# ── resolve, check, submit ────────────────────────────────────────────────────────────────────────────────────────────


def _resolve_cached(topic: TopicData, number: int, context: RecordsContext) -> tuple[PartitionId, TopicSettings] | None:
    """Returns a partition and its topic's settings if they are cached, else None."""
    name = topic.name if topic.topic_id is None else context.metadata_cache.cached_name(topic.topic_id.hex)
    cached = None if name is None else context.metadata_cache.cached_topic(name)
    if cached is None or not 0 <= number < cached.partition_count:
        return None
    return PartitionId(cached.topic_id, number), topic_config.read(cached.settings)


async def _resolve(topic: TopicData, number: int, context: RecordsContext) -> tuple[PartitionId, TopicSettings]:
    name = topic.name
    if name is None:
        try:
            name = await context.metadata_cache.name_of_id(topic.topic_id.hex if topic.topic_id else "")
        except Missing as error:
            raise KafkaError(Code.UNKNOWN_TOPIC_ID, str(error)) from error
    partition = await context.metadata_cache.partition(name, number)
    if topic.topic_id is not None and partition.topic_id != topic.topic_id.hex:
        raise KafkaError(Code.UNKNOWN_TOPIC_ID, f"topic {name}: recreated with a different topic id")
    return partition, topic_config.read((await context.metadata_cache.topic(name)).settings)


def _try_submit(
    topic: TopicData,
    data: PartitionData,
    partition: PartitionId,
    settings: TopicSettings,
    transaction: int,
    call: Call,
    context: RecordsContext,
) -> ProducePartition:
    try:
        batch = _parse_batch(data.records, settings, call)
        timestamps = context.validator.validate(batch, keys_needed=settings.compacted)
        batch = _with_timestamps(batch, timestamps, settings, context.clock.now_ms(), context)
        outcome = context.log.submit(partition, batch, transaction if batch.is_transactional else NO_TRANSACTION)
        return ProducePartition(topic, data.number, outcome, -1, context.log.cached_start(partition))
    except LakestreamError as error:
        return _failed(topic, data, error, call)


class CheckedBatch(NamedTuple):
    """A batch with a valid header, and its partition."""

    topic: TopicData
    data: PartitionData
    partition: PartitionId
    settings: TopicSettings
    batch: RecordBatch

    @property
    def keys_needed(self) -> bool:
        return self.settings.compacted


async def _check(
    topic: TopicData, data: PartitionData, call: Call, context: RecordsContext
) -> CheckedBatch | ProducePartition:
    try:
        partition, settings = await _resolve(topic, data.number, context)
        return CheckedBatch(topic, data, partition, settings, _parse_batch(data.records, settings, call))
    except LakestreamError as error:
        return _failed(topic, data, error, call)


async def _submit(
    checked: CheckedBatch, validated: Validated, transactions: "Transactions", call: Call, context: RecordsContext
) -> ProducePartition:
    topic, data, partition, settings, batch = checked
    try:
        if isinstance(validated, Rejected):
            raise validated
        now_ms = context.clock.now_ms()
        transaction = _transaction_of(partition, transactions) if batch.is_transactional else NO_TRANSACTION
        if not settings.log_append_time:
            batch = _with_timestamps(batch, validated, settings, now_ms, context)
        if validates_schemas(settings):
            await _check_schemas(topic, batch, settings, context)
        if needs_rewriting(batch, settings):
            batch = RecordBatch.parse(await context.validator.in_thread(partial(rewritten, batch, settings, now_ms)))
        await produce_checks.check(
            call.connection.state, _requested_partition(topic, data), batch, partition, context.log
        )
        outcome = context.log.submit(partition, batch, transaction)
        append_ms = now_ms if settings.log_append_time else -1
        return ProducePartition(topic, data.number, outcome, append_ms, context.log.cached_start(partition))
    except LakestreamError as error:
        return _failed(topic, data, error, call)


def _failed(topic: TopicData, data: PartitionData, error: LakestreamError, call: Call) -> ProducePartition:
    if isinstance(error, Unavailable | Missing):  # producers retry only these errors
        produce_checks.note(call.connection.state, _requested_partition(topic, data), data.records)
    return ProducePartition(topic, data.number, error, -1)


def _requested_partition(topic: TopicData, data: PartitionData) -> produce_checks.RequestedPartition:
    return topic.topic_id or topic.name, data.number


def _parse_batch(records: memoryview | None, settings: TopicSettings, call: Call) -> RecordBatch:
    try:
        batch = RecordBatch.parse(records or b"")
    except Corrupt as error:
        raise KafkaError(Code.CORRUPT_MESSAGE, str(error)) from error
    except Rejected as error:
        raise KafkaError(Code.INVALID_RECORD, str(error)) from error
    if batch.is_control:
        raise KafkaError(Code.INVALID_RECORD, "control batches are written by brokers, not by clients")
    if batch.timestamp_type and (settings.log_append_time or batch.max_timestamp == NO_TIMESTAMP):
        raise KafkaError(
            Code.INVALID_TIMESTAMP, "batch has timestamp type LogAppendTime, which brokers set: send CreateTime"
        )
    if batch.is_transactional and call.body.transactional_id is None:
        raise KafkaError(
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch requires a transactional id in the request",
        )
    if batch.size > settings.batch_bytes_max:
        raise KafkaError(
            Code.MESSAGE_TOO_LARGE,
            f"batch of {batch.size} bytes: max.message.bytes of the topic is {settings.batch_bytes_max}",
        )
    if call.version < ZSTD_FROM_VERSION and batch.compression == ZSTD:
        raise KafkaError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs produce version {ZSTD_FROM_VERSION} or newer")
    return batch


async def _check_schemas(
    topic: TopicData, batch: RecordBatch, settings: TopicSettings, context: RecordsContext
) -> None:
    if context.schema_validator is None:
        return
    name = topic.name if topic.topic_id is None else await context.metadata_cache.name_of_id(topic.topic_id.hex)
    try:
        await context.schema_validator.check(name or "", settings, batch)
    except Corrupt as error:
        raise KafkaError(Code.INVALID_RECORD, str(error)) from error


def _with_timestamps(
    batch: RecordBatch, timestamps: Timestamps, settings: TopicSettings, now_ms: int, context: RecordsContext
) -> RecordBatch:
    """Returns the batch, with CreateTime and the newest timestamp of its records in its header.

    Raises INVALID_TIMESTAMP if a record is too far in the past or the future.
    """
    oldest, newest = timestamps
    late = newest - now_ms > settings.timestamp_after_ms_max
    early = oldest != NO_TIMESTAMP and now_ms - oldest > settings.timestamp_before_ms_max
    if late or early:
        context.log.check_clock()  # the broker's clock may be wrong: then the producer retries elsewhere, or later
        way, timestamp = ("future", newest) if late else ("past", oldest)
        raise KafkaError(Code.INVALID_TIMESTAMP, f"timestamp {timestamp} is too far in the {way}")
    if batch.max_timestamp == newest and not batch.timestamp_type:
        return batch
    return RecordBatch(with_create_time(batch, newest))


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────

Transactions: TypeAlias = dict[PartitionId, int | LakestreamError]
"""The number of the transaction of a partition's batch, or the error."""


def _cached_transaction(
    batches: list[tuple[PartitionData, PartitionId]], call: Call, context: RecordsContext
) -> int | None:
    """Returns the cached transaction that all batches belong to, else None."""
    heads = [(_head(data), partition) for data, partition in batches]
    owners = {Identity(head.producer_id, head.producer_epoch) for head, _ in heads if head is not None}
    if len(owners) != 1:
        return None
    partitions = [partition for _, partition in heads]
    return context.transactions.cached_number(call.body.transactional_id, owners.pop(), partitions)


async def _transactions(call: Call, context: RecordsContext) -> Transactions:
    """Returns the transactions of all transactional batches. From v12 on, it adds their partitions in one step."""
    if call.body.transactional_id is None:
        return {}
    by_producer: dict[Identity, list[PartitionId]] = {}
    for topic, data in _batches(call):
        head = _head(data)
        if head is not None and head.is_transactional:
            with suppress(LakestreamError):  # _check() returns the error
                partition, _ = await _resolve(topic, data.number, context)
                by_producer.setdefault(Identity(head.producer_id, head.producer_epoch), []).append(partition)
    transactions: Transactions = {}
    for producer, partitions in by_producer.items():
        implicit = call.version >= IMPLICIT_FROM_PRODUCE
        for some in [partitions] if implicit else [[partition] for partition in partitions]:
            number = await _admit(producer, some, implicit, call, context)
            transactions.update(dict.fromkeys(some, number))
    return transactions


def _transaction_of(partition: PartitionId, transactions: Transactions) -> int:
    number = transactions.get(partition)
    if number is None:  # the topic could not be resolved then, or had another id
        raise Unavailable(f"partition {partition}: its topic has just been created: retry")
    if isinstance(number, LakestreamError):
        raise number
    return number


async def _admit(
    producer: Identity, partitions: list[PartitionId], implicit: bool, call: Call, context: RecordsContext
) -> int | LakestreamError:
    try:
        transactional_id = checked_id(call.body.transactional_id)
        return await context.transactions.number_for_batches(
            transactional_id, producer, partitions, IMPLICIT if implicit else CLASSIC
        )
    except LakestreamError as error:
        return error


def _head(data: PartitionData) -> RecordBatch | None:
    """Returns None if the batch is malformed; then _check() returns the error."""
    try:
        return RecordBatch(data.records or b"")
    except LakestreamError:
        return None


# ── wait, respond ────────────────────────────────────────────────────────────────────────────────────────────────────


class PendingProduce:
    """A request whose batches are submitted. Completes when all of them have their offsets, or at its timeout."""

    __slots__ = ("_call", "_context", "_done", "_left", "_parts", "_step")

    def __init__(self, parts: list[ProducePartition], call: Call, context: RecordsContext, done: Done) -> None:
        self._parts = parts
        self._call = call
        self._context = context
        self._done: Done | None = done
        self._left = 0
        for part in parts:
            if isinstance(part.outcome, asyncio.Future):
                self._left += 1
                part.outcome.add_done_callback(self._on_done)
        self._step: int | None = None
        if self._left:
            self._step = context.produce_timers.add(self, call.body.timeout_ms / 1000)
        else:
            self._finish()

    def on_timeout(self) -> None:
        self._finish()

    def _on_done(self, outcome: "asyncio.Future[Appended]") -> None:
        if not outcome.cancelled():
            outcome.exception()  # marks it as retrieved, also if the request has timed out
        self._left -= 1
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        if self._step is not None:
            self._context.produce_timers.remove(self, self._step)
        if self._call.body.acks == 0:
            done(_failure_of(self._parts))
        else:
            done([encode_response(self._call.request, _by_topic(self._parts, self._call.version, self._context))])


def _failure_of(parts: list[ProducePartition]) -> CloseConnection | None:
    """With acks=0 a success has no response, and a failure closes the connection."""
    for part in parts:
        if isinstance(error := _outcome(part), LakestreamError):
            return CloseConnection(f"a Produce request with acks=0 failed: {error_message(error)}")
    return None


def _outcome(part: ProducePartition) -> Appended | LakestreamError:
    outcome = part.outcome
    if isinstance(outcome, LakestreamError):
        return outcome
    if not outcome.done() or outcome.cancelled():
        return Unavailable("request timed out before the commit; the batch may still be committed")
    error = outcome.exception()
    if error is None:
        return outcome.result()
    assert isinstance(error, LakestreamError)
    return error


def _by_topic(parts: list[ProducePartition], version: int, context: RecordsContext) -> list[ProducedTopic]:
    topics: list[ProducedTopic] = []
    last: TopicData | None = None
    for part in parts:
        if part.topic is not last:  # parts are in the order of the request, grouped by topic
            last = part.topic
            topics.append(ProducedTopic(last.name, last.topic_id, []))
        topics[-1].parts.append(_result(part, version, context))
    return topics


def _result(part: ProducePartition, version: int, context: RecordsContext) -> ProducedPartition:
    outcome = _outcome(part)
    if isinstance(outcome, Appended):
        return ProducedPartition(part.number, Code.NONE, outcome.offset_start, part.append_ms, part.log_start)
    # All invalid records, as in Kafka: clients report to each record whether it or another one was invalid.
    record_errors: list[tuple[int, str | None]] = []
    if isinstance(outcome, InvalidRecords):
        for index, (number, reason) in enumerate(outcome.reasons.items()):
            record_errors.append((number, single_line(reason) if index < REASONS_MAX else None))
    return ProducedPartition(
        part.number,
        produce_code(outcome, version),
        record_errors=record_errors,
        message=error_message(outcome, context.metadata_cache.cached_name),
    )
