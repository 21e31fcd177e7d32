"""Compares the responses of brokers with the oracle.

A request with a topic name may be answered from any topic that had the name while the request was pending; a request
with a topic id, only from that topic. Logs only grow, so a response must be at least as new as the log was when the
request was sent, and not newer than the log is now.
"""

from typing import Any, NamedTuple

from tests.simulation.kafka.host import KafkaHost
from tests.simulation.oracle import TrueLog
from tests.simulation.readers import Row, rows_in
from tests.simulation.world import World

from lakestream.errors import Corrupt
from lakestream.metadata.claims import BatchKind
from lakestream.model import PartitionId
from lakestream.testing.fault_injection import CALM

NONE, OUT_OF_RANGE, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, SESSION_NOT_FOUND = 0, 1, 3, 100, 70
OUT_OF_ORDER, TOPIC_EXISTS, TIMED_OUT = 45, 36, 7
GONE = (UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID)

FETCH_RETRIED = (6, 9, 56, 78)
"""Not leader, no replica, storage error, offset not available: errors that consumers retry themselves. The Java
consumer throws on other errors, also on a timeout."""

RETRIED = (*FETCH_RETRIED, TIMED_OUT)
"""Errors that producers, admin clients and ListOffsets retry."""

REFRESH_S_MAX = 60.0
"""After this time a running broker has read a new log start offset."""

PROMPT_S = 1.0
"""Without faults, a waiting fetch returns this soon after new records exist."""

EARLY_S, LAST_READ_S = 0.1, 15.0
"""The last read before an empty response may begin this long before the end of the wait: without and with faults."""


class Topic(NamedTuple):
    """A topic as a client names it."""

    name: str
    topic_id: str | None
    """None: the client uses only the name."""


class PartitionFetch(NamedTuple):
    """One partition of a fetch request."""

    topic: Topic
    number: int
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """A fetch request, and when it was sent."""

    host: KafkaHost
    began_s: float
    wait_s: float
    min_bytes: int
    max_bytes: int
    partitions: list[PartitionFetch]
    rack: str = ""


class FetchedBatch(NamedTuple):
    """A complete and verified batch of a response. A batch without records covers offsets that have none."""

    offset: int
    offset_next: int
    size: int
    rows: list[Row]


