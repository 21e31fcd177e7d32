"""Fetch (key 1), v4-18.

Reads record batches from any partition, on any broker. Waits until `min_bytes` are available or `max_wait` is over;
appends on other brokers end the wait, too.

There are no fetch sessions: every response has session id 0, so clients send full requests. Any other session id is
rejected (70). An offset inside a batch returns the whole batch, and the first batch is returned whole even above the
limits. Record bytes are never copied: the response is a list of buffers.
v5 log start · v7 sessions · v9 leader epoch · v11 rack · v12 flexible · v13 topic ids · v15 replica state
"""

import asyncio
from typing import Any, Final, NamedTuple
from uuid import UUID

from lakestream.coordination import placement
from lakestream.data.log.log import Offsets, ReadResult
from lakestream.errors import LakestreamError, Missing, OutOfRange
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_in_fetch
from lakestream.protocol.kafka.services import RecordsContext
from lakestream.protocol.kafka.wire.fetch_response import NO_REPLICA, FetchedPartition, FetchedTopic, encode_response
from lakestream.records.batch import CODECS, COMPRESSION_MASK
from lakestream.records.file_region import BufferOrFile, FileRegion

READ_COMMITTED: Final = 1
NO_BOUNDS: Final = Offsets(-1, -1, -1)
ZSTD_FROM_VERSION: Final = 10
READS_MAX: Final = 64
"""Partitions of one request that are read concurrently."""
ZSTD: Final = CODECS.index("zstd")
DELAYED: Final = (Code.NONE, Code.CORRUPT_MESSAGE, Code.NOT_LEADER_OR_FOLLOWER)
"""Codes that are returned only when the wait of the request is over. On errors for damaged records and unavailable
stores some clients retry immediately, thousands of times a second; and the store may become available meanwhile."""


class FetchPartition(NamedTuple):
    """One partition of a request."""

    partition: PartitionId
    number: int
    offset: int
    bytes_max: int


class FetchTopic(NamedTuple):
    name: str
    topic_id: UUID
    parts: list[FetchPartition | FetchedPartition]


@handles(1, versions=range(4, 19))
async def fetch(call: Call, context: RecordsContext) -> list[BufferOrFile]:
    if call.get("session_id", 0) != 0:
        return encode_response(call.request, [], Code.FETCH_SESSION_ID_NOT_FOUND)
    topics = [await _resolve(topic, context) for topic in call.body.topics]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + call.body.max_wait.total_seconds()
    waited = False
    confirmed = call.body.min_bytes <= 0  # a request that does not wait reads the newest state, not the cached one
    while True:
        fetched = await _read(topics, call, context, confirmed)
        parts = [part for topic in fetched for part in topic.parts]
        left_ms = max(0, int((deadline - loop.time()) * 1000))
        size = sum(part.size for part in parts)
        if size >= call.body.min_bytes or (waited and not left_ms) or any(map(_ends_wait, parts)):
            if size:
                _count(parts, context)
            return encode_response(call.request, fetched, Code.NONE)
        try:
            await context.log.wait_any(
                [(part.partition, part.bounds.end) for part in parts if part.partition and not part.error], left_ms
            )
        except LakestreamError:
            confirmed = True  # the next read returns the error of its partition
        waited = True


def _count(parts: list[FetchedPartition], context: RecordsContext) -> None:
    for part in parts:
        if part.size and part.partition is not None:
            topic = context.log.topic_counts.of(part.partition.topic_id)
            topic.fetched_bytes += part.size
            topic.fetched_batches += part.batches


def _ends_wait(part: FetchedPartition) -> bool:
    return part.error not in DELAYED or part.preferred != NO_REPLICA or part.has_more


async def _resolve(topic: Any, context: RecordsContext) -> FetchTopic:
    """Resolves names and ids to partitions. A partition that cannot be resolved becomes an error response."""
    # kio parses the zero id as None; it is unknown like any other id without a topic.
    name, topic_id = getattr(topic, "topic", None), getattr(topic, "topic_id", None) or UUID(int=0)
    try:
        if name is None:
            name = await _name_of(topic_id, context)
        await context.metadata_cache.topic(name)
    except LakestreamError as error:
        return FetchTopic(
            name or "",
            topic_id,
            [FetchedPartition(part.partition, code_in_fetch(error), NO_BOUNDS) for part in topic.partitions],
        )
    parts: list[FetchPartition | FetchedPartition] = []
    for part in topic.partitions:
        try:
            log_id = await context.metadata_cache.partition(name, part.partition)
            if topic_id.int and log_id.topic_id != topic_id.hex:
                raise KafkaError(Code.UNKNOWN_TOPIC_ID, f"topic {name}: recreated with a different topic id")
            parts.append(FetchPartition(log_id, part.partition, part.fetch_offset, part.partition_max_bytes))
        except LakestreamError as error:
            parts.append(FetchedPartition(part.partition, code_in_fetch(error), NO_BOUNDS))
    return FetchTopic(name, topic_id, parts)


async def _name_of(topic_id: UUID, context: RecordsContext) -> str:
    try:
        return await context.metadata_cache.name_of_id(topic_id.hex)
    except Missing as error:
        raise KafkaError(Code.UNKNOWN_TOPIC_ID, str(error)) from error


