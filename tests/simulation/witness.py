"""The witness: sees every change of the stores at the instant it takes effect, and knows the one true log.

What no broker can know it knows, because it stands where order is decided. A claim counts if, when it was created, the
floor was not above it; then it must begin exactly where the log ended. From such claims, and from the bytes that they
named at that instant, the witness builds what every reader must see. What contradicts the rules is a `Violation`.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests.simulation.tables import TrueTables
from tests.simulation.true_delta import LOG, TrueDelta
from tests.simulation.true_layouts import TrueLayouts
from tests.simulation.true_types import TrueTypes

from lakestream.batch import RecordBatch
from lakestream.catalog.locations import TABLES_FOLDER
from lakestream.clock import Clock
from lakestream.data.log.fold import Fold
from lakestream.errors import Conflict, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import END_OF_TIME, NO_PRODUCER, BatchInfo, Claim, Kind, Medium
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Put, Stored
from lakestream.metadata.topics import Topic
from lakestream.metadata.transactions import Transaction
from lakestream.model import PartitionId
from lakestream.storage.memory import MemoryStore
from lakestream.storage.object_store import Body
from lakestream.testing.batches import records_of
from lakestream.testing.memory_segments import MemoryDisk
from lakestream.testing.simulation import SimLoop

if TYPE_CHECKING:
    from tests.simulation.dialects import Dialect

STALE_AFTER_MS = 3 * 60 * 60 * 1000
"""Spelled again on purpose: the witness must not share the rules that it watches."""

FORGOTTEN_S = 20 * 60 * 60
"""After that a producer may be forgotten: a little before it must be, for machines whose clocks are wrong."""

MEANT_FOR = b"@"
ID_DIGITS = 8
_MEANT_FOR = re.compile(MEANT_FOR + rb"([0-9a-f]{%d})" % ID_DIGITS)

_decode_topic = msgspec.json.Decoder(Topic).decode
_decode_transaction = msgspec.json.Decoder(Transaction).decode
_decode_claim = msgspec.msgpack.Decoder(Claim).decode


class Violation(AssertionError):
    """A rule of the log was broken. `rule` is its short name."""

    def __init__(self, rule: str, story: str) -> None:
        super().__init__(rule, story)
        self.rule = rule

    def __str__(self) -> str:
        return ": ".join(self.args)


class TrueRecord(NamedTuple):
    value: bytes | None
    kind: Kind
    producer_id: int
    transaction: int
    timestamp: int = -1
    key: bytes | None = None


class Named(NamedTuple):
    """A topic that a name stood for, and since when."""

    topic: Topic
    born_s: float


@dataclass(slots=True)
class _Producer:
    epoch: int
    sequence_last: int


@dataclass(slots=True)
class TrueLog:
    """One partition as it really is."""

    end: int = 0
    floor: int = 0
    start: int = 0
    """Records below it are no longer served."""
    starts: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """When it moved, and whereto."""
    ends: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """The same of the end."""
    table_end: int = 0
    fold_end: int = 0
    gone: bool = False
    reborn: bool = False
    """Its topic's name stood for another one before: a producer that knows only names may go on in the middle."""
    borders: set[int] = field(default_factory=lambda: {0})
    records: dict[int, TrueRecord] = field(default_factory=dict)
    producers: dict[int, _Producer] = field(default_factory=dict)
    said: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Producer → where each of its batches ends in the log, with its epoch and last sequence."""
    heard_s: dict[int, float] = field(default_factory=dict)
    """Producer → when it last was stored."""
    ended: dict[int, int] = field(default_factory=dict)
    """Producer → the newest transaction that has a marker."""
    marks: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Producer and transaction → whether the first marker for it says that it is committed."""
    needed: dict[str, int] = field(default_factory=dict)
    """Object or segment → the highest offset end of a claim that counts and lies in it."""
    claims: dict[int, Claim] = field(default_factory=dict)
    """The ones that count, by start."""

    def end_at(self, now: float) -> int:
        return self.ends[bisect_right(self.ends, (now, END_OF_TIME)) - 1][1]

    def start_at(self, now: float) -> int:
        return self.starts[bisect_right(self.starts, (now, END_OF_TIME)) - 1][1]


