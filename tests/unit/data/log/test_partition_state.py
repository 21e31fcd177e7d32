"""Every rule of the partition state, on hand-written claims."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from lakestream.data.log import rules
from lakestream.data.log.partition_state import (
    Aborted,
    Accepted,
    BatchValidation,
    Duplicate,
    PartitionState,
    Verdict,
    readable_batches,
)
from lakestream.errors import Corrupt, Fenced, OutOfOrder, Rejected
from lakestream.metadata.claims import BatchInfo, BatchKind, Claim, Medium

NOW = 1_800_000_000_000
SEQUENCE_MAX = 2**31 - 1
DAY = rules.PRODUCER_EXPIRY_MS


def plain(count: int = 1) -> BatchInfo:
    return BatchInfo(0, 100, count)


def sent(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchInfo:
    last = (sequence + count - 1) % rules.SEQUENCE_END
    return BatchInfo(0, 100, count, BatchKind.PLAIN, producer, epoch, sequence, last)


def within(transaction: int, sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchInfo:
    last = (sequence + count - 1) % rules.SEQUENCE_END
    return BatchInfo(0, 100, count, BatchKind.TRANSACTIONAL, producer, epoch, sequence, last, transaction)


def marker(kind: BatchKind, transaction: int, *, producer: int = 7, epoch: int = 0) -> BatchInfo:
    return BatchInfo(0, 100, 1, kind, producer, epoch, -1, -1, transaction)


def claim(
    offset_start: int, *batches: BatchInfo, appended_ms: int = NOW, stored_ms: int = NOW, max_timestamp: int = 5
) -> Claim:
    offset_end = offset_start + sum(batch.record_count for batch in batches)
    return Claim(
        offset_start,
        offset_end,
        f"w.{offset_start}.0.1",
        "w",
        Medium.OBJECT,
        "wal/o",
        stored_ms,
        appended_ms,
        max_timestamp,
        batches,
    )


def add(state: PartitionState, *batches: BatchInfo, appended_ms: int = NOW) -> int:
    """Appends batches as one valid claim; returns its first offset."""
    offset = state.offset_end
    state.apply(claim(offset, *batches, appended_ms=appended_ms), NOW)
    return offset


def folded(*batches: BatchInfo) -> PartitionState:
    """Appends each batch as one claim."""
    state = PartitionState()
    for batch in batches:
        add(state, batch)
    return state


def judged(state: PartitionState, batch: BatchInfo, appended_ms: int = NOW) -> Verdict:
    return BatchValidation(state, appended_ms).validate(batch)


# ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_state_is_empty() -> None:
    state = PartitionState()
    assert (state.offset_end, state.last_stable_offset, state.aborted, state.producers) == (0, 0, [], {})


@pytest.mark.parametrize("sequence", [0, 1, 4711, SEQUENCE_MAX])
def test_first_batch_of_an_unknown_producer_is_accepted_with_any_sequence(sequence: int) -> None:
    assert judged(PartitionState(), sent(sequence)) == Accepted()


def test_batches_without_a_producer_are_always_accepted() -> None:
    state = folded(plain(3), plain(2))
    assert judged(state, plain()) == Accepted()
    assert state.offset_end == 5
    assert state.producers == {}


def test_the_next_sequence_is_accepted() -> None:
    assert judged(folded(sent(0, 3)), sent(3)) == Accepted()


@pytest.mark.parametrize("sequence", [1, 2, 4, 100])
def test_gaps_and_overlaps_are_out_of_order(sequence: int) -> None:
    assert isinstance(judged(folded(sent(0, 3)), sent(sequence)), OutOfOrder)


def test_rejection_names_producer_and_sequences() -> None:
    verdict = judged(folded(sent(0, 3)), sent(9))
    assert isinstance(verdict, OutOfOrder)
    assert str(verdict) == "producer 7 epoch 0: sequence 9 does not follow 2"


def test_sequence_after_the_maximum_is_zero() -> None:
    state = folded(sent(SEQUENCE_MAX - 1, 2))
    assert judged(state, sent(0)) == Accepted()
    assert isinstance(judged(state, sent(1)), OutOfOrder)


def test_sequence_may_wrap_inside_a_batch() -> None:
    state = folded(sent(SEQUENCE_MAX, 3))
    assert state.producers[7].sequence_last == 1
    assert judged(state, sent(2)) == Accepted()
    assert judged(state, sent(SEQUENCE_MAX, 3)) == Duplicate(0)


def test_producers_are_independent_of_each_other() -> None:
    state = folded(sent(0, producer=1), sent(0, producer=2), sent(1, producer=1))
    assert judged(state, sent(1, producer=2)) == Accepted()
    assert judged(state, sent(2, producer=1)) == Accepted()


# ── duplicates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_five_batches_are_known_as_duplicates() -> None:
    state = folded(*(sent(number * 2, 2) for number in range(7)))
    for number in range(2, 7):
        assert judged(state, sent(number * 2, 2)) == Duplicate(number * 2)
    assert isinstance(judged(state, sent(2, 2)), OutOfOrder), "the sixth last is forgotten"
    assert len(state.producers[7].recent) == rules.RECENT_BATCHES


def test_a_duplicate_is_the_same_batch_not_one_that_starts_alike() -> None:
    state = folded(sent(0, 3))
    assert isinstance(judged(state, sent(0, 2)), OutOfOrder)


def test_a_duplicate_within_one_claim_has_the_offset_it_will_get() -> None:
    validation = BatchValidation(folded(plain(10)), NOW)
    assert validation.validate(sent(0, 2)) == Accepted()
    assert validation.validate(plain(5)) == Accepted()
    assert validation.validate(sent(2)) == Accepted()
    assert validation.validate(sent(2)) == Duplicate(17)
    assert validation.validate(sent(0, 2)) == Duplicate(10)
    assert validation.offset == 18


def test_rejected_batch_does_not_count_for_the_next_ones() -> None:
    validation = BatchValidation(folded(sent(0)), NOW)
    assert isinstance(validation.validate(sent(2)), OutOfOrder)
    assert isinstance(validation.validate(sent(3)), OutOfOrder)
    assert validation.validate(sent(1)) == Accepted()
    assert validation.validate(sent(2)) == Accepted()
    assert validation.offset == 3


def test_validation_does_not_change_the_state() -> None:
    state = folded(sent(0))
    before = state.encode()
    validation = BatchValidation(state, NOW + 5)
    validation.validate(sent(1))
    validation.validate(within(1, 0, producer=8))
    assert state.encode() == before


# ── epochs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_old_epoch_is_fenced() -> None:
    state = folded(sent(0, epoch=3))
    assert isinstance(judged(state, sent(1, epoch=2)), Fenced)
    assert isinstance(judged(state, marker(BatchKind.COMMIT, 1, epoch=2)), Fenced)


def test_a_new_epoch_starts_at_zero() -> None:
    state = folded(sent(0, 5, epoch=3))
    assert isinstance(judged(state, sent(5, epoch=4)), OutOfOrder)
    assert judged(state, sent(0, epoch=4)) == Accepted()


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    state = folded(sent(0, epoch=3), sent(1, epoch=3), sent(0, 2, epoch=4))
    assert judged(state, sent(0, 2, epoch=4)) == Duplicate(2)
    assert isinstance(judged(state, sent(0, epoch=4)), OutOfOrder)
    assert isinstance(judged(state, sent(1, epoch=3)), Fenced)


def test_the_same_first_batch_in_a_new_epoch_is_no_duplicate() -> None:
    assert judged(folded(sent(0, epoch=3)), sent(0, epoch=4)) == Accepted()


# ── what is forgotten ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_producer_expires_by_the_append_time_of_claims() -> None:
    state = folded(sent(0))
    add(state, plain(), appended_ms=NOW + DAY)
    assert isinstance(judged(state, sent(9), NOW + DAY), OutOfOrder), "a day, to the millisecond, is not too long"
    add(state, plain(), appended_ms=NOW + DAY + 1)
    assert judged(state, sent(9)) == Accepted()


def test_append_time_never_runs_backwards() -> None:
    """A broker with a slow clock neither restores an expired producer nor appends with an earlier time."""
    state = folded(sent(0))
    add(state, plain(), appended_ms=NOW + DAY + 1)
    add(state, sent(0, producer=8), appended_ms=NOW)
    assert state.appended_ms == NOW + DAY + 1
    assert judged(state, sent(9), NOW) == Accepted()
    assert state.producers[8].appended_ms == NOW + DAY + 1


def test_timestamps_in_batches_do_not_expire_producers() -> None:
    state = folded(sent(0))
    state.apply(claim(1, plain(), max_timestamp=NOW + 100 * DAY), NOW)
    assert isinstance(judged(state, sent(9)), OutOfOrder)
    assert (state.timestamp_max, state.timestamp_offset) == (NOW + 100 * DAY, 1)


def test_active_producer_does_not_expire() -> None:
    state = folded(sent(0))
    add(state, sent(1), appended_ms=NOW + DAY)
    add(state, plain(), appended_ms=NOW + 2 * DAY)
    assert isinstance(judged(state, sent(9), NOW + 2 * DAY), OutOfOrder)


def test_validation_expires_producers_by_its_own_append_time() -> None:
    """The claim has that time, so every state that applies the claim agrees."""
    state = folded(sent(0))
    later = NOW + DAY + 1
    assert judged(state, sent(9), later) == Accepted()
    state.apply(claim(1, sent(9), appended_ms=later), NOW)
    assert [recent.offset_start for recent in state.producers[7].recent] == [1], "the state starts with this batch"


def test_an_open_transaction_never_expires() -> None:
    state = folded(within(1, 0))
    add(state, plain(), appended_ms=NOW + 3 * DAY)
    assert state.last_stable_offset == 0
    assert PartitionState.decode(state.encode(), "x").last_stable_offset == 0
    add(state, marker(BatchKind.ABORT, 1), appended_ms=NOW + 3 * DAY)
    assert state.last_stable_offset == state.offset_end
    assert state.aborted == [Aborted(7, 0, 2)]


def test_least_recently_active_producer_is_evicted_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 3)
    state = folded(*(sent(0, producer=number) for number in (1, 2, 3)), sent(1, producer=1), sent(0, producer=4))
    assert list(state.producers) == [3, 1, 4]
    assert judged(state, sent(9, producer=2)) == Accepted()
    assert isinstance(judged(state, sent(9, producer=3)), OutOfOrder)


def test_producer_with_an_open_transaction_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 2)
    state = folded(within(1, 0, producer=1), within(1, 0, producer=2), sent(0, producer=3), within(1, 0, producer=4))
    assert list(state.producers) == [1, 2, 4]
    assert state.last_stable_offset == 0
    add(state, marker(BatchKind.COMMIT, 1, producer=1))
    assert list(state.producers) == [2, 4]
    assert state.last_stable_offset == 1


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_began() -> None:
    state = folded(plain(5), within(1, 0, 2, producer=1), within(9, 0, producer=2), within(1, 2, producer=1))
    assert state.last_stable_offset == 5
    add(state, marker(BatchKind.COMMIT, 1, producer=1))
    assert state.last_stable_offset == 7
    add(state, marker(BatchKind.COMMIT, 9, producer=2))
    assert state.last_stable_offset == state.offset_end == 11
    assert state.aborted == []


def test_markers_take_an_offset() -> None:
    assert folded(within(1, 0), marker(BatchKind.COMMIT, 1), marker(BatchKind.COMMIT, 1)).offset_end == 3


def test_aborted_transaction_ends_at_its_marker() -> None:
    state = folded(plain(5), within(1, 0, 2), plain(), marker(BatchKind.ABORT, 1), plain())
    assert state.aborted == [Aborted(7, 5, 8)]
    assert state.last_stable_offset == 10


def test_aborted_ranges_are_found_by_overlap() -> None:
    state = folded(within(1, 0), marker(BatchKind.ABORT, 1), within(2, 1), marker(BatchKind.ABORT, 2))
    first, second = Aborted(7, 0, 1), Aborted(7, 2, 3)
    assert state.aborted_in(0, 4) == [first, second]
    assert state.aborted_in(1, 2) == [first]
    assert state.aborted_in(2, 3) == [second]
    assert state.aborted_in(4, 9) == []
    state.forget_aborted_below(2)
    assert state.aborted == [second]


def test_a_transaction_inside_one_claim() -> None:
    state = PartitionState()
    state.apply(claim(0, within(1, 0), marker(BatchKind.ABORT, 1), within(2, 1), plain()), NOW)
    assert state.aborted == [Aborted(7, 0, 1)]
    assert state.last_stable_offset == 2


def test_sequences_continue_across_transactions() -> None:
    state = folded(within(1, 0, 2), marker(BatchKind.COMMIT, 1))
    assert judged(state, within(2, 2)) == Accepted()
    assert isinstance(judged(state, within(2, 3)), OutOfOrder)


def test_a_retry_after_the_commit_is_a_duplicate() -> None:
    state = folded(within(1, 0, 2), marker(BatchKind.COMMIT, 1))
    assert judged(state, within(1, 0, 2)) == Duplicate(0)


def test_batch_of_an_ended_transaction_is_rejected() -> None:
    state = folded(within(4, 0), marker(BatchKind.ABORT, 4))
    for number in (3, 4):
        verdict = judged(state, within(number, 1))
        assert isinstance(verdict, Rejected)
        assert "has ended" in str(verdict)
    assert judged(state, within(5, 1)) == Accepted()


def test_batch_is_rejected_when_its_transaction_ended_without_batches_here() -> None:
    for state in (folded(marker(BatchKind.ABORT, 4)), folded(sent(0), marker(BatchKind.ABORT, 4))):
        first = 0 if state.offset_end == 1 else 1
        assert isinstance(judged(state, within(4, first)), Rejected)
        assert judged(state, within(5, first)) == Accepted()


def test_another_transaction_may_not_begin_while_one_is_open() -> None:
    state = folded(within(1, 0))
    assert isinstance(judged(state, within(2, 1)), Rejected)
    assert isinstance(judged(state, sent(1)), Rejected), "nor a batch outside of it"
    assert judged(state, within(1, 1)) == Accepted()


@pytest.mark.parametrize("kind", [BatchKind.COMMIT, BatchKind.ABORT])
@pytest.mark.parametrize("number", [1, 3])
def test_a_marker_of_another_transaction_is_ignored(kind: BatchKind, number: int) -> None:
    state = folded(within(1, 0), marker(BatchKind.COMMIT, 1), within(2, 1))
    add(state, marker(kind, number))
    assert state.last_stable_offset == 2
    assert state.aborted == []
    assert judged(state, within(2, 2)) == Accepted()


def test_a_marker_with_a_new_epoch_ends_the_transaction_and_fences() -> None:
    state = folded(within(1, 0, epoch=3), marker(BatchKind.ABORT, 1, epoch=4))
    assert state.last_stable_offset == 2
    assert isinstance(judged(state, within(1, 1, epoch=3)), Fenced)
    assert judged(state, within(2, 0, epoch=4)) == Accepted()
    assert isinstance(judged(state, within(2, 1, epoch=4)), OutOfOrder)


def test_repeated_marker_has_no_effect() -> None:
    state = folded(within(1, 0), marker(BatchKind.ABORT, 1), marker(BatchKind.ABORT, 1), marker(BatchKind.COMMIT, 1))
    assert state.aborted == [Aborted(7, 0, 1)]
    assert state.last_stable_offset == 4


# ── claims that came too late ────────────────────────────────────────────────────────────────────────────────────────


def test_a_stale_claim_is_a_gap() -> None:
    state = folded(sent(0))
    late = claim(1, sent(1, 4), within(1, 0, producer=8), appended_ms=NOW + 9 * DAY, max_timestamp=99)
    state.apply(late, NOW + rules.STALE_AFTER_MS + 1)
    assert state.offset_end == state.last_stable_offset == 6
    assert (state.appended_ms, state.timestamp_max) == (NOW, 5)
    assert 8 not in state.producers
    assert judged(state, sent(1)) == Accepted()
    assert list(readable_batches(late, NOW + rules.STALE_AFTER_MS + 1)) == []


def test_three_hours_to_the_millisecond_is_not_stale() -> None:
    state = PartitionState()
    late = claim(0, sent(0, 4), plain(2))
    state.apply(late, NOW + rules.STALE_AFTER_MS)
    assert 7 in state.producers
    assert [offset for offset, _ in readable_batches(late, NOW + rules.STALE_AFTER_MS)] == [0, 4]


def test_assertion_fails_when_a_claim_does_not_follow() -> None:
    with pytest.raises(AssertionError, match="claim at 1 applied at 0"):
        PartitionState().apply(claim(1, plain()), NOW)


# ── stored folds ─────────────────────────────────────────────────────────────────────────────────────────────────────


def random_batches(luck: random.Random, shadow: PartitionState, appended_ms: int) -> list[BatchInfo]:
    """Random batches of one claim that the state accepts, from a few producers."""
    validation = BatchValidation(shadow, appended_ms)
    accepted: list[BatchInfo] = []
    while len(accepted) < luck.randint(1, 4):
        producer = luck.randint(-1, 6)
        known = shadow.producers.get(producer)
        epoch = 0 if known is None else known.epoch + luck.choice([0, 0, 0, 1])
        sequence = luck.choice([0, SEQUENCE_MAX - 1 if known is None else (known.sequence_last + 1) % 2**31])
        number = luck.randint(1, 4) if known is None else max(known.transaction, known.transaction_ended + 1)
        batch = luck.choice(
            [
                plain(luck.randint(1, 3)),
                sent(sequence, luck.randint(1, 3), producer=max(producer, 0), epoch=epoch),
                within(number, sequence, luck.randint(1, 3), producer=max(producer, 0), epoch=epoch),
                marker(
                    luck.choice([BatchKind.COMMIT, BatchKind.ABORT]), number, producer=max(producer, 0), epoch=epoch
                ),
            ]
        )
        if validation.validate(batch) == Accepted():
            accepted.append(batch)
    return accepted


def random_chain(seed: int) -> list[tuple[Claim, int]]:
    luck, shadow, chain, appended_ms = random.Random(seed), PartitionState(), [], NOW
    for _ in range(60):
        appended_ms += luck.choice([-5, 1, 1000, DAY // 3, DAY + 1])
        batches = random_batches(luck, shadow, appended_ms)
        made = claim(shadow.offset_end, *batches, appended_ms=appended_ms, max_timestamp=luck.randint(0, 1000))
        created_ms = NOW if luck.random() < 0.9 else NOW + rules.STALE_AFTER_MS + 1
        shadow.apply(made, created_ms)
        chain.append((made, created_ms))
    return chain


def applied(state: PartitionState, chain: Sequence[tuple[Claim, int]]) -> PartitionState:
    for made, created_ms in chain:
        state.apply(made, created_ms)
    return state


@pytest.mark.parametrize("seed", range(20))
def test_restored_state_equals_the_original_after_any_claim(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 4)
    chain = random_chain(seed)
    whole = applied(PartitionState(), chain)
    for stored_at in range(0, len(chain), 7):
        stored = PartitionState.decode(applied(PartitionState(), chain[:stored_at]).encode(), "x")
        resumed = applied(stored, chain[stored_at:])
        assert resumed.encode() == whole.encode()
        assert resumed.last_stable_offset == whole.last_stable_offset
        for producer in range(7):
            for sequence in (0, 1, 2, 5, SEQUENCE_MAX):
                asked = sent(sequence, producer=producer)
                at = whole.appended_ms
                assert repr(judged(resumed, asked, at)) == repr(judged(whole, asked, at))


def test_a_round_trip_keeps_everything() -> None:
    state = folded(
        sent(5, 2), within(3, 0, producer=8), marker(BatchKind.ABORT, 3, producer=8), within(4, 1, producer=8)
    )
    again = PartitionState.decode(state.encode(), "x")
    assert again.encode() == state.encode()
    assert again.producers == state.producers
    assert again.aborted == state.aborted
    assert (again.offset_end, again.last_stable_offset) == (state.offset_end, state.last_stable_offset)
    assert (again.appended_ms, again.timestamp_max, again.timestamp_offset) == (NOW, 5, 0)


def test_expired_producers_are_not_stored() -> None:
    state = folded(sent(0))
    add(state, plain(), appended_ms=NOW + DAY + 1)
    assert PartitionState.decode(state.encode(), "x").producers == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"\x90",
        b"\xc1",
        b"\xff" * 100,
        msgspec.msgpack.encode({"offset_end": 5}),
        msgspec.msgpack.encode([1, "five", 0, 0, 0, [], []]),
        msgspec.msgpack.encode([1, 5, 0, 0, 0, [[7, ["\ud7ff"]]], []]),
        folded(sent(0)).encode()[:-1],
        folded(sent(0)).encode() + b"\0",
    ],
    ids=lambda body: body[:12].hex() or "empty",
)
def test_decode_of_garbage_raises_corrupt_with_the_partition(body: bytes) -> None:
    with pytest.raises(Corrupt, match="state of partition topic/3 cannot be decoded"):
        PartitionState.decode(body, "topic/3")


def test_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(Corrupt, match=r"state of partition topic/3 has format 2, .*upgrade"):
        PartitionState.decode(msgspec.msgpack.encode([2, 5, 0, 0, 0, [], []]), "topic/3")


def test_decode_of_damaged_bytes_raises_corrupt_or_returns_a_state() -> None:
    body = folded(sent(5, 2), within(3, 0, producer=8), marker(BatchKind.ABORT, 3, producer=8)).encode()
    luck = random.Random(3)
    for _ in range(3000):
        damaged = bytearray(body)
        damaged[luck.randrange(len(body))] = luck.randrange(256)
        try:
            PartitionState.decode(bytes(damaged), "x")
        except Corrupt:
            continue


@pytest.mark.parametrize("seed", range(20))
def test_apply_own_gives_the_same_state_as_apply(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that created a claim and those that read it must have the same state, with the same eviction order."""
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 4)
    luck = random.Random(seed)
    made, read = PartitionState(), PartitionState()
    sequences: dict[int, int] = {}
    for step in range(60):
        validation = BatchValidation(made, NOW + step)
        accepted = []
        for _ in range(luck.randint(1, 4)):
            producer = luck.randint(1, 7)
            batch = plain(2) if producer == 7 else sent(sequences.get(producer, 0), producer=producer)
            if isinstance(validation.validate(batch), Accepted):
                accepted.append(batch)
                sequences[producer] = sequences.get(producer, 0) + 1
        if not accepted:
            continue
        one = claim(made.offset_end, *accepted, appended_ms=NOW + step)
        made.apply_own(one, validation)
        read.apply(one, one.stored_ms)
        assert made.encode() == read.encode()
