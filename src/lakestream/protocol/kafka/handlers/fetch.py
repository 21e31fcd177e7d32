"""Fetch (key 1), v4-18.

Reads record batches from any partition, on any broker. Waits until `min_bytes` are there or `max_wait` is over; appends
on other brokers end the wait too.

Sessions are not kept: every answer has session id 0, which tells clients to send full requests. A session id that we
never gave is refused (70). An offset inside a batch returns the whole batch, and the first batch is returned whole even
above the limits. Record bytes are never copied: the answer is a list of buffers.
v5 log start · v7 sessions · v9 leader epoch · v11 rack · v12 flexible · v13 topic ids · v15 replica state
"""

import asyncio
from typing import Any, Final, NamedTuple
from uuid import UUID

from lakestream.batch import CODECS, COMPRESSION_MASK
from lakestream.coordination import placement
from lakestream.data.log.log import Bounds, Slice
from lakestream.errors import LakestreamError, Missing, OutOfRange
from lakestream.filed import FileSpan, Piece
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_in_fetch
from lakestream.protocol.kafka.fetch_answer import NO_REPLICA, Found, FoundTopic, written
from lakestream.protocol.kafka.services import Services

READ_COMMITTED: Final = 1
NO_BOUNDS: Final = Bounds(-1, -1, -1)
ZSTD_FROM_VERSION: Final = 10
READS_MAX: Final = 64
"""Partitions of one request that are read together."""
ZSTD: Final = CODECS.index("zstd")
PATIENT: Final = (Code.NONE, Code.CORRUPT_MESSAGE, Code.NOT_LEADER_OR_FOLLOWER)
"""Of damaged records, and of a store that is away, a client is told when its own time to wait is over: some would ask
again at once, thousands of times a second. It may be back by then."""


class Wanted(NamedTuple):
    """One partition of a request."""

    partition: PartitionId
    number: int
    offset: int
    bytes_max: int


class Topic(NamedTuple):
    name: str
    topic_id: UUID
    parts: list[Wanted | Found]


@handles(1, versions=range(4, 19))
async def fetch(call: Call, services: Services) -> list[Piece]:
    if call.get("session_id", 0) != 0:
        return written(call.request, [], Code.FETCH_SESSION_ID_NOT_FOUND)
    topics = [await _resolved(topic, services) for topic in call.body.topics]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + call.body.max_wait.total_seconds()
    looked = False
    certain = call.body.min_bytes <= 0  # who does not wait is told what there is now, not what there was a moment ago
    while True:
        found = await _read(topics, call, services, certain)
        parts = [part for topic in found for part in topic.parts]
        left_ms = max(0, int((deadline - loop.time()) * 1000))
        enough = sum(part.size for part in parts) >= call.body.min_bytes
        if enough or (looked and not left_ms) or any(map(_is_answer, parts)):
            return written(call.request, found, Code.NONE)
        try:
            await services.log.wait_any(
                [(part.partition, part.bounds.end) for part in parts if part.partition and not part.error], left_ms
            )
        except LakestreamError:
            certain = True  # the next read says what is wrong, and where
        looked = True


def _is_answer(part: Found) -> bool:
    """Nothing to wait for."""
    return part.error not in PATIENT or part.preferred != NO_REPLICA or part.has_more


async def _resolved(topic: Any, services: Services) -> Topic:
    """Names and ids to logs; what cannot be found is an answer already."""
    # An id of zeros is read as none, and is as unknown as any other.
    name, topic_id = getattr(topic, "topic", None), getattr(topic, "topic_id", None) or UUID(int=0)
    try:
        if name is None:
            name = await _name_of(topic_id, services)
        await services.view.topic(name)
    except LakestreamError as error:
        return Topic(
            name or "", topic_id, [Found(part.partition, code_in_fetch(error), NO_BOUNDS) for part in topic.partitions]
        )
    parts: list[Wanted | Found] = []
    for part in topic.partitions:
        try:
            log_id = await services.view.partition(name, part.partition)
            if topic_id.int and log_id.topic_id != topic_id.hex:
                raise KafkaError(Code.UNKNOWN_TOPIC_ID, f"topic {name} is another one by now")
            parts.append(Wanted(log_id, part.partition, part.fetch_offset, part.partition_max_bytes))
        except LakestreamError as error:
            parts.append(Found(part.partition, code_in_fetch(error), NO_BOUNDS))
    return Topic(name, topic_id, parts)


async def _name_of(topic_id: UUID, services: Services) -> str:
    try:
        return await services.view.name_of_id(topic_id.hex)
    except Missing as error:
        raise KafkaError(Code.UNKNOWN_TOPIC_ID, str(error)) from error