class Witness:
    def __init__(self, loop: SimLoop, tally: Counter[str]) -> None:
        self.violations: list[Violation] = []
        self.logs: dict[PartitionId, TrueLog] = {}
        self.topics: dict[str, Named] = {}
        """As they are now, by name."""
        self.names: dict[str, dict[str, Topic]] = {}
        """Every topic that a name ever stood for, by its id, the newest last."""
        self.tally = tally
        self.objects: MemoryStore | None = None
        self.disk: MemoryDisk | None = None
        self.flipped: dict[str, tuple[int, int]] = {}
        """Damage as it is now: object or segment, the byte and the bit of it that is wrong."""
        self.dialects: dict[str, Dialect] = {}
        """Of typed topics, by their id."""
        self.types = TrueTypes(self)
        self.delta = TrueDelta(self)
        self.layouts = TrueLayouts(self)
        self.tables = TrueTables(self)
        self._loop = loop
        self._stored: dict[tuple[str, bytes], tuple[PartitionId, int]] = {}
        """Topic id and record → where it is. A producer that knows only names may put a record into a topic and again
        into the one that follows it, as with any broker."""
        self._refused: set[bytes] = set()
        self.coordinated: set[int] = set()
        """Producers of transactions that a coordinator has ended."""

    @property
    def now_s(self) -> float:
        return self._loop.now

    def accuse(self, rule: str, story: str) -> None:
        self._loop.trace.note(self._loop.now, "VIOLATION", rule, story)
        self.violations.append(Violation(rule, f"{story} (at {self._loop.now:.3f} s)"))

    def log(self, partition: PartitionId) -> TrueLog:
        return self.logs.setdefault(partition, TrueLog())

    # ── metadata ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, path: str, value: bytes, created_ms: int, is_new: bool) -> None:
        parts = path.split("/")
        if parts[1] == "topics":
            self._topic_put(parts[2], _decode_topic(value))
        if parts[1] == "transactions":
            self._decided(parts[2], _decode_transaction(value))
        if parts[1:3] == ["catalog", "tables"]:
            self.tables.pointed(parts[3], value)
        if parts[1] == "typed":
            self.types.writer_put(parts[2], parts[3], value, is_new)
        if parts[1] not in ("log", "fold", "table_end"):
            return
        partition = PartitionId(parts[2], int(parts[3]))
        log = self.log(partition)
        if parts[1] == "fold":
            self._fold_saved(partition, log, value)
        elif parts[1] == "table_end":
            self._table_end_moved(partition, log, int(value))
        elif parts[4] == keys.FLOOR_NAME:
            self._floor_moved(partition, log, int(value))
        elif parts[4] == keys.START_NAME:
            self._start_moved(partition, log, int(value))
        else:
            claim = _decode_claim(value)
            if not is_new:
                self.accuse("claim is created only", f"claim {path} was written over by {claim.writer}")
            self._claim_made(partition, log, claim, created_ms)

    def _topic_put(self, name: str, topic: Topic) -> None:
        incarnations = self.names.setdefault(name, {})
        for partition in topic.partitions():
            self.log(partition).reborn = len(incarnations) > (topic.topic_id in incarnations)
        incarnations[topic.topic_id] = topic
        before = self.topics.get(name)
        born_s = before.born_s if before and before.topic.topic_id == topic.topic_id else self._loop.now
        self.topics[name] = Named(topic, born_s)

    def _start_moved(self, partition: PartitionId, log: TrueLog, start: int) -> None:
        if log.gone:
            return  # made anew by one who did not know yet; nobody will read it
        if start < log.start:
            self.accuse("start moves forward", f"start of {partition} went from {log.start} to {start}")
        if start > log.end:
            self.accuse("start is in the log", f"start of {partition} was moved to {start}, its end is {log.end}")
        self.tally["starts moved"] += start > log.start
        log.start = max(log.start, start)
        log.starts.append((self._loop.now, log.start))

    def _fold_saved(self, partition: PartitionId, log: TrueLog, body: bytes) -> None:
        if log.gone:
            return  # nobody will read it
        fold = Fold.decode(body, str(partition))
        if fold.offset_end < log.fold_end:
            self.accuse("fold moves forward", f"fold of {partition} went from {log.fold_end} to {fold.offset_end}")
        if fold.offset_end > log.end or fold.offset_end not in log.borders:
            self.accuse("fold is of the log", f"fold of {partition} ends at {fold.offset_end}, the log at {log.end}")
        for producer_id, said in log.said.items():
            self._check_known(partition, log, fold, producer_id, said)
        log.fold_end = max(log.fold_end, fold.offset_end)
        self.tally["folds saved"] += 1

    def _check_known(
        self, partition: PartitionId, log: TrueLog, fold: Fold, producer_id: int, said: list[tuple[int, int, int]]
    ) -> None:
        """What a fold says of a producer is what the log has of it, unless it was silent for long. Transactions change
        it in other ways."""
        before = [one for one in said if one[0] <= fold.offset_end]
        known = fold.producers.get(producer_id)
        if not before or producer_id in log.ended:
            return
        is_forgotten = known is None and self._loop.now - log.heard_s[producer_id] > FORGOTTEN_S
        if not is_forgotten and (known is None or (known.epoch, known.sequence_last) != before[-1][1:]):
            self.accuse(
                "fold is of the log", f"fold of {partition}: {known} of producer {producer_id}, not {before[-1]}"
            )

    def _table_end_moved(self, partition: PartitionId, log: TrueLog, offset: int) -> None:
        if offset < log.table_end:
            self.accuse("table end moves forward", f"table end of {partition} went from {log.table_end} to {offset}")
        log.table_end = offset
        if not log.gone:
            self.tables.end_moved(partition, offset)

    def _floor_moved(self, partition: PartitionId, log: TrueLog, floor: int) -> None:
        if floor < log.floor:
            self.accuse("floor moves forward", f"floor of {partition} went from {log.floor} to {floor}")
        log.floor = floor
        if floor == END_OF_TIME:
            log.gone = True
            return
        bound = min(log.table_end, log.fold_end)
        if floor > bound:
            self.accuse(
                "only what is moved and folded is trimmed",
                f"floor of {partition} was raised to {floor}; table end {log.table_end}, fold {log.fold_end}",
            )
        if floor not in log.borders:
            self.accuse("trim at a border", f"floor of {partition} was raised to {floor}, inside a claim")
        self.tally["trims"] += floor > 0

    def _claim_made(self, partition: PartitionId, log: TrueLog, claim: Claim, created_ms: int) -> None:
        if log.gone or claim.offset_start < log.floor:
            self.tally["void claims"] += 1
            return
        where = f"claim of {partition} at {claim.offset_start} by {claim.writer} ({claim.claim_id})"
        if claim.offset_start != log.end:
            self.accuse("one chain", f"{where} was made, but the log ends at {log.end} and its floor is {log.floor}")
            return
        count = sum(batch.record_count for batch in claim.batches)
        if not claim.batches or claim.offset_end != claim.offset_start + count:
            self.accuse("a claim is its batches", f"{where} ends at {claim.offset_end} and holds {count} records")
        log.end = claim.offset_end
        log.ends.append((self._loop.now, log.end))
        log.borders.add(claim.offset_end)
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
            self.accuse("no claim points at a missing object", f"{where}: {claim.name} is not there")
            return
        offset = claim.offset_start
        for batch in claim.batches:
            data = body[batch.byte_start : batch.byte_end]
            if batch.kind >= Kind.COMMIT:
                log.records[offset] = TrueRecord(None, batch.kind, batch.producer_id, batch.transaction)
                self._marker_claimed(log, batch, where)
            else:
                stored = RecordBatch(data)
                for number, (_, key, value) in enumerate(records_of(stored)):
                    assert value is not None, "every record of the simulation has a value"
                    log.records[offset + number] = TrueRecord(
                        value, batch.kind, batch.producer_id, batch.transaction, stored.base_timestamp, key
                    )
                    self._stored_once(partition, offset + number, value)
                self._sequence_claimed(log, batch, offset + batch.record_count, where)
            offset += batch.record_count

    def not_stored(self, values: Sequence[bytes]) -> None:
        """A producer was told so of records that it sent once."""
        for value in values:
            self._refused.add(value)
            for topic_id, stored in self._stored:
                if stored == value:
                    self.accuse("what is refused is not stored", f"{value!r} is at {self._stored[topic_id, value]}")

    def _stored_once(self, partition: PartitionId, offset: int, value: bytes) -> None:
        if value in self._refused:
            self.accuse("what is refused is not stored", f"{value!r} appears at {partition}:{offset}")
        topic_id = meant_for(value)
        if topic_id is not None and not partition.topic_id.startswith(topic_id):
            self.accuse("no old record in a new topic", f"{value!r} was sent to {topic_id}, and is at {partition}")
        before = self._stored.setdefault((partition.topic_id, value), (partition, offset))
        if before != (partition, offset):
            self.accuse("stored once", f"record {value!r} is at {before[0]}:{before[1]} and at {partition}:{offset}")

    def _sequence_claimed(self, log: TrueLog, batch: BatchInfo, offset_end: int, where: str) -> None:
        if batch.producer_id == NO_PRODUCER:
            return
        known = log.producers.get(batch.producer_id)
        who = f"{where}: producer {batch.producer_id} epoch {batch.epoch} sequence {batch.sequence_first}"
        if known is not None and batch.epoch < known.epoch:
            self.accuse("epochs move forward", f"{who} after epoch {known.epoch}")
        expected = known.sequence_last + 1 if known is not None and known.epoch == batch.epoch else 0
        if batch.sequence_first != expected and not (known is None and log.reborn):
            self.accuse("sequences follow", f"{who}; {expected} is next")
        if batch.kind is Kind.TRANSACTIONAL and batch.transaction <= log.ended.get(batch.producer_id, -1):
            self.accuse("a batch joins only its open transaction", f"{who} transaction {batch.transaction} has ended")
        log.producers[batch.producer_id] = _Producer(batch.epoch, batch.sequence_last)
        log.heard_s[batch.producer_id] = self._loop.now
        log.said.setdefault(batch.producer_id, []).append((offset_end, batch.epoch, batch.sequence_last))

    def _decided(self, name: str, record: Transaction) -> None:
        """The record of a transactional id: what it says of how a transaction ends is said once."""
        if not record.is_ending:
            return
        outcomes = self.tables.outcomes.setdefault(record.marking.producer_id, {})
        if outcomes.setdefault(record.number, record.commits) != record.commits:
            self.accuse("a decision is final", f"transaction {record.number} of {name} became {record.state.name}")
        self.coordinated.add(record.marking.producer_id)

    def _marker_claimed(self, log: TrueLog, batch: BatchInfo, where: str) -> None:
        if batch.transaction > log.ended.get(batch.producer_id, -1):
            commits = batch.kind is Kind.COMMIT
            log.marks[batch.producer_id, batch.transaction] = commits
            decided = self.tables.outcomes.get(batch.producer_id, {}).get(batch.transaction)
            if batch.producer_id in self.coordinated and decided is not commits:
                self.accuse(
                    "a marker follows its decision",
                    f"{where}: {batch.kind.name} of transaction {batch.transaction} of producer {batch.producer_id}",
                )
        log.ended[batch.producer_id] = max(log.ended.get(batch.producer_id, -1), batch.transaction)
        known = log.producers.get(batch.producer_id)
        if known is not None and batch.epoch > known.epoch:
            log.producers[batch.producer_id] = _Producer(batch.epoch, -1)

    def _bytes_of(self, claim: Claim) -> bytes | None:
        """What its writer stored: damage is undone."""
        if claim.medium is Medium.OBJECT:
            assert self.objects is not None
            found = self.objects._objects.get(claim.name)
            body = found[0] if found else None
        else:
            assert self.disk is not None
            file = self.disk.files.get(claim.name)
            body = bytes(file.data) if file else None
        if body is None or claim.name not in self.flipped:
            return body
        place, bit = self.flipped[claim.name]
        return body[:place] + bytes([body[place] ^ bit]) + body[place + 1 :]

    def deleted(self, path: str) -> None:
        parts = path.split("/")
        if parts[1] == "topics":
            del self.topics[parts[2]]
        if parts[1] == "typed":
            self.types.writer_deleted(parts[2], parts[3])
        if len(parts) != 5 or parts[1] != "log":
            return
        partition = PartitionId(parts[2], int(parts[3]))
        log = self.log(partition)
        if parts[4] in (keys.FLOOR_NAME, keys.START_NAME) or log.gone:
            return
        claim = log.claims.get(int(parts[4]))
        if claim is not None and claim.offset_end > log.floor:
            self.accuse("claims above the floor stay", f"{path} was deleted; the floor is {log.floor}")

    # ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def removed(self, name: str) -> None:
        """An object or segment is deleted."""
        if name.startswith(TABLES_FOLDER):
            self.tables.removed(name)
            self.delta.removed(name)
            return
        for partition, log in self.logs.items():
            if not log.gone and log.needed.get(name, 0) > log.table_end:
                self.accuse(
                    "no swept object was referenced",
                    f"{name} was deleted; it holds {partition} up to {log.needed[name]}, the table {log.table_end}",
                )
        self.tally["objects swept"] += 1


