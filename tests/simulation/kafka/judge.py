"""Answers held against the truth: what a broker told a client, and what the witness knows.

A request that names a topic by name may be answered from any topic that the name stood for while it was under way; one
that names an id, only from that one. A log only grows, so an answer must be at least as new as the log was when the
request was sent, and not newer than it is now.
"""

from typing import Any, NamedTuple

from tests.simulation.kafka.host import KafkaHost
from tests.simulation.readers import Row, rows_in
from tests.simulation.witness import TrueLog
from tests.simulation.world import World

from lakestream.errors import Corrupt
from lakestream.metadata.claims import Kind
from lakestream.model import PartitionId
from lakestream.testing.faults import CALM

NONE, OUT_OF_RANGE, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, SESSION_NOT_FOUND = 0, 1, 3, 100, 70
OUT_OF_ORDER, TOPIC_EXISTS, TIMED_OUT = 45, 36, 7
GONE = (UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID)

FETCH_RETRIED = (6, 9, 56, 78)
"""Not leader, no replica, storage error, offset not available: what consumers retry by themselves. The Java one throws
on others, also on a time-out."""

RETRIED = (*FETCH_RETRIED, TIMED_OUT)
"""What producers, admins and ListOffsets retry."""

NEWS_S = 60.0
"""A broker that runs knows after so long what was deleted."""

PROMPT_S = 1.0
"""Where nothing goes wrong, a fetch that waits is answered so long after there is something."""

EARLY_S, LAST_LOOK_S = 0.1, 15.0
"""The last look before an empty answer may have begun so long before the wait was over; where nothing goes wrong, and
where it does."""


class Topic(NamedTuple):
    """A topic as a client names it."""

    name: str
    topic_id: str | None
    """None: only by its name."""


class Wanted(NamedTuple):
    """One partition of a fetch."""

    topic: Topic
    number: int
    offset: int
    bytes_max: int


class Fetched(NamedTuple):
    """A fetch, and when it was sent."""

    host: KafkaHost
    began_s: float
    wait_s: float
    min_bytes: int
    max_bytes: int
    wanted: list[Wanted]
    rack: str = ""


class Given(NamedTuple):
    """A batch of an answer, whole and checked; one without records says that nobody has its offsets."""

    offset: int
    offset_next: int
    size: int
    rows: list[Row]


