"""Produce (key 0), v3-13 (0 is reported, because older librdkafka looks for it before it compresses anything).

Appends one record batch per partition. Batches are placed in the order of the connection's requests, and then wait for
their offsets together: the next request is worked on while this one waits for storage.

Only batches of magic 2 are taken. acks 1 and -1 mean the same: stored. acks 0 is not answered; an error closes.
v5 log start offset · v8 record errors · v9 flexible · v10 current leader (not sent: any broker is one) · v13 topic ids
"""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

from lakestream.batch import RecordBatch
from lakestream.coordination import topic_settings
from lakestream.coordination.topic_settings import TopicSettings
from lakestream.data.wal.buffer import Appended
from lakestream.errors import Corrupt, LakestreamError, Missing, Rejected, Unavailable
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, InvalidRecord, KafkaError, code_of
from lakestream.protocol.kafka.keyless import keyless
from lakestream.protocol.kafka.produce_request import PartitionData, ProduceRequest, TopicData
from lakestream.protocol.kafka.rewrite import needs_rewriting, rewritten
from lakestream.protocol.kafka.server import CloseConnection
from lakestream.protocol.kafka.services import Services

ZSTD = "zstd"
ZSTD_FROM_VERSION = 7


class Part(NamedTuple):
    """One partition of a request, and what became of it."""

    topic: TopicData
    number: int
    answer: "asyncio.Future[Appended] | LakestreamError"
    log_append_ms: int
    log_start: int = 0


@handles(0, versions=range(3, 14), reports_from=0)
async def produce(call: Call, services: Services) -> Body | None:
    if call.body.acks not in (-1, 0, 1):
        refusal = KafkaError(Code.INVALID_REQUIRED_ACKS, f"acks={call.body.acks}: give 0, 1 or -1")
        parts = [Part(topic, data.number, refusal, -1) for topic, data in _asked(call)]
    else:
        async with call.connection.produce_turn:
            parts = [await _placed(topic, data, call, services) for topic, data in _asked(call)]
    await _settled(parts, call.body.timeout_ms / 1000)
    if call.body.acks == 0:
        _close_on_error(parts)
        return None
    return {"responses": _by_topic(parts)}


def _asked(call: Call) -> Iterator[tuple[TopicData, PartitionData]]:
    request: ProduceRequest = call.body
    return ((topic, data) for topic in request.topics for data in topic.partitions)


async def _placed(topic: TopicData, data: PartitionData, call: Call, services: Services) -> Part:
    try:
        partition, settings = await _found(topic, data.number, services)
        batch, append_ms = await _checked(data.records, settings, call.version, services)
        answer = services.log.place(partition, batch)
        return Part(topic, data.number, answer, append_ms, services.log.start_known(partition))
    except LakestreamError as error:
        return Part(topic, data.number, error, -1)


async def _found(topic: TopicData, index: int, services: Services) -> tuple[PartitionId, TopicSettings]:
    name = topic.name
    if name is None:
        try:
            name = await services.view.name_of_id(topic.topic_id.hex if topic.topic_id else "")
        except Missing as error:
            raise KafkaError(Code.UNKNOWN_TOPIC_ID, str(error)) from error
    partition = await services.view.partition(name, index)
    return partition, topic_settings.read((await services.view.topic(name)).settings)