class ResponseChecker:
    def __init__(self, world: World) -> None:
        self.world = world
        self._oracle = world.oracle
        self._denied: dict[tuple[KafkaHost, str], float] = {}
        """Broker and topic id → time of the first response that topic_denied the existing topic."""
        scenario = world.scenario
        self._prompt = scenario.faults is CALM and not (scenario.cuts or scenario.depositions or scenario.disk_fails)

    @property
    def _now(self) -> float:
        return self.world.loop.now

    def _deposed(self, began_s: float) -> bool:
        """Returns whether a deposed leader of the metadata store may have answered unconfirmed reads."""
        return began_s < self.world.deposed_until

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def logs(self, topic: Topic, number: int) -> list[PartitionId]:
        """Returns the partitions that the request may refer to, the newest last."""
        topics = self._oracle.names.get(topic.name, {})
        return [
            PartitionId(topic_id, number)
            for topic_id, named in topics.items()
            if topic.topic_id in (None, topic_id) and number < named.partition_count
        ]

    def exists_since(self, topic: Topic, began_s: float) -> bool:
        """Returns whether the topic has existed all the time since `began_s`."""
        live = self._oracle.topics.get(topic.name)
        if live is None or live.created_s > began_s or topic.topic_id not in (None, live.topic.topic_id):
            return False
        return not any(self._oracle.log(partition).deleted for partition in live.topic.partitions())

    def topic_denied(self, topic: Topic, began_s: float, host: KafkaHost) -> None:
        """Checks a response that the topic does not exist. A broker that has cached a deleted topic of the same name
        may return it once."""
        self.world.tally["kafka topics denied"] += 1
        if not self.exists_since(topic, began_s):
            return
        key = (host, self._oracle.topics[topic.name].topic.topic_id)
        before_s = self._denied.get(key)
        again = before_s is not None and self.world.deposed_until <= before_s < began_s
        if before_s is None or before_s < self.world.deposed_until:  # a deposed leader may return the old topic again
            self._denied[key] = self._now
        recreated = topic.topic_id is None and len(self._oracle.names[topic.name]) > 1
        if again or not recreated:
            self._oracle.report("existing topics are found", f"{host.name} returned that {topic} does not exist")

    def metadata(self, name: str, response: Any, began_s: float, host: KafkaHost) -> str | None:
        """Checks a metadata response. Returns the topic id, from the oracle if the version has no topic ids."""
        nodes = {broker.node_id for broker in response.brokers}
        if not nodes:
            self._oracle.report("metadata lists a broker", f"{host.name} lists none")
        (topic,) = response.topics
        if topic.error_code in GONE:
            self.topic_denied(Topic(name, None), began_s, host)
            return None
        if topic.error_code != NONE:
            self._check_retriable("metadata", topic.error_code, RETRIED)
            return None
        topics = self._oracle.names.get(name, {})
        if hasattr(topic, "topic_id") and topic.topic_id.hex not in topics:
            self._oracle.report("metadata has the stored topic id", f"{host.name} returned {topic.topic_id} for {name}")
        counts = {named.partition_count for named in topics.values()}
        if len(topic.partitions) not in counts or any(part.leader_id not in nodes for part in topic.partitions):
            self._oracle.report(
                "metadata is consistent", f"{host.name} describes {name} as {topic}, the brokers are {nodes}"
            )
        if hasattr(topic, "topic_id"):
            return str(topic.topic_id.hex)
        live = self._oracle.topics.get(name)
        return None if live is None else live.topic.topic_id

    def _check_retriable(self, what: str, code: int, retriable: tuple[int, ...]) -> None:
        self.world.tally[f"kafka {what} error {int(code)}"] += 1
        if code not in retriable:
            self._oracle.report("clients can retry the error", f"{what} returned {code!r}")

    # ── produce ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def batch_acknowledged(
        self, topic: Topic, number: int, values: tuple[bytes, ...], offset: int
    ) -> PartitionId | None:
        """Checks that an acknowledged batch is stored."""
        logs = self.logs(topic, number)
        for partition in reversed(logs):
            records = self._oracle.log(partition).records
            stored = [records[at].value if at in records else None for at in range(offset, offset + len(values))]
            if stored == list(values):
                return partition
        self._oracle.report("acknowledged records are stored", f"{values} at {topic}-{number}:{offset}, not in {logs}")
        return None

    # ── fetch ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fetched(self, request: FetchRequest, parts: list[Any]) -> None:
        """Checks a fetch response. `parts`: its partitions in request order."""
        sizes = []
        for partition, part in zip(request.partitions, parts, strict=True):
            batches = self._check_part(request, partition, part)
            sizes.append([batch.size for batch in batches])
        self._check_sizes(request, sizes)
        if any(getattr(part, "preferred_read_replica", -1) != -1 for part in parts):
            self.world.tally["kafka fetches sent elsewhere"] += 1
        elif not any(sizes) and all(part.error_code == NONE for part in parts):
            self._check_empty(request)
        elif request.min_bytes <= 1:
            self._check_prompt(request)

    def _check_part(self, request: FetchRequest, partition_fetch: PartitionFetch, part: Any) -> list[FetchedBatch]:
        code = part.error_code
        self.world.tally["kafka fetches"] += 1
        if code in GONE:
            self.topic_denied(partition_fetch.topic, request.began_s, request.host)
            return []
        if code not in (NONE, OUT_OF_RANGE):
            self._check_retriable("fetch", code, FETCH_RETRIED)
            return []
        try:
            batches = batches_of(part.records)
        except Corrupt as error:
            self._oracle.report("damaged bytes are not returned", f"{partition_fetch}: {error}")
            return []
        violations = []
        for partition in reversed(self.logs(partition_fetch.topic, partition_fetch.number)):
            violation = self._violation(request, partition_fetch, part, batches, partition)
            if violation is None:
                return batches
            violations.append(
                (violation, f"{partition} of {request.host.name}, request {partition_fetch}: {violation[1]}")
            )
        (rule, _), details = violations[0]
        self._oracle.report(rule, details)
        return batches

    def _violation(
        self,
        request: FetchRequest,
        partition_fetch: PartitionFetch,
        part: Any,
        batches: list[FetchedBatch],
        partition: PartitionId,
    ) -> tuple[str, str] | None:
        """Returns the broken rule and details if the request refers to this partition, or None."""
        log = self._oracle.log(partition)
        offset, end_before = partition_fetch.offset, log.end_at(request.began_s)
        if part.error_code == OUT_OF_RANGE:
            is_right = offset < log.start or offset > end_before or log.deleted
            details = f"out of range, when the end was {end_before}"
            return None if is_right else ("valid requests are not rejected", details)
        if part.high_watermark > log.end:
            return "bounds match the log", f"the end is {log.end}, not {part.high_watermark}"
        if getattr(part, "log_start_offset", 0) > log.start and not self.is_start(partition, part.log_start_offset):
            return "bounds match the log", f"the start is {log.start}, not {part.log_start_offset}"
        return self._deleted_violation(request, partition_fetch, batches, log) or self._record_violation(
            offset, batches, partition
        )

    def is_readable(self, partition: PartitionId, offset: int) -> bool:
        """Returns whether the offset has a record for readers of uncommitted records.

        Markers have none, nor have records that were aborted before they were moved to the table."""
        record = self._oracle.log(partition).records.get(offset)
        if record is None or record.kind >= BatchKind.COMMIT:
            return False
        return offset >= self._oracle.tables.next_offset(partition) or self.world.is_committed(record)

    def _record_violation(
        self, offset: int, batches: list[FetchedBatch], partition: PartitionId
    ) -> tuple[str, str] | None:
        """Checks that no record is missing and that each record is the stored one."""
        at, log = offset, self._oracle.log(partition)
        for batch in batches:
            if batch.offset_next <= offset:
                return "reads skip no record", f"a batch at {batch.offset} ends before the requested offset"
            returned = {row.offset for row in batch.rows}
            missing = [candidate for candidate in range(at, batch.offset_next) if candidate not in returned]
            if skipped := [candidate for candidate in missing if self.is_readable(partition, candidate)]:
                return "reads skip no record", f"{skipped[0]} is skipped"
            for row in batch.rows:
                true = log.records.get(row.offset)
                if true is None or true.value != row.value:
                    return (
                        "reads return the stored records",
                        f"{row.offset} is {row.value!r}, not {true and true.value!r}",
                    )
            at = batch.offset_next
        return None

    def _deleted_violation(
        self, request: FetchRequest, partition_fetch: PartitionFetch, batches: list[FetchedBatch], log: TrueLog
    ) -> tuple[str, str] | None:
        """Checks that no records are returned that were deleted so long ago that the broker has read the new start."""
        refreshed_s = max(request.began_s - REFRESH_S_MAX, 0.0)
        if not batches or request.host.resumed_s > refreshed_s or self._deposed(refreshed_s):
            return None
        start = log.start_at(refreshed_s)
        return (
            None if partition_fetch.offset >= start else ("deleted records are not returned", f"the start is {start}")
        )

    def _check_sizes(self, request: FetchRequest, sizes: list[list[int]]) -> None:
        """Checks the size limits. A first batch that is larger than the limit is allowed."""
        first = True
        total = sum(map(sum, sizes))
        for partition_fetch, batch_sizes in zip(request.partitions, sizes, strict=True):
            if sum(batch_sizes) > partition_fetch.bytes_max and len(batch_sizes) > 1:
                self._oracle.report("fetches respect their limits", f"{batch_sizes} bytes of {partition_fetch}")
            if batch_sizes and not first and total > request.max_bytes:
                self._oracle.report("fetches respect their limits", f"{sizes} bytes, the limit is {request.max_bytes}")
            first = first and not batch_sizes

    def _check_empty(self, request: FetchRequest) -> None:
        """Checks an empty response: no record existed when the request was sent, nor shortly before its wait ended."""
        if self._deposed(request.began_s) or request.host.resumed_s > request.began_s:
            return
        waited_s = request.wait_s - (EARLY_S if self._prompt else LAST_READ_S) if request.min_bytes else 0.0
        for partition_fetch in request.partitions:
            if not self.exists_since(partition_fetch.topic, request.began_s):
                continue
            partition = self.logs(partition_fetch.topic, partition_fetch.number)[-1]
            end = self._oracle.log(partition).end_at(request.began_s + max(waited_s, 0.0))
            if any(self.is_readable(partition, at) for at in range(partition_fetch.offset, end)):
                self._oracle.report(
                    "reads are current",
                    f"{request.host.name} returned nothing for {partition_fetch}, the end was {end}",
                )

    def _check_prompt(self, request: FetchRequest) -> None:
        """Checks, in runs without faults, that a waiting fetch returns when new records exist."""
        if not self._prompt:
            return
        for partition_fetch in request.partitions:
            for partition in self.logs(partition_fetch.topic, partition_fetch.number)[-1:]:
                ends = self._oracle.log(partition).ends
                grown_s = next((at_s for at_s, end in ends if end > partition_fetch.offset), None)
                if grown_s is not None and self._now - max(grown_s, request.began_s) > PROMPT_S:
                    late_s = self._now - max(grown_s, request.began_s)
                    self._oracle.report(
                        "a waiting fetch returns with new records",
                        f"{request.host.name}: {partition_fetch} took {late_s:.1f} s",
                    )

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def offset_listed(
        self, host: KafkaHost, began_s: float, topic: Topic, number: int, timestamp: int, part: Any
    ) -> None:
        if part.error_code in GONE:
            self.topic_denied(topic, began_s, host)
            return
        if part.error_code != NONE:
            self._check_retriable("list offsets", part.error_code, RETRIED)
            return
        self.world.tally["kafka offsets listed"] += 1
        logs = self.logs(topic, number)
        errors = [self._offset_error(partition, began_s, timestamp, part.offset) for partition in logs]
        if all(error is not None for error in errors):
            self._oracle.report("reads are current", f"{host.name} {topic}-{number} at {timestamp}: {errors[-1]}")

    def is_start(self, partition: PartitionId, offset: int) -> bool:
        """Returns whether no record before the offset is readable: the log may begin with aborted records."""
        start = self._oracle.log(partition).start
        return not any(self.is_readable(partition, at) for at in range(start, offset))

    def _offset_error(self, partition: PartitionId, began_s: float, timestamp: int, offset: int) -> str | None:
        log = self._oracle.log(partition)
        stale = self._deposed(began_s)
        start, end = (0, 0) if stale else (log.start_at(began_s), log.end_at(began_s))
        if timestamp == -1:
            return None if end <= offset <= log.end else f"end {offset}, it was {end} and is {log.end}"
        if timestamp == -2:
            is_right = start <= offset <= log.start or self.is_start(partition, offset)
            return None if is_right else f"start {offset}, it was {start} and is {log.start}"
        stop = end if offset == -1 else offset
        for at in range(log.start, stop):
            if at in log.records and log.records[at].timestamp >= timestamp:
                return f"offset {offset}, but {at} has timestamp {log.records[at].timestamp}"
        if offset == -1:
            return None
        record = log.records.get(offset)
        return None if record and record.timestamp >= timestamp and offset >= start else f"offset {offset} is {record}"

    # ── delete records ───────────────────────────────────────────────────────────────────────────────────────────────

    def records_deleted(
        self, host: KafkaHost, began_s: float, topic: Topic, number: int, offset: int, part: Any
    ) -> None:
        if part.error_code in GONE:
            self.topic_denied(topic, began_s, host)
            return
        logs = [self._oracle.log(partition) for partition in self.logs(topic, number)]
        if part.error_code == OUT_OF_RANGE:
            if all(offset <= log.end_at(began_s) and not log.deleted for log in logs):
                self._oracle.report(
                    "valid requests are not rejected", f"deletion of records of {topic}-{number} before {offset}"
                )
            return
        if part.error_code != NONE:
            self._check_retriable("delete records", part.error_code, RETRIED)
            return
        self.world.tally["kafka records deleted"] += 1
        stale = self._deposed(began_s)
        for log in logs:
            requested = (0 if stale else log.end_at(began_s)) if offset == -1 else offset
            if log.deleted or (requested <= part.low_watermark <= log.start):
                return
        self._oracle.report(
            "deleted records stay deleted",
            f"{host.name}: {topic}-{number} before {offset} returned {part.low_watermark}",
        )


def batches_of(records: bytes | None) -> list[FetchedBatch]:
    batches, at = [], 0
    data = bytes(records or b"")
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        batches.append(_decode_batch(data[at : at + size]))
        at += size
    return batches


def _decode_batch(data: bytes) -> FetchedBatch:
    offset, last = int.from_bytes(data[:8], "big"), int.from_bytes(data[23:27], "big")
    return FetchedBatch(offset, offset + last + 1, len(data), rows_in(data))