async def _read(topics: list[Topic], call: Call, services: Services, certain: bool) -> list[FoundTopic]:
    """Read the partitions, then keep as much as the request takes in all."""
    room = call.body.max_bytes
    wanted = [part for topic in topics for part in topic.parts if isinstance(part, Wanted)]
    results = iter(await _read_some(wanted, call, services, certain))
    found = []
    size = 0
    for topic in topics:
        parts = []
        for part in topic.parts:
            one = next(results) if isinstance(part, Wanted) else part
            if size and size + one.size > room:
                one = one._replace(records=(), size=0)  # there is more; the client asks again
            size += one.size
            parts.append(one)
        found.append(FoundTopic(topic.name, topic.topic_id, parts))
    return found


async def _read_some(wanted: list[Wanted], call: Call, services: Services, certain: bool) -> list[Found]:
    """Many at a time, and no more once there is enough: of very many we would load far more than is taken."""
    room = call.body.max_bytes
    found: list[Found] = []
    for start in range(0, len(wanted), READS_MAX):
        some = wanted[start : start + READS_MAX]
        if room <= 0:
            found += await asyncio.gather(*(_passed_over(one, services) for one in some))
            continue
        known = [None if certain else _glanced(one, room, call, services) for one in some]
        unknown = [_read_one(one, room, call, services) for one, it in zip(some, known, strict=True) if it is None]
        read = iter([await unknown[0]] if len(unknown) == 1 else await asyncio.gather(*unknown))
        found += [it or next(read) for it in known]
        room -= sum(one.size for one in found[start:])
    return found


def _glanced(wanted: Wanted, room: int, call: Call, services: Services) -> Found | None:
    """From memory, without a task and without a look at the store: what most fetches of a consumer at the tail find."""
    if call.get("rack_id", ""):
        return None
    try:
        found = services.log.glance(
            wanted.partition, wanted.offset, min(room, wanted.bytes_max), committed=_committed(call)
        )
        return None if found is None else _answered(wanted, found, call, services)
    except LakestreamError:
        return None  # the long way says what is wrong


async def _passed_over(wanted: Wanted, services: Services) -> Found:
    """Where its log ends, and no records: the client asks again."""
    try:
        return Found(wanted.number, Code.NONE, await services.log.bounds(wanted.partition), wanted.partition)
    except LakestreamError as error:
        return await _refused(wanted, error, services)


async def _read_one(wanted: Wanted, room: int, call: Call, services: Services) -> Found:
    preferred = _preferred(wanted, call, services)
    try:
        if preferred != NO_REPLICA:  # and no records with it: the client goes there for them, and drops these
            bounds = await services.log.bounds(wanted.partition)
            return Found(wanted.number, Code.NONE, bounds, wanted.partition, preferred=preferred)
        found = await services.log.read(
            wanted.partition, wanted.offset, min(room, wanted.bytes_max), committed=_committed(call)
        )
        return _answered(wanted, found, call, services)
    except LakestreamError as error:
        return await _refused(wanted, error, services)


async def _refused(wanted: Wanted, error: LakestreamError, services: Services) -> Found:
    """A reader outside the log is told where its ends are, unless the log is gone by now."""
    bounds = NO_BOUNDS
    services.unreadable.note(wanted.partition, wanted.offset, error)
    if isinstance(error, OutOfRange):
        try:
            bounds = await services.log.bounds(wanted.partition)
        except LakestreamError as newer:
            error = newer
    return Found(wanted.number, code_in_fetch(error), bounds, wanted.partition)


def _answered(wanted: Wanted, found: Slice, call: Call, services: Services) -> Found:
    batches, aborted = found.batches, None
    if _committed(call):
        batches = [batch for batch in batches if batch[0] < found.bounds.stable]
        aborted = [] if found.is_decided else services.log.aborted(wanted.partition, _first(found), found.offset_next)
    if call.version < ZSTD_FROM_VERSION and any(_codec(buffers) == ZSTD for _, buffers in batches):
        raise KafkaError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs fetch version {ZSTD_FROM_VERSION} or newer")
    records = [buffer for _, buffers in batches for buffer in buffers]
    size = sum(map(len, records))
    end = found.bounds.stable if _committed(call) else found.bounds.end
    has_more = size > 0 and found.offset_next < end
    return Found(wanted.number, Code.NONE, found.bounds, wanted.partition, records, size, aborted, has_more=has_more)


def _committed(call: Call) -> bool:
    return bool(call.body.isolation_level == READ_COMMITTED)


def _first(found: Slice) -> int:
    """What lies before the first batch is not in the answer: the table did not have it."""
    return found.batches[0][0] if found.batches else found.offset_next


def _codec(pieces: list[Piece]) -> int:
    """The first piece is the batch's prefix of 16 bytes; its attributes stand 6 bytes into the second."""
    head = pieces[1]
    assert not isinstance(head, FileSpan), "headers are in memory"
    return head[6] & COMPRESSION_MASK


def _preferred(wanted: Wanted, call: Call, services: Services) -> int:
    """A client that names its rack is sent to a broker there, if it is not with one already."""
    rack = call.get("rack_id", "")
    if not rack or services.me.zone == rack:
        return NO_REPLICA
    near = [broker for broker in services.view.brokers if broker.zone == rack]
    return placement.chosen(str(wanted.partition), near).node_id if near else NO_REPLICA
