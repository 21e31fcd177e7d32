"""The log of a partition, compared with a model: a list of records, and the last batches of each producer.

Two brokers over the same stores, on virtual time. Hypothesis chooses appends (plain, idempotent, retried, concurrent),
lost responses, reads, trims, garbage collections, crashes and restarts in any order. Offsets must have no gap and no
overlap, records must be the ones sent, and all brokers must return the same bounds.
"""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.harness.log.brokers import ShakyMetadata, Trouble, records

from lakestream.clock import SeededIds
from lakestream.config.settings import LogSettings, Profile, WalSettings
from lakestream.data.log import rules
from lakestream.data.log.garbage_collector import WalGarbageCollector
from lakestream.data.log.log import Log
from lakestream.data.wal.buffer import Appended
from lakestream.errors import Fenced, OutOfOrder, OutOfRange, Uncertain
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.topics import Topic, Topics
from lakestream.records.batch import RecordBatch
from lakestream.storage.memory import MemoryObjectStore
from lakestream.testing.batches import make_batch
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments
from lakestream.testing.simulation import SimClock, SimLoop

T = TypeVar("T")

SETTINGS = LogSettings(
    fold_every_claims=4,
    tail_claims_max=2,
    cache_bytes_max=400,
    wal=WalSettings(flush_interval_ms=5, segment_bytes_max=600),
)
BROKERS = st.integers(0, 1)
PRODUCERS = st.integers(0, 2)
COUNTS = st.integers(1, 3)
PLACES = st.integers(0, 20).map(lambda part: part / 20)


@dataclass
class Sent:
    sequence: int
    count: int
    offset: int


@dataclass
class Producer:
    producer_id: int
    epoch: int = 0
    sequence: int = 0
    active_ms: int = 0
    recent: list[Sent] = field(default_factory=list)