async def _checked(
    records: memoryview | None, settings: TopicSettings, version: int, services: Services
) -> tuple[RecordBatch, int]:
    """The batch as it will be stored, and its append time where the topic wants that."""
    try:
        batch = RecordBatch.parse(records or b"")
    except Corrupt as error:
        raise KafkaError(Code.CORRUPT_MESSAGE, str(error)) from error
    except Rejected as error:
        raise KafkaError(Code.INVALID_RECORD, str(error)) from error
    if batch.is_control:
        raise KafkaError(Code.INVALID_RECORD, "control batches are written by brokers, not by clients")
    if batch.is_transactional:
        raise KafkaError(Code.INVALID_TXN_STATE, "transactions are not served yet")
    if batch.size > settings.batch_bytes_max:
        raise KafkaError(
            Code.MESSAGE_TOO_LARGE, f"batch of {batch.size} bytes: the topic takes {settings.batch_bytes_max}"
        )
    if batch.compression == ZSTD and version < ZSTD_FROM_VERSION:
        raise KafkaError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs produce version {ZSTD_FROM_VERSION} or newer")
    now_ms = services.clock.now_ms()
    if not settings.log_append_time:
        _check_time(batch, settings, now_ms)
    if settings.compacted:
        await _check_keys(batch)
    if needs_rewriting(batch, settings):
        batch = RecordBatch.parse(await asyncio.to_thread(rewritten, batch, settings, now_ms))
    return batch, now_ms if settings.log_append_time else -1


async def _check_keys(batch: RecordBatch) -> None:
    try:
        numbers = await asyncio.to_thread(keyless, batch)
    except Rejected as error:
        raise KafkaError(Code.INVALID_RECORD, str(error)) from error
    if numbers:
        why = "a record in a compacted topic needs a key"
        raise InvalidRecord(numbers, f"{why}, and record {numbers[0]} of the batch has none")


def _check_time(batch: RecordBatch, settings: TopicSettings, now_ms: int) -> None:
    if batch.max_timestamp - now_ms > settings.timestamp_after_ms_max:
        raise KafkaError(Code.INVALID_TIMESTAMP, f"timestamp {batch.max_timestamp} is too far in the future")
    if now_ms - batch.base_timestamp > settings.timestamp_before_ms_max:
        raise KafkaError(Code.INVALID_TIMESTAMP, f"timestamp {batch.base_timestamp} is too far in the past")


async def _settled(parts: list[Part], timeout_s: float) -> None:
    waiting = [part.answer for part in parts if isinstance(part.answer, asyncio.Future)]
    if waiting:
        await asyncio.wait(waiting, timeout=max(timeout_s, 0.001))


def _outcome(part: Part) -> Appended | LakestreamError:
    if isinstance(part.answer, LakestreamError):
        return part.answer
    if not part.answer.done():
        return Unavailable("not stored within the request's time; it may be later")
    error = part.answer.exception()
    if error is None:
        return part.answer.result()
    assert isinstance(error, LakestreamError)
    return error


def _close_on_error(parts: list[Part]) -> None:
    for part in parts:
        if isinstance(error := _outcome(part), LakestreamError):
            raise CloseConnection(f"produced without acks, and it failed: {describe(error)}")


def _by_topic(parts: list[Part]) -> list[dict[str, Any]]:
    answers: dict[int, dict[str, Any]] = {}
    for part in parts:
        entry = answers.setdefault(
            id(part.topic),
            {
                "name": part.topic.name,
                "topic_id": part.topic.topic_id,
                "partition_responses": [],
            },
        )
        entry["partition_responses"].append(_answer(part))
    return list(answers.values())


def _answer(part: Part) -> dict[str, Any]:
    outcome = _outcome(part)
    if isinstance(outcome, LakestreamError):
        return {
            "index": part.number,
            "error_code": code_of(outcome),
            "base_offset": -1,
            "log_append_time": -1,
            "log_start_offset": -1,
            "record_errors": _record_errors(outcome),
            "error_message": describe(outcome),
        }
    return {
        "index": part.number,
        "error_code": Code.NONE,
        "base_offset": outcome.offset_start,
        "log_append_time": part.log_append_ms,
        "log_start_offset": part.log_start,
    }


def _record_errors(error: LakestreamError) -> list[dict[str, Any]]:
    if not isinstance(error, InvalidRecord):
        return []
    # All of them, as Kafka does: clients tell each record whether it or another one was the reason.
    return [{"batch_index": number, "batch_index_error_message": None} for number in error.numbers]