def meant_for(value: bytes) -> str | None:
    """The beginning of the id of the topic that its producer sent it to; None if he knew only a name."""
    found = _MEANT_FOR.search(value)  # typed values may have any bytes
    return found and found.group(1).decode()


class WitnessedServer(MemoryServer):
    def __init__(self, clock: Clock, witness: Witness) -> None:
        super().__init__(clock)
        self._witness = witness

    def put(self, put: Put) -> Stored | Conflict | Missing:
        is_new = self.get(put.key.path) is None
        answer = super().put(put)
        if isinstance(answer, Stored):
            self._witness.put(put.key.path, put.value, answer.created_ms, is_new)
        return answer

    def delete(self, path: str) -> None:
        self._witness.deleted(path)
        super().delete(path)


class WitnessedObjects(MemoryStore):
    def __init__(self, clock: Clock, witness: Witness) -> None:
        super().__init__(clock)
        self._witness = witness
        witness.objects = self

    async def put(self, key: str, body: Body) -> None:
        is_new = key not in self._objects
        await super().put(key, body)
        if LOG in key:
            self._witness.delta.stored(key, self._objects[key][0], is_new)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self._objects:
                self._witness.removed(key)
        await super().delete(keys)


class WitnessedDisk(MemoryDisk):
    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self.files = _WitnessedFiles(witness)
        witness.disk = self


class _WitnessedFiles(dict[str, Any]):
    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def pop(self, name: str, default: Any = None) -> Any:
        if name in self:
            self._witness.removed(name)
        return super().pop(name, default)