class Chain(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop(0)
        self.clock = SimClock(self.loop)
        self.server = MemoryServer(self.clock)
        self.objects = MemoryObjectStore(self.clock)
        self.disk = MemoryDisk()
        self.ids = SeededIds(random.Random(1))
        self.claims = Claims(self.server.client())
        self.profile = Profile.COST
        self.metadata: list[ShakyMetadata] = []
        self.brokers: list[Log] = []
        self.records: list[str] = []  # the model: the value at each offset
        self.batches: list[tuple[int, int]] = []  # offset and count of each
        self.producers = [Producer(number) for number in range(3)]
        self.table_end = 0
        self.floor = 0
        self.values = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 100))

    @initialize()
    def begin(self) -> None:
        topics = Topics(self.server.client())
        (self.partition,) = self.run(topics.create("t", Topic("topic", 1))).partitions()
        self.gc = self._garbage_collector()
        for _ in range(3):
            self._start()

    def teardown(self) -> None:
        try:
            if self.brokers:
                found = self._read_from(self._start(), self.floor)
                assert found == list(enumerate(self.records))[self.floor :]
            for broker in self.brokers:
                self.run(broker.close())
        finally:
            self.loop.shutdown()
            self.loop.close()
        assert self.loop.failures == []

    # ── appends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(broker=BROKERS, count=COUNTS)
    def append(self, broker: int, count: int) -> None:
        self.append_concurrently([(broker, count)])

    @rule(producer=PRODUCERS, broker=BROKERS, count=COUNTS)
    def append_in_sequence(self, producer: int, broker: int, count: int) -> None:
        state, values = self._known(producer), self._values(count)
        result = self.run(self._append(broker, values, state, state.sequence))
        # After a lost response the retry returns a duplicate with the same offsets.
        self._record_append(result._replace(duplicate=False), values)
        self._sent(state, count, result.offset_start)

    @rule(producer=PRODUCERS, count=COUNTS, batches=st.integers(2, 4))
    def append_pipelined(self, producer: int, count: int, batches: int) -> None:
        state = self._known(producer)

        async def append_all() -> list[Appended]:
            sequence, appends = state.sequence, []
            for values in sent:
                appends.append(self._append(0, values, state, sequence))
                sequence += count
            return await asyncio.gather(*appends)

        sent = [self._values(count) for _ in range(batches)]
        for result, values in zip(self.run(append_all()), sent, strict=True):
            self._record_append(result, values)
            self._sent(state, count, result.offset_start)

    @rule(counts=st.lists(st.tuples(BROKERS, COUNTS), min_size=2, max_size=6))
    def append_concurrently(self, counts: list[tuple[int, int]]) -> None:
        """A broker that was paused during trims and loses a response raises Uncertain. In fact nothing was stored: here
        it continues only after the trim."""
        sent = [self._values(count) for _, count in counts]

        async def race() -> list[Appended | BaseException]:
            appends = (self._append(broker, values) for (broker, _), values in zip(counts, sent, strict=True))
            return await asyncio.gather(*appends, return_exceptions=True)

        answers = self.run(race())
        taken = [(result, values) for result, values in zip(answers, sent, strict=True) if isinstance(result, Appended)]
        assert all(isinstance(result, Appended | Uncertain) for result in answers), answers
        for result, values in sorted(taken):
            self._record_append(result, values)

    @rule(producer=PRODUCERS, broker=BROKERS, which=st.integers(0, 4))
    def retry(self, producer: int, broker: int, which: int) -> None:
        state = self._known(producer)
        if which >= len(state.recent):
            return
        sent = state.recent[-1 - which]
        values = self.records[sent.offset : sent.offset + sent.count]
        result = self.run(self._append(broker, values, state, sent.sequence))
        assert result == Appended(sent.offset, sent.offset + sent.count, duplicate=True)

    @rule(producer=PRODUCERS, broker=BROKERS, ahead=st.integers(1, 5))
    def skip_sequences(self, producer: int, broker: int, ahead: int) -> None:
        state = self._known(producer)
        if state.recent:
            with pytest.raises(OutOfOrder):
                self.run(self._append(broker, ["gap"], state, state.sequence + ahead))

    @rule(producer=PRODUCERS)
    def begin_epoch(self, producer: int) -> None:
        state = self._known(producer)
        state.epoch += 1
        state.sequence, state.recent = 0, []

    @rule(producer=PRODUCERS, broker=BROKERS)
    def append_with_old_epoch(self, producer: int, broker: int) -> None:
        """Not with a sequence that was used: a broker with a stale view may rightly take that for a duplicate."""
        state = self._known(producer)
        if state.recent and state.epoch:
            with pytest.raises(Fenced):
                self.run(self._append(broker, ["old"], Producer(state.producer_id, state.epoch - 1), 1_000_000))

    @rule(broker=BROKERS, fault=st.sampled_from([Trouble.REFUSED, Trouble.LOST_THERE, Trouble.LOST_BACK]))
    def inject_fault(self, broker: int, fault: Trouble) -> None:
        self.metadata[broker].troubles.append(fault)

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(broker=BROKERS, where=PLACES, bytes_max=st.integers(0, 2000))
    def read(self, broker: int, where: float, bytes_max: int) -> None:
        offset = self.floor + round(where * (len(self.records) - self.floor))
        found = self.run(self.brokers[broker].read(self.partition, offset, bytes_max))
        got = records(found)
        if offset == len(self.records):
            assert (got, found.offset_next) == ([], offset)
            return
        start = max(first for first, _ in self.batches if first <= offset)
        assert got == list(enumerate(self.records))[start : found.offset_next]
        assert found.offset_next in {first + count for first, count in self.batches}
        sizes = [sum(map(len, buffers)) for _, buffers in found.batches]
        assert len(sizes) == 1 or sum(sizes) <= bytes_max

    @rule(broker=BROKERS, beyond=st.integers(1, 3))
    def read_outside(self, broker: int, beyond: int) -> None:
        for offset in (len(self.records) + beyond, self.floor - beyond):
            with pytest.raises(OutOfRange):
                self.run(self.brokers[broker].read(self.partition, offset, 1000))

    # ── concurrent work ──────────────────────────────────────────────────────────────────────────────────────────────

    @rule(broker=BROKERS, moved=PLACES, upto=PLACES, notes_gc=st.booleans())
    def trim(self, broker: int, moved: float, upto: float, notes_gc: bool) -> None:
        self.table_end = max(self.table_end, round(moved * len(self.records)))
        self.run(self.claims.advance_table_end(self.partition, self.table_end))
        bound = round(upto * len(self.records))
        dropped = self.run(self.brokers[broker].trim(self.partition, bound))
        if notes_gc:
            self.gc.note_dropped(dropped)
        floor = self.run(self.brokers[broker].bounds(self.partition)).start
        assert self.floor <= floor <= max(self.floor, min(bound, self.table_end))
        assert floor in {0, *(first + count for first, count in self.batches)}, "always where a batch ends"
        self.floor = floor

    @rule(sleeper=BROKERS)
    def pause_during_two_trims(self, sleeper: int) -> None:
        """Trims the chain at the offset that the paused broker has as its end."""
        for _ in range(2):
            self.append(1 - sleeper, 2)
            self.trim(1 - sleeper, 1.0, 1.0, True)

    @rule(broker=BROKERS, cleanly=st.booleans())
    def restart(self, broker: int, cleanly: bool) -> None:
        old = self.brokers[broker]
        if cleanly:
            self.run(old.close())
        else:
            old.kill()
        self._start(broker)

    @rule()
    def collect_garbage(self) -> None:
        self.run(self.gc.collect())
        self.loop.run_until_complete(asyncio.sleep(2))
        self.run(self.gc.collect())

    @rule()
    def restart_garbage_collector(self) -> None:
        self.gc = self._garbage_collector()

    @rule(hours=st.sampled_from([5.5, 7.0]))
    def pass_time(self, hours: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(hours * 3600))

    @rule(profile=st.sampled_from(Profile))
    def change_profile(self, profile: Profile) -> None:
        self.profile = profile

    @rule(broker=BROKERS)
    def read_bounds(self, broker: int) -> None:
        self._check_bounds(broker)

    @precondition(lambda self: bool(self.brokers))
    @invariant()
    def store_matches_the_model(self) -> None:
        """Runs on the store, not on the brokers: their views must stay stale until they refresh them."""
        self._check_bounds(2)

    def _check_bounds(self, broker: int) -> None:
        end = len(self.records)
        assert self.run(self.brokers[broker].bounds(self.partition)) == (self.floor, end, end)

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _values(self, count: int) -> list[str]:
        self.values += count
        return [f"v{self.values - left}" for left in range(count)]

    def _record_append(self, result: Appended, values: list[str]) -> None:
        assert result == Appended(len(self.records), len(self.records) + len(values)), "no gap, no overlap"
        self.batches.append((len(self.records), len(values)))
        self.records += values

    def _known(self, producer: int) -> Producer:
        """A producer that was idle for a day expires, and may continue with any sequence."""
        state = self.producers[producer]
        if self.clock.now_ms() - state.active_ms > rules.PRODUCER_EXPIRY_MS:
            state.recent = []
        return state

    def _sent(self, state: Producer, count: int, offset: int) -> None:
        state.recent = [*state.recent, Sent(state.sequence, count, offset)][-rules.RECENT_BATCHES :]
        state.sequence += count
        state.active_ms = self.clock.now_ms()

    # ── the production code ──────────────────────────────────────────────────────────────────────────────────────────

    async def _append(
        self, broker: int, values: list[str], state: Producer | None = None, sequence: int = -1
    ) -> Appended:
        body = make_batch(
            [value.encode() for value in values],
            producer_id=-1 if state is None else state.producer_id,
            epoch=-1 if state is None else state.epoch,
            sequence=sequence,
        )
        return await self.brokers[broker].append(self.partition, RecordBatch.parse(body))

    def _start(self, place: int | None = None) -> Log:
        metadata = ShakyMetadata(self.server)
        segments = MemorySegments(self.disk, self.clock, random.Random(1))
        log = Log(metadata, self.objects, segments, SETTINGS, self.clock, self.ids, profile_of=lambda _: self.profile)
        self.run(log.start())
        if place is None:
            self.brokers.append(log)
            self.metadata.append(metadata)
        else:
            self.brokers[place], self.metadata[place] = log, metadata
        return log

    def _garbage_collector(self) -> WalGarbageCollector:
        segments = MemorySegments(self.disk, self.clock, random.Random(1))
        return WalGarbageCollector(self.server.client(), self.objects, segments, read_grace_ms=1000)

    def _read_from(self, log: Log, offset: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        while offset < len(self.records):
            part = self.run(log.read(self.partition, offset, 500))
            found += records(part)
            offset = part.offset_next
        return found


TestChain = Chain.TestCase
TestChain.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