async def _read(topics: list[FetchTopic], call: Call, context: RecordsContext, confirmed: bool) -> list[FetchedTopic]:
    """Reads the partitions, and keeps records up to the `max_bytes` of the request."""
    room = call.body.max_bytes
    requested = [part for topic in topics for part in topic.parts if isinstance(part, FetchPartition)]
    results = iter(await _read_some(requested, call, context, confirmed))
    fetched = []
    size = 0
    for topic in topics:
        parts = []
        for part in topic.parts:
            one = next(results) if isinstance(part, FetchPartition) else part
            if size and size + one.size > room:
                one = one._replace(records=(), size=0, batches=0)  # the client fetches these records next
            size += one.size
            parts.append(one)
        fetched.append(FetchedTopic(topic.name, topic.topic_id, parts))
    return fetched


async def _read_some(
    requested: list[FetchPartition], call: Call, context: RecordsContext, confirmed: bool
) -> list[FetchedPartition]:
    """Reads many partitions concurrently, in steps, and stops when `max_bytes` are reached."""
    room = call.body.max_bytes
    fetched: list[FetchedPartition] = []
    for start in range(0, len(requested), READS_MAX):
        some = requested[start : start + READS_MAX]
        if room <= 0:
            fetched += await asyncio.gather(*(_skip(one, context) for one in some))
            continue
        cached = [None if confirmed else _read_cached(one, room, call, context) for one in some]
        missing = [_read_one(one, room, call, context) for one, it in zip(some, cached, strict=True) if it is None]
        read = iter([await missing[0]] if len(missing) == 1 else await asyncio.gather(*missing))
        fetched += [it or next(read) for it in cached]
        room -= sum(one.size for one in fetched[start:])
    return fetched


def _read_cached(requested: FetchPartition, room: int, call: Call, context: RecordsContext) -> FetchedPartition | None:
    """Reads from memory, without a task and without the store, as most fetches at the end of a log can. Else None."""
    if call.get("rack_id", ""):
        return None
    try:
        result = context.log.read_cached(
            requested.partition, requested.offset, min(room, requested.bytes_max), committed=_committed(call)
        )
        return None if result is None else _response(requested, result, call, context)
    except LakestreamError:
        return None  # _read_one() returns the error


async def _skip(requested: FetchPartition, context: RecordsContext) -> FetchedPartition:
    """Returns the offsets of a partition without records. The client fetches these next."""
    try:
        return FetchedPartition(
            requested.number, Code.NONE, await context.log.bounds(requested.partition), requested.partition
        )
    except LakestreamError as error:
        return await _error_response(requested, error, context)


async def _read_one(requested: FetchPartition, room: int, call: Call, context: RecordsContext) -> FetchedPartition:
    preferred = _preferred(requested, call, context)
    try:
        if preferred != NO_REPLICA:  # without records: the client would drop them, and fetch from that broker
            bounds = await context.log.bounds(requested.partition)
            return FetchedPartition(requested.number, Code.NONE, bounds, requested.partition, preferred=preferred)
        result = await context.log.read(
            requested.partition, requested.offset, min(room, requested.bytes_max), committed=_committed(call)
        )
        return _response(requested, result, call, context)
    except LakestreamError as error:
        return await _error_response(requested, error, context)


async def _error_response(
    requested: FetchPartition, error: LakestreamError, context: RecordsContext
) -> FetchedPartition:
    """Returns an error response. OFFSET_OUT_OF_RANGE has the offsets of the log, unless the log was deleted."""
    bounds = NO_BOUNDS
    context.read_errors.note(requested.partition, requested.offset, error)
    if isinstance(error, OutOfRange):
        try:
            bounds = await context.log.bounds(requested.partition)
        except LakestreamError as newer:
            error = newer
    return FetchedPartition(requested.number, code_in_fetch(error), bounds, requested.partition)


def _response(requested: FetchPartition, result: ReadResult, call: Call, context: RecordsContext) -> FetchedPartition:
    batches, aborted = result.batches, None
    if _committed(call):
        batches = [batch for batch in batches if batch[0] < result.bounds.stable]
        aborted = (
            [] if result.is_committed else context.log.aborted(requested.partition, _first(result), result.offset_next)
        )
    if call.version < ZSTD_FROM_VERSION and any(_codec(buffers) == ZSTD for _, buffers in batches):
        raise KafkaError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs fetch version {ZSTD_FROM_VERSION} or newer")
    records = [buffer for _, buffers in batches for buffer in buffers]
    size = sum(map(len, records))
    end = result.bounds.stable if _committed(call) else result.bounds.end
    has_more = size > 0 and result.offset_next < end
    return FetchedPartition(
        *(requested.number, Code.NONE, result.bounds, requested.partition, records, size, len(batches), aborted),
        has_more=has_more,
    )


def _committed(call: Call) -> bool:
    return bool(call.body.isolation_level == READ_COMMITTED)


def _first(result: ReadResult) -> int:
    """Returns the offset of the first batch, which may be above the requested one: the table may have gaps."""
    return result.batches[0][0] if result.batches else result.offset_next


def _codec(pieces: list[BufferOrFile]) -> int:
    """Returns the codec number. The first piece is the batch's first 16 bytes; byte 6 of the second has the codec."""
    head = pieces[1]
    assert not isinstance(head, FileRegion), "headers are in memory"
    return head[6] & COMPRESSION_MASK


def _preferred(requested: FetchPartition, call: Call, context: RecordsContext) -> int:
    """Returns a broker in the client's rack, unless the client has no rack or this broker is in it."""
    rack = call.get("rack_id", "")
    if not rack or context.broker.zone == rack:
        return NO_REPLICA
    near = [broker for broker in context.metadata_cache.brokers if broker.zone == rack]
    return placement.chosen(str(requested.partition), near).node_id if near else NO_REPLICA
