"""The oracle: observes every change of the stores at the instant it takes effect, and builds the true log from it.

It runs inside the stores, where order is decided. A claim is valid if the floor was not above it when it was created;
then it must begin exactly where the log ended. From the valid claims, and from the bytes that they named at that
instant, the oracle builds what every reader must receive. A change that breaks a rule is a `Violation`.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests.simulation.oracle_delta import LOG, TrueDelta
from tests.simulation.oracle_layouts import TrueLayouts
from tests.simulation.oracle_types import TrueTypes
from tests.simulation.tables import TrueTables

from lakestream.catalog.locations import TABLES_FOLDER
from lakestream.clock import Clock
from lakestream.data.log.partition_state import PartitionState
from lakestream.errors import Conflict, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import END_OF_TIME, NO_PRODUCER, BatchInfo, BatchKind, Claim, Medium
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Put, Stored
from lakestream.metadata.topics import Topic
from lakestream.metadata.transactions import Transaction
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import Body
from lakestream.testing.batches import records_of
from lakestream.testing.memory_segments import MemoryDisk
from lakestream.testing.simulation import SimLoop

if TYPE_CHECKING:
    from tests.simulation.value_generators import ValueGenerator

STALE_AFTER_MS = 3 * 60 * 60 * 1000
"""A copy on purpose: the oracle must not share the rules that it checks."""

PRODUCER_EXPIRES_S = 20 * 60 * 60
"""A producer may expire after this time. Shorter than the limit in the code, because clocks of machines differ."""

TOPIC_MARK = b"@"
ID_DIGITS = 8
_TOPIC_MARK = re.compile(TOPIC_MARK + rb"([0-9a-f]{%d})" % ID_DIGITS)

_decode_topic = msgspec.json.Decoder(Topic).decode
_decode_transaction = msgspec.json.Decoder(Transaction).decode
_decode_claim = msgspec.msgpack.Decoder(Claim).decode


class Violation(AssertionError):
    """A broken rule. `rule` is its short name."""

    def __init__(self, rule: str, details: str) -> None:
        super().__init__(rule, details)
        self.rule = rule

    def __str__(self) -> str:
        return ": ".join(self.args)


class TrueRecord(NamedTuple):
    value: bytes | None
    kind: BatchKind
    producer_id: int
    transaction: int
    timestamp: int = -1
    key: bytes | None = None


class LiveTopic(NamedTuple):
    """A topic that exists, and when it was created."""

    topic: Topic
    created_s: float


@dataclass(slots=True)
class _Producer:
    epoch: int
    sequence_last: int


@dataclass(slots=True)
class TrueLog:
    """The true state of one partition."""

    end: int = 0
    floor: int = 0
    start: int = 0
    """Log start offset: records below it are no longer returned."""
    starts: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """Times at which the start moved, and the new starts."""
    ends: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """Times at which the end moved, and the new ends."""
    table_end: int = 0
    state_end: int = 0
    """Offset end of the newest stored partition state."""
    deleted: bool = False
    recreated: bool = False
    """Its topic replaced another one of the same name: a producer without topic ids may continue in mid-sequence."""
    boundaries: set[int] = field(default_factory=lambda: {0})
    """Offsets at which claims begin and end."""
    records: dict[int, TrueRecord] = field(default_factory=dict)
    producers: dict[int, _Producer] = field(default_factory=dict)
    producer_batches: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Producer → offset end, epoch and last sequence of each of its batches."""
    stored_s: dict[int, float] = field(default_factory=dict)
    """Producer → time at which its last batch was stored."""
    ended: dict[int, int] = field(default_factory=dict)
    """Producer → the newest transaction that has a marker."""
    marks: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Producer and transaction → whether its first marker is a commit."""
    needed: dict[str, int] = field(default_factory=dict)
    """Object or segment → the highest offset end of a valid claim on it."""
    claims: dict[int, Claim] = field(default_factory=dict)
    """Valid claims by offset start."""

    def end_at(self, now: float) -> int:
        return self.ends[bisect_right(self.ends, (now, END_OF_TIME)) - 1][1]

    def start_at(self, now: float) -> int:
        return self.starts[bisect_right(self.starts, (now, END_OF_TIME)) - 1][1]


class Oracle:
    def __init__(self, loop: SimLoop, tally: Counter[str]) -> None:
        self.violations: list[Violation] = []
        self.logs: dict[PartitionId, TrueLog] = {}
        self.topics: dict[str, LiveTopic] = {}
        """Topics that exist now, by name."""
        self.names: dict[str, dict[str, Topic]] = {}
        """Name → all topics that ever had it, by id, the newest last."""
        self.tally = tally
        self.objects: MemoryObjectStore | None = None
        self.disk: MemoryDisk | None = None
        self.flipped: dict[str, tuple[int, int]] = {}
        """Present damage: object or segment → position of the wrong byte, and its wrong bit."""
        self.generators: dict[str, ValueGenerator] = {}
        """Value generators of typed topics, by topic id."""
        self.types = TrueTypes(self)
        self.delta = TrueDelta(self)
        self.layouts = TrueLayouts(self)
        self.tables = TrueTables(self)
        self._loop = loop
        self._stored: dict[tuple[str, bytes], tuple[PartitionId, int]] = {}
        """Topic id and record → partition and offset. A producer without topic ids may write a record to a topic and
        again to its successor of the same name, as with any broker."""
        self._rejected: set[bytes] = set()
        self.coordinated: set[int] = set()
        """Producers with a transaction that a coordinator has ended."""

    @property
    def now_s(self) -> float:
        return self._loop.now

    def report(self, rule: str, details: str) -> None:
        """Records a violation. The run continues."""
        self._loop.trace.note(self._loop.now, "VIOLATION", rule, details)
        self.violations.append(Violation(rule, f"{details} (at {self._loop.now:.3f} s)"))

    def log(self, partition: PartitionId) -> TrueLog:
        return self.logs.setdefault(partition, TrueLog())

    # ── metadata ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, path: str, value: bytes, created_ms: int, is_new: bool) -> None:
        parts = path.split("/")
        if parts[1] == "topics":
            self._topic_put(parts[2], _decode_topic(value))
        if parts[1] == "transactions":
            self._transaction_put(parts[2], _decode_transaction(value))
        if parts[1:3] == ["catalog", "tables"]:
            self.tables.pointer_put(parts[3], value)
        if parts[1] == "typed":
            self.types.writer_put(parts[2], parts[3], value, is_new)
        if parts[1] not in ("log", "fold", "table_end"):
            return
        partition = PartitionId(parts[2], int(parts[3]))
        log = self.log(partition)
        if parts[1] == "fold":
            self._state_saved(partition, log, value)
        elif parts[1] == "table_end":
            self._table_end_moved(partition, log, int(value))
        elif parts[4] == keys.FLOOR_NAME:
            self._floor_moved(partition, log, int(value))
        elif parts[4] == keys.START_NAME:
            self._start_moved(partition, log, int(value))
        else:
            claim = _decode_claim(value)
            if not is_new:
                self.report("claims are not overwritten", f"claim {path} was overwritten by {claim.writer}")
            self._claim_created(partition, log, claim, created_ms)

    def _topic_put(self, name: str, topic: Topic) -> None:
        incarnations = self.names.setdefault(name, {})
        for partition in topic.partitions():
            self.log(partition).recreated = len(incarnations) > (topic.topic_id in incarnations)
        incarnations[topic.topic_id] = topic
        before = self.topics.get(name)
        created_s = before.created_s if before and before.topic.topic_id == topic.topic_id else self._loop.now
        self.topics[name] = LiveTopic(topic, created_s)

    def _start_moved(self, partition: PartitionId, log: TrueLog, start: int) -> None:
        if log.deleted:
            return  # written by a broker that has not noticed the deletion: the record is never read
        if start < log.start:
            self.report("start moves forward", f"start of {partition} went from {log.start} to {start}")
        if start > log.end:
            self.report("start is within the log", f"start of {partition} was moved to {start}, its end is {log.end}")
        self.tally["starts moved"] += start > log.start
        log.start = max(log.start, start)
        log.starts.append((self._loop.now, log.start))

    def _state_saved(self, partition: PartitionId, log: TrueLog, body: bytes) -> None:
        if log.deleted:
            return  # the record is never read
        state = PartitionState.decode(body, str(partition))
        if state.offset_end < log.state_end:
            self.report(
                "partition state moves forward",
                f"state of {partition} went from {log.state_end} to {state.offset_end}",
            )
        if state.offset_end > log.end or state.offset_end not in log.boundaries:
            self.report(
                "partition state matches the log",
                f"state of {partition} ends at {state.offset_end}, the log at {log.end}",
            )
        for producer_id, batches in log.producer_batches.items():
            self._check_producer_state(partition, log, state, producer_id, batches)
        log.state_end = max(log.state_end, state.offset_end)
        self.tally["partition states saved"] += 1

    def _check_producer_state(
        self,
        partition: PartitionId,
        log: TrueLog,
        state: PartitionState,
        producer_id: int,
        batches: list[tuple[int, int, int]],
    ) -> None:
        """Checks that the stored state of a producer matches the log, or that the producer has expired.

        Producers with transactions are skipped: markers change their state, too."""
        before = [batch for batch in batches if batch[0] <= state.offset_end]
        stored = state.producers.get(producer_id)
        if not before or producer_id in log.ended:
            return
        is_expired = stored is None and self._loop.now - log.stored_s[producer_id] > PRODUCER_EXPIRES_S
        if not is_expired and (stored is None or (stored.epoch, stored.sequence_last) != before[-1][1:]):
            self.report(
                "partition state matches the log",
                f"state of {partition}: {stored} of producer {producer_id}, not {before[-1]}",
            )

    def _table_end_moved(self, partition: PartitionId, log: TrueLog, offset: int) -> None:
        if offset < log.table_end:
            self.report("table end moves forward", f"table end of {partition} went from {log.table_end} to {offset}")
        log.table_end = offset
        if not log.deleted:
            self.tables.end_moved(partition, offset)

    def _floor_moved(self, partition: PartitionId, log: TrueLog, floor: int) -> None:
        if floor < log.floor:
            self.report("floor moves forward", f"floor of {partition} went from {log.floor} to {floor}")
        log.floor = floor
        if floor == END_OF_TIME:
            log.deleted = True
            return
        bound = min(log.table_end, log.state_end)
        if floor > bound:
            self.report(
                "only records in table and partition state are trimmed",
                f"floor of {partition} was raised to {floor}; table end {log.table_end}, state {log.state_end}",
            )
        if floor not in log.boundaries:
            self.report("trims end at a claim boundary", f"floor of {partition} was raised to {floor}, inside a claim")
        self.tally["trims"] += floor > 0

    def _claim_created(self, partition: PartitionId, log: TrueLog, claim: Claim, created_ms: int) -> None:
        if log.deleted or claim.offset_start < log.floor:
            self.tally["void claims"] += 1
            return
        where = f"claim of {partition} at {claim.offset_start} by {claim.writer} ({claim.claim_id})"
        if claim.offset_start != log.end:
            self.report(
                "claims are contiguous", f"{where} was created, but the log ends at {log.end}, its floor is {log.floor}"
            )
            return
        count = sum(batch.record_count for batch in claim.batches)
        if not claim.batches or claim.offset_end != claim.offset_start + count:
            self.report("a claim matches its batches", f"{where} ends at {claim.offset_end} and has {count} records")
        log.end = claim.offset_end
        log.ends.append((self._loop.now, log.end))
        log.boundaries.add(claim.offset_end)
        if created_ms - claim.stored_ms > STALE_AFTER_MS:
            self.tally["stale claims"] += 1
            return
        self.tally["claims"] += 1
        log.claims[claim.offset_start] = claim
        log.needed[claim.name] = max(log.needed.get(claim.name, 0), claim.offset_end)
        self._batches_claimed(partition, log, claim, where)

    def _batches_claimed(self, partition: PartitionId, log: TrueLog, claim: Claim, where: str) -> None:
        body = self._bytes_of(claim)
        if body is None:
            self.report("claims point at existing objects", f"{where}: {claim.name} does not exist")
            return
        offset = claim.offset_start
        for batch in claim.batches:
            data = body[batch.byte_start : batch.byte_end]
            if batch.kind >= BatchKind.COMMIT:
                log.records[offset] = TrueRecord(None, batch.kind, batch.producer_id, batch.transaction)
                self._marker_claimed(log, batch, where)
            else:
                stored = RecordBatch(data)
                for number, (_, key, value) in enumerate(records_of(stored)):
                    assert value is not None, "every record of the simulation has a value"
                    log.records[offset + number] = TrueRecord(
                        value, batch.kind, batch.producer_id, batch.transaction, stored.base_timestamp, key
                    )
                    self._check_stored_once(partition, offset + number, value)
                self._sequence_claimed(log, batch, offset + batch.record_count, where)
            offset += batch.record_count

    def not_stored(self, values: Sequence[bytes]) -> None:
        """Notes that a producer received a rejection of records that it sent once."""
        for value in values:
            self._rejected.add(value)
            for topic_id, stored in self._stored:
                if stored == value:
                    self.report("rejected records are not stored", f"{value!r} is at {self._stored[topic_id, value]}")

    def _check_stored_once(self, partition: PartitionId, offset: int, value: bytes) -> None:
        if value in self._rejected:
            self.report("rejected records are not stored", f"{value!r} appears at {partition}:{offset}")
        topic_id = intended_topic(value)
        if topic_id is not None and not partition.topic_id.startswith(topic_id):
            self.report(
                "records are stored in the topic of their id",
                f"{value!r} was sent to {topic_id}, and is at {partition}",
            )
        before = self._stored.setdefault((partition.topic_id, value), (partition, offset))
        if before != (partition, offset):
            self.report(
                "records are stored once",
                f"record {value!r} is at {before[0]}:{before[1]} and at {partition}:{offset}",
            )

    def _sequence_claimed(self, log: TrueLog, batch: BatchInfo, offset_end: int, where: str) -> None:
        if batch.producer_id == NO_PRODUCER:
            return
        before = log.producers.get(batch.producer_id)
        subject = f"{where}: producer {batch.producer_id} epoch {batch.epoch} sequence {batch.sequence_first}"
        if before is not None and batch.epoch < before.epoch:
            self.report("epochs move forward", f"{subject} after epoch {before.epoch}")
        expected = before.sequence_last + 1 if before is not None and before.epoch == batch.epoch else 0
        if batch.sequence_first != expected and not (before is None and log.recreated):
            self.report("sequences are contiguous", f"{subject}; {expected} is next")
        if batch.kind is BatchKind.TRANSACTIONAL and batch.transaction <= log.ended.get(batch.producer_id, -1):
            self.report(
                "a batch joins only an open transaction", f"{subject} transaction {batch.transaction} has ended"
            )
        log.producers[batch.producer_id] = _Producer(batch.epoch, batch.sequence_last)
        log.stored_s[batch.producer_id] = self._loop.now
        log.producer_batches.setdefault(batch.producer_id, []).append((offset_end, batch.epoch, batch.sequence_last))

    def _transaction_put(self, name: str, record: Transaction) -> None:
        """Checks that the stored decision of a transaction never changes."""
        if not record.is_ending:
            return
        outcomes = self.tables.outcomes.setdefault(record.marking.producer_id, {})
        if outcomes.setdefault(record.number, record.commits) != record.commits:
            self.report("a decision is final", f"transaction {record.number} of {name} became {record.state.name}")
        self.coordinated.add(record.marking.producer_id)

    def _marker_claimed(self, log: TrueLog, batch: BatchInfo, where: str) -> None:
        if batch.transaction > log.ended.get(batch.producer_id, -1):
            commits = batch.kind is BatchKind.COMMIT
            log.marks[batch.producer_id, batch.transaction] = commits
            decided = self.tables.outcomes.get(batch.producer_id, {}).get(batch.transaction)
            if batch.producer_id in self.coordinated and decided is not commits:
                self.report(
                    "a marker matches its decision",
                    f"{where}: {batch.kind.name} of transaction {batch.transaction} of producer {batch.producer_id}",
                )
        log.ended[batch.producer_id] = max(log.ended.get(batch.producer_id, -1), batch.transaction)
        before = log.producers.get(batch.producer_id)
        if before is not None and batch.epoch > before.epoch:
            log.producers[batch.producer_id] = _Producer(batch.epoch, -1)

    def _bytes_of(self, claim: Claim) -> bytes | None:
        """Returns the bytes that the writer stored, without damage."""
        if claim.medium is Medium.OBJECT:
            assert self.objects is not None
            stored = self.objects._objects.get(claim.name)
            body = stored[0] if stored else None
        else:
            assert self.disk is not None
            file = self.disk.files.get(claim.name)
            body = bytes(file.data) if file else None
        if body is None or claim.name not in self.flipped:
            return body
        position, bit = self.flipped[claim.name]
        return body[:position] + bytes([body[position] ^ bit]) + body[position + 1 :]

    def record_deleted(self, path: str) -> None:
        parts = path.split("/")
        if parts[1] == "topics":
            del self.topics[parts[2]]
        if parts[1] == "typed":
            self.types.writer_deleted(parts[2], parts[3])
        if len(parts) != 5 or parts[1] != "log":
            return
        partition = PartitionId(parts[2], int(parts[3]))
        log = self.log(partition)
        if parts[4] in (keys.FLOOR_NAME, keys.START_NAME) or log.deleted:
            return
        claim = log.claims.get(int(parts[4]))
        if claim is not None and claim.offset_end > log.floor:
            self.report("claims above the floor are not deleted", f"{path} was deleted; the floor is {log.floor}")

    # ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def object_deleted(self, name: str) -> None:
        """Checks the deletion of an object or segment."""
        if name.startswith(TABLES_FOLDER):
            self.tables.file_deleted(name)
            self.delta.file_deleted(name)
            return
        for partition, log in self.logs.items():
            if not log.deleted and log.needed.get(name, 0) > log.table_end:
                self.report(
                    "no referenced object is deleted",
                    f"{name} was deleted; it has {partition} up to {log.needed[name]}, the table {log.table_end}",
                )
        self.tally["objects deleted"] += 1


def intended_topic(value: bytes) -> str | None:
    """Returns the first digits of the topic id that the producer sent it to, or None if it used only the name."""
    match = _TOPIC_MARK.search(value)  # typed values may have any bytes
    return match and match.group(1).decode()


class ObservedServer(MemoryServer):
    def __init__(self, clock: Clock, oracle: Oracle) -> None:
        super().__init__(clock)
        self._oracle = oracle

    def put(self, put: Put) -> Stored | Conflict | Missing:
        is_new = self.get(put.key.path) is None
        result = super().put(put)
        if isinstance(result, Stored):
            self._oracle.put(put.key.path, put.value, result.created_ms, is_new)
        return result

    def delete(self, path: str) -> None:
        self._oracle.record_deleted(path)
        super().delete(path)


class ObservedObjects(MemoryObjectStore):
    def __init__(self, clock: Clock, oracle: Oracle) -> None:
        super().__init__(clock)
        self._oracle = oracle
        oracle.objects = self

    async def put(self, key: str, body: Body) -> None:
        is_new = key not in self._objects
        await super().put(key, body)
        if LOG in key:
            self._oracle.delta.file_stored(key, self._objects[key][0], is_new)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self._objects:
                self._oracle.object_deleted(key)
        await super().delete(keys)


class ObservedDisk(MemoryDisk):
    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.files = _ObservedFiles(oracle)
        oracle.disk = self


class _ObservedFiles(dict[str, Any]):
    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self._oracle = oracle

    def pop(self, name: str, default: Any = None) -> Any:
        if name in self:
            self._oracle.object_deleted(name)
        return super().pop(name, default)