class Judge:
    def __init__(self, world: World) -> None:
        self.world = world
        self._witness = world.witness
        self._denied: dict[tuple[KafkaHost, str], float] = {}
        """When a broker first denied a topic that lives."""
        mood = world.mood
        self._prompt = mood.weather is CALM and not (mood.cuts or mood.depositions or mood.disk_fails)

    @property
    def _now(self) -> float:
        return self.world.loop.now

    def _deposed(self, began_s: float) -> bool:
        """Reads that need no proof may have been answered by a node that no longer leads."""
        return began_s < self.world.deposed_until

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def logs(self, topic: Topic, number: int) -> list[PartitionId]:
        """All that may be meant, the newest last."""
        known = self._witness.names.get(topic.name, {})
        return [
            PartitionId(topic_id, number)
            for topic_id, one in known.items()
            if topic.topic_id in (None, topic_id) and number < one.partition_count
        ]

    def lives(self, topic: Topic, began_s: float) -> bool:
        """It was there all the time from then on."""
        named = self._witness.topics.get(topic.name)
        if named is None or named.born_s > began_s or topic.topic_id not in (None, named.topic.topic_id):
            return False
        return not any(self._witness.log(partition).gone for partition in named.topic.partitions())

    def denied(self, topic: Topic, began_s: float, host: KafkaHost) -> None:
        """A broker said that there is no such topic. Who knew the one before it under its name may say so once."""
        self.world.tally["kafka topics denied"] += 1
        if not self.lives(topic, began_s):
            return
        key = (host, self._witness.topics[topic.name].topic.topic_id)
        before_s = self._denied.get(key)
        again = before_s is not None and self.world.deposed_until <= before_s < began_s
        if before_s is None or before_s < self.world.deposed_until:  # it may be told of the old one once more
            self._denied[key] = self._now
        reborn = topic.topic_id is None and len(self._witness.names[topic.name]) > 1
        if again or not reborn:
            self._witness.accuse("gone is gone", f"{host.name} says that there is no {topic}")

    def metadata(self, name: str, answer: Any, began_s: float, host: KafkaHost) -> str | None:
        """The id of the topic, if the answer has one. Where the version has no ids, what it is now."""
        nodes = {broker.node_id for broker in answer.brokers}
        if not nodes:
            self._witness.accuse("there is a broker", f"{host.name} names none")
        (topic,) = answer.topics
        if topic.error_code in GONE:
            self.denied(Topic(name, None), began_s, host)
            return None
        if topic.error_code != NONE:
            self._known_error("metadata", topic.error_code, RETRIED)
            return None
        known = self._witness.names.get(name, {})
        if hasattr(topic, "topic_id") and topic.topic_id.hex not in known:
            self._witness.accuse("no invented topic", f"{host.name} says that {name} is {topic.topic_id}")
        counts = {one.partition_count for one in known.values()}
        if len(topic.partitions) not in counts or any(part.leader_id not in nodes for part in topic.partitions):
            self._witness.accuse("metadata", f"{host.name} describes {name} as {topic}, the brokers are {nodes}")
        if hasattr(topic, "topic_id"):
            return str(topic.topic_id.hex)
        named = self._witness.topics.get(name)
        return None if named is None else named.topic.topic_id

    def _known_error(self, what: str, code: int, known: tuple[int, ...]) -> None:
        self.world.tally[f"kafka {what} error {int(code)}"] += 1
        if code not in known:
            self._witness.accuse("errors that clients retry", f"{what} was answered with {code!r}")

    # ── produce ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def appended(self, topic: Topic, number: int, values: tuple[bytes, ...], offset: int) -> PartitionId | None:
        """A batch was acknowledged: it is there, now."""
        logs = self.logs(topic, number)
        for partition in reversed(logs):
            records = self._witness.log(partition).records
            found = [records[at].value if at in records else None for at in range(offset, offset + len(values))]
            if found == list(values):
                return partition
        self._witness.accuse("what is acknowledged is stored", f"{values} at {topic}-{number}:{offset}, not in {logs}")
        return None

    # ── fetch ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fetched(self, asked: Fetched, parts: list[Any]) -> None:
        """`parts`: the answer's partitions, in the order asked for."""
        sizes = []
        for wanted, part in zip(asked.wanted, parts, strict=True):
            batches = self._part(asked, wanted, part)
            sizes.append([batch.size for batch in batches])
        self._check_sizes(asked, sizes)
        if any(getattr(part, "preferred_read_replica", -1) != -1 for part in parts):
            self.world.tally["kafka fetches sent elsewhere"] += 1
        elif not any(sizes) and all(part.error_code == NONE for part in parts):
            self._check_nothing(asked)
        elif asked.min_bytes <= 1:
            self._check_prompt(asked)

    def _part(self, asked: Fetched, wanted: Wanted, part: Any) -> list[Given]:
        code = part.error_code
        self.world.tally["kafka fetches"] += 1
        if code in GONE:
            self.denied(wanted.topic, asked.began_s, asked.host)
            return []
        if code not in (NONE, OUT_OF_RANGE):
            self._known_error("fetch", code, FETCH_RETRIED)
            return []
        try:
            batches = batches_of(part.records)
        except Corrupt as error:
            self._witness.accuse("damage is never served", f"{wanted}: {error}")
            return []
        complaints = []
        for partition in reversed(self.logs(wanted.topic, wanted.number)):
            complaint = self._complaint(asked, wanted, part, batches, partition)
            if complaint is None:
                return batches
            complaints.append((complaint, f"{partition} of {asked.host.name}, asked for {wanted}: {complaint[1]}"))
        (rule, _), story = complaints[0]
        self._witness.accuse(rule, story)
        return batches

    def _complaint(
        self, asked: Fetched, wanted: Wanted, part: Any, batches: list[Given], partition: PartitionId
    ) -> tuple[str, str] | None:
        """What is wrong with the answer if this is the log that was meant: the rule, and the story."""
        log = self._witness.log(partition)
        offset, end_before = wanted.offset, log.end_at(asked.began_s)
        if part.error_code == OUT_OF_RANGE:
            true = offset < log.start or offset > end_before or log.gone
            return None if true else ("no wrong refusal", f"out of range, when the end was {end_before}")
        if part.high_watermark > log.end:
            return "bounds", f"the end is {log.end}, not {part.high_watermark}"
        if getattr(part, "log_start_offset", 0) > log.start and not self.is_start(partition, part.log_start_offset):
            return "bounds", f"the start is {log.start}, not {part.log_start_offset}"
        return self._deleted(asked, wanted, batches, log) or self._misread(offset, batches, partition)

    def is_served(self, partition: PartitionId, offset: int) -> bool:
        """Whether readers of all records find one there: no marker, and none that was aborted before it was moved."""
        record = self._witness.log(partition).records.get(offset)
        if record is None or record.kind >= Kind.COMMIT:
            return False
        return offset >= self._witness.tables.next_offset(partition) or self.world.is_committed(record)

    def _misread(self, offset: int, batches: list[Given], partition: PartitionId) -> tuple[str, str] | None:
        """No gap, and every record is the one of its offset. Offsets that nobody has are passed over."""
        at, log = offset, self._witness.log(partition)
        for batch in batches:
            if batch.offset_next <= offset:
                return "none is missing", f"a batch at {batch.offset} that ends before what was asked for"
            given = {row.offset for row in batch.rows}
            missing = [one for one in range(at, batch.offset_next) if one not in given]
            if left_out := [one for one in missing if self.is_served(partition, one)]:
                return "none is missing", f"{left_out[0]} is left out"
            for row in batch.rows:
                true = log.records.get(row.offset)
                if true is None or true.value != row.value:
                    return "every reader sees the same", f"{row.offset} is {row.value!r}, not {true and true.value!r}"
            at = batch.offset_next
        return None

    def _deleted(self, asked: Fetched, wanted: Wanted, batches: list[Given], log: TrueLog) -> tuple[str, str] | None:
        """What was deleted a while ago, and this broker had the time to hear of it."""
        heard_s = max(asked.began_s - NEWS_S, 0.0)
        if not batches or asked.host.resumed_s > heard_s or self._deposed(heard_s):
            return None
        start = log.start_at(heard_s)
        return None if wanted.offset >= start else ("what is deleted is not served", f"the start is {start}")

    def _check_sizes(self, asked: Fetched, sizes: list[list[int]]) -> None:
        """Within the limits, but for one batch that would not fit alone."""
        first = True
        total = sum(map(sum, sizes))
        for wanted, some in zip(asked.wanted, sizes, strict=True):
            if sum(some) > wanted.bytes_max and len(some) > 1:
                self._witness.accuse("limits", f"{some} bytes of {wanted}")
            if some and not first and total > asked.max_bytes:
                self._witness.accuse("limits", f"{sizes} bytes, {asked.max_bytes} were asked for")
            first = first and not some

    def _check_nothing(self, asked: Fetched) -> None:
        """The answer is empty: there was nothing when it was asked for, nor when its wait was nearly over."""
        if self._deposed(asked.began_s) or asked.host.resumed_s > asked.began_s:
            return
        waited_s = asked.wait_s - (EARLY_S if self._prompt else LAST_LOOK_S) if asked.min_bytes else 0.0
        for wanted in asked.wanted:
            if not self.lives(wanted.topic, asked.began_s):
                continue
            partition = self.logs(wanted.topic, wanted.number)[-1]
            end = self._witness.log(partition).end_at(asked.began_s + max(waited_s, 0.0))
            if any(self.is_served(partition, at) for at in range(wanted.offset, end)):
                self._witness.accuse(
                    "who looks sees", f"{asked.host.name} gave nothing for {wanted}, the end was {end}"
                )

    def _check_prompt(self, asked: Fetched) -> None:
        """Where nothing ever goes wrong, who waits is answered when there is something."""
        if not self._prompt:
            return
        for wanted in asked.wanted:
            for partition in self.logs(wanted.topic, wanted.number)[-1:]:
                ends = self._witness.log(partition).ends
                grown_s = next((at_s for at_s, end in ends if end > wanted.offset), None)
                if grown_s is not None and self._now - max(grown_s, asked.began_s) > PROMPT_S:
                    late_s = self._now - max(grown_s, asked.began_s)
                    self._witness.accuse(
                        "a long fetch returns when data comes", f"{asked.host.name}: {wanted} took {late_s:.1f} s"
                    )

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def listed(self, host: KafkaHost, began_s: float, topic: Topic, number: int, timestamp: int, part: Any) -> None:
        if part.error_code in GONE:
            self.denied(topic, began_s, host)
            return
        if part.error_code != NONE:
            self._known_error("list offsets", part.error_code, RETRIED)
            return
        self.world.tally["kafka offsets listed"] += 1
        logs = self.logs(topic, number)
        stories = [self._misplaced(partition, began_s, timestamp, part.offset) for partition in logs]
        if all(story is not None for story in stories):
            self._witness.accuse("who looks sees", f"{host.name} {topic}-{number} at {timestamp}: {stories[-1]}")

    def is_start(self, partition: PartitionId, offset: int) -> bool:
        """Before it nothing is to be had: the table may begin with records that were aborted."""
        start = self._witness.log(partition).start
        return not any(self.is_served(partition, at) for at in range(start, offset))

    def _misplaced(self, partition: PartitionId, began_s: float, timestamp: int, offset: int) -> str | None:
        log = self._witness.log(partition)
        stale = self._deposed(began_s)
        start, end = (0, 0) if stale else (log.start_at(began_s), log.end_at(began_s))
        if timestamp == -1:
            return None if end <= offset <= log.end else f"end {offset}, it was {end} and is {log.end}"
        if timestamp == -2:
            right = start <= offset <= log.start or self.is_start(partition, offset)
            return None if right else f"start {offset}, it was {start} and is {log.start}"
        stop = end if offset == -1 else offset
        for at in range(log.start, stop):
            if at in log.records and log.records[at].timestamp >= timestamp:
                return f"offset {offset}, but {at} is of {log.records[at].timestamp}"
        if offset == -1:
            return None
        found = log.records.get(offset)
        return None if found and found.timestamp >= timestamp and offset >= start else f"offset {offset} is {found}"

    # ── delete records ───────────────────────────────────────────────────────────────────────────────────────────────

    def deleted(self, host: KafkaHost, began_s: float, topic: Topic, number: int, offset: int, part: Any) -> None:
        if part.error_code in GONE:
            self.denied(topic, began_s, host)
            return
        logs = [self._witness.log(partition) for partition in self.logs(topic, number)]
        if part.error_code == OUT_OF_RANGE:
            if all(offset <= log.end_at(began_s) and not log.gone for log in logs):
                self._witness.accuse("no wrong refusal", f"records of {topic}-{number} before {offset}")
            return
        if part.error_code != NONE:
            self._known_error("delete records", part.error_code, RETRIED)
            return
        self.world.tally["kafka records deleted"] += 1
        stale = self._deposed(began_s)
        for log in logs:
            wanted = (0 if stale else log.end_at(began_s)) if offset == -1 else offset
            if log.gone or (wanted <= part.low_watermark <= log.start):
                return
        self._witness.accuse(
            "what is deleted is deleted", f"{host.name}: {topic}-{number} before {offset} gave {part.low_watermark}"
        )


def batches_of(records: bytes | None) -> list[Given]:
    found, at = [], 0
    data = bytes(records or b"")
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append(_given(data[at : at + size]))
        at += size
    return found


def _given(data: bytes) -> Given:
    offset, last = int.from_bytes(data[:8], "big"), int.from_bytes(data[23:27], "big")
    return Given(offset, offset + last + 1, len(data), rows_in(data))
