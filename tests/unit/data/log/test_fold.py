"""Every rule of the fold, on claims made by hand."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from lakestream.data.log import rules
from lakestream.data.log.fold import Aborted, Accepted, Duplicate, Fold, Trial, Verdict, served
from lakestream.errors import Corrupt, Fenced, OutOfOrder, Rejected
from lakestream.metadata.claims import BatchInfo, Claim, Kind, Medium

NOW = 1_800_000_000_000
SEQUENCE_MAX = 2**31 - 1
DAY = rules.PRODUCER_EXPIRY_MS


def plain(count: int = 1) -> BatchInfo:
    return BatchInfo(0, 100, count)


def sent(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchInfo:
    last = (sequence + count - 1) % rules.SEQUENCE_END
    return BatchInfo(0, 100, count, Kind.PLAIN, producer, epoch, sequence, last)


def within(transaction: int, sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchInfo:
    last = (sequence + count - 1) % rules.SEQUENCE_END
    return BatchInfo(0, 100, count, Kind.TRANSACTIONAL, producer, epoch, sequence, last, transaction)


def marker(kind: Kind, transaction: int, *, producer: int = 7, epoch: int = 0) -> BatchInfo:
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


def add(fold: Fold, *batches: BatchInfo, appended_ms: int = NOW) -> int:
    """Append them as one claim that counts; returns its first offset."""
    offset = fold.offset_end
    fold.apply(claim(offset, *batches, appended_ms=appended_ms), NOW)
    return offset


def folded(*batches: BatchInfo) -> Fold:
    """Each batch a claim of its own."""
    fold = Fold()
    for batch in batches:
        add(fold, batch)
    return fold


def judged(fold: Fold, batch: BatchInfo, appended_ms: int = NOW) -> Verdict:
    return Trial(fold, appended_ms).judge(batch)


# ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_log() -> None:
    fold = Fold()
    assert (fold.offset_end, fold.last_stable_offset, fold.aborted, fold.producers) == (0, 0, [], {})


@pytest.mark.parametrize("sequence", [0, 1, 4711, SEQUENCE_MAX])
def test_an_unknown_producer_may_start_anywhere(sequence: int) -> None:
    assert judged(Fold(), sent(sequence)) == Accepted()


def test_batches_without_a_producer_are_never_judged() -> None:
    fold = folded(plain(3), plain(2))
    assert judged(fold, plain()) == Accepted()
    assert fold.offset_end == 5
    assert fold.producers == {}


def test_the_next_sequence_is_accepted() -> None:
    assert judged(folded(sent(0, 3)), sent(3)) == Accepted()


@pytest.mark.parametrize("sequence", [1, 2, 4, 100])
def test_gaps_and_overlaps_are_out_of_order(sequence: int) -> None:
    assert isinstance(judged(folded(sent(0, 3)), sent(sequence)), OutOfOrder)


def test_the_refusal_names_producer_and_sequences() -> None:
    verdict = judged(folded(sent(0, 3)), sent(9))
    assert isinstance(verdict, OutOfOrder)
    assert str(verdict) == "producer 7 epoch 0: sequence 9 does not follow 2"


def test_sequences_wrap() -> None:
    fold = folded(sent(SEQUENCE_MAX - 1, 2))
    assert judged(fold, sent(0)) == Accepted()
    assert isinstance(judged(fold, sent(1)), OutOfOrder)


def test_a_batch_may_wrap_inside() -> None:
    fold = folded(sent(SEQUENCE_MAX, 3))
    assert fold.producers[7].sequence_last == 1
    assert judged(fold, sent(2)) == Accepted()
    assert judged(fold, sent(SEQUENCE_MAX, 3)) == Duplicate(0)


def test_producers_do_not_disturb_one_another() -> None:
    fold = folded(sent(0, producer=1), sent(0, producer=2), sent(1, producer=1))
    assert judged(fold, sent(1, producer=2)) == Accepted()
    assert judged(fold, sent(2, producer=1)) == Accepted()


# ── duplicates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_five_batches_are_known_as_duplicates() -> None:
    fold = folded(*(sent(number * 2, 2) for number in range(7)))
    for number in range(2, 7):
        assert judged(fold, sent(number * 2, 2)) == Duplicate(number * 2)
    assert isinstance(judged(fold, sent(2, 2)), OutOfOrder), "the sixth last is forgotten"
    assert len(fold.producers[7].recent) == rules.RECENT_BATCHES


def test_a_duplicate_is_the_same_batch_not_one_that_starts_alike() -> None:
    fold = folded(sent(0, 3))
    assert isinstance(judged(fold, sent(0, 2)), OutOfOrder)


def test_a_duplicate_within_one_claim_has_the_offset_it_will_get() -> None:
    trial = Trial(folded(plain(10)), NOW)
    assert trial.judge(sent(0, 2)) == Accepted()
    assert trial.judge(plain(5)) == Accepted()
    assert trial.judge(sent(2)) == Accepted()
    assert trial.judge(sent(2)) == Duplicate(17)
    assert trial.judge(sent(0, 2)) == Duplicate(10)
    assert trial.offset == 18


def test_a_refused_batch_does_not_count_for_those_that_follow() -> None:
    trial = Trial(folded(sent(0)), NOW)
    assert isinstance(trial.judge(sent(2)), OutOfOrder)
    assert isinstance(trial.judge(sent(3)), OutOfOrder)
    assert trial.judge(sent(1)) == Accepted()
    assert trial.judge(sent(2)) == Accepted()
    assert trial.offset == 3


def test_a_trial_leaves_the_fold_alone() -> None:
    fold = folded(sent(0))
    before = fold.encode()
    trial = Trial(fold, NOW + 5)
    trial.judge(sent(1))
    trial.judge(within(1, 0, producer=8))
    assert fold.encode() == before


# ── epochs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_old_epoch_is_fenced() -> None:
    fold = folded(sent(0, epoch=3))
    assert isinstance(judged(fold, sent(1, epoch=2)), Fenced)
    assert isinstance(judged(fold, marker(Kind.COMMIT, 1, epoch=2)), Fenced)


def test_a_new_epoch_starts_at_zero() -> None:
    fold = folded(sent(0, 5, epoch=3))
    assert isinstance(judged(fold, sent(5, epoch=4)), OutOfOrder)
    assert judged(fold, sent(0, epoch=4)) == Accepted()


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    fold = folded(sent(0, epoch=3), sent(1, epoch=3), sent(0, 2, epoch=4))
    assert judged(fold, sent(0, 2, epoch=4)) == Duplicate(2)
    assert isinstance(judged(fold, sent(0, epoch=4)), OutOfOrder)
    assert isinstance(judged(fold, sent(1, epoch=3)), Fenced)


def test_the_same_first_batch_in_a_new_epoch_is_no_duplicate() -> None:
    assert judged(folded(sent(0, epoch=3)), sent(0, epoch=4)) == Accepted()


# ── what is forgotten ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_producer_expires_by_the_append_time_of_claims() -> None:
    fold = folded(sent(0))
    add(fold, plain(), appended_ms=NOW + DAY)
    assert isinstance(judged(fold, sent(9), NOW + DAY), OutOfOrder), "a day, to the millisecond, is not too long"
    add(fold, plain(), appended_ms=NOW + DAY + 1)
    assert judged(fold, sent(9)) == Accepted()


def test_append_time_never_runs_backwards() -> None:
    """A broker whose clock is behind neither brings a producer back nor dates what it writes into the past."""
    fold = folded(sent(0))
    add(fold, plain(), appended_ms=NOW + DAY + 1)
    add(fold, sent(0, producer=8), appended_ms=NOW)
    assert fold.appended_ms == NOW + DAY + 1
    assert judged(fold, sent(9), NOW) == Accepted()
    assert fold.producers[8].appended_ms == NOW + DAY + 1


def test_time_in_batches_counts_for_nothing() -> None:
    fold = folded(sent(0))
    fold.apply(claim(1, plain(), max_timestamp=NOW + 100 * DAY), NOW)
    assert isinstance(judged(fold, sent(9)), OutOfOrder)
    assert (fold.timestamp_max, fold.timestamp_offset) == (NOW + 100 * DAY, 1)


def test_activity_keeps_a_producer() -> None:
    fold = folded(sent(0))
    add(fold, sent(1), appended_ms=NOW + DAY)
    add(fold, plain(), appended_ms=NOW + 2 * DAY)
    assert isinstance(judged(fold, sent(9), NOW + 2 * DAY), OutOfOrder)


def test_a_trial_expires_by_the_time_it_would_write() -> None:
    """The claim carries that time, so every fold that reads the claim agrees."""
    fold = folded(sent(0))
    later = NOW + DAY + 1
    assert judged(fold, sent(9), later) == Accepted()
    fold.apply(claim(1, sent(9), appended_ms=later), NOW)
    assert [recent.offset_start for recent in fold.producers[7].recent] == [1], "it began anew"


def test_an_open_transaction_never_expires() -> None:
    fold = folded(within(1, 0))
    add(fold, plain(), appended_ms=NOW + 3 * DAY)
    assert fold.last_stable_offset == 0
    assert Fold.decode(fold.encode(), "x").last_stable_offset == 0
    add(fold, marker(Kind.ABORT, 1), appended_ms=NOW + 3 * DAY)
    assert fold.last_stable_offset == fold.offset_end
    assert fold.aborted == [Aborted(7, 0, 2)]


def test_producers_are_capped_and_the_least_recent_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 3)
    fold = folded(*(sent(0, producer=number) for number in (1, 2, 3)), sent(1, producer=1), sent(0, producer=4))
    assert list(fold.producers) == [3, 1, 4]
    assert judged(fold, sent(9, producer=2)) == Accepted()
    assert isinstance(judged(fold, sent(9, producer=3)), OutOfOrder)


def test_the_cap_spares_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 2)
    fold = folded(within(1, 0, producer=1), within(1, 0, producer=2), sent(0, producer=3), within(1, 0, producer=4))
    assert list(fold.producers) == [1, 2, 4]
    assert fold.last_stable_offset == 0
    add(fold, marker(Kind.COMMIT, 1, producer=1))
    assert list(fold.producers) == [2, 4]
    assert fold.last_stable_offset == 1


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_began() -> None:
    fold = folded(plain(5), within(1, 0, 2, producer=1), within(9, 0, producer=2), within(1, 2, producer=1))
    assert fold.last_stable_offset == 5
    add(fold, marker(Kind.COMMIT, 1, producer=1))
    assert fold.last_stable_offset == 7
    add(fold, marker(Kind.COMMIT, 9, producer=2))
    assert fold.last_stable_offset == fold.offset_end == 11
    assert fold.aborted == []


def test_markers_take_an_offset() -> None:
    assert folded(within(1, 0), marker(Kind.COMMIT, 1), marker(Kind.COMMIT, 1)).offset_end == 3


def test_an_abort_is_remembered_with_its_marker() -> None:
    fold = folded(plain(5), within(1, 0, 2), plain(), marker(Kind.ABORT, 1), plain())
    assert fold.aborted == [Aborted(7, 5, 8)]
    assert fold.last_stable_offset == 10


def test_aborted_ranges_are_found_by_overlap() -> None:
    fold = folded(within(1, 0), marker(Kind.ABORT, 1), within(2, 1), marker(Kind.ABORT, 2))
    first, second = Aborted(7, 0, 1), Aborted(7, 2, 3)
    assert fold.aborted_in(0, 4) == [first, second]
    assert fold.aborted_in(1, 2) == [first]
    assert fold.aborted_in(2, 3) == [second]
    assert fold.aborted_in(4, 9) == []
    fold.forget_aborted_below(2)
    assert fold.aborted == [second]


def test_a_transaction_inside_one_claim() -> None:
    fold = Fold()
    fold.apply(claim(0, within(1, 0), marker(Kind.ABORT, 1), within(2, 1), plain()), NOW)
    assert fold.aborted == [Aborted(7, 0, 1)]
    assert fold.last_stable_offset == 2


def test_sequences_go_on_through_transactions() -> None:
    fold = folded(within(1, 0, 2), marker(Kind.COMMIT, 1))
    assert judged(fold, within(2, 2)) == Accepted()
    assert isinstance(judged(fold, within(2, 3)), OutOfOrder)


def test_a_retry_after_the_commit_is_a_duplicate() -> None:
    fold = folded(within(1, 0, 2), marker(Kind.COMMIT, 1))
    assert judged(fold, within(1, 0, 2)) == Duplicate(0)


def test_a_batch_of_an_ended_transaction_is_refused() -> None:
    fold = folded(within(4, 0), marker(Kind.ABORT, 4))
    for number in (3, 4):
        verdict = judged(fold, within(number, 1))
        assert isinstance(verdict, Rejected)
        assert "has ended" in str(verdict)
    assert judged(fold, within(5, 1)) == Accepted()


def test_a_transaction_that_ended_before_anything_was_written_here_is_refused_too() -> None:
    for fold in (folded(marker(Kind.ABORT, 4)), folded(sent(0), marker(Kind.ABORT, 4))):
        first = 0 if fold.offset_end == 1 else 1
        assert isinstance(judged(fold, within(4, first)), Rejected)
        assert judged(fold, within(5, first)) == Accepted()


def test_another_transaction_may_not_begin_while_one_is_open() -> None:
    fold = folded(within(1, 0))
    assert isinstance(judged(fold, within(2, 1)), Rejected)
    assert isinstance(judged(fold, sent(1)), Rejected), "nor a batch outside of it"
    assert judged(fold, within(1, 1)) == Accepted()


@pytest.mark.parametrize("kind", [Kind.COMMIT, Kind.ABORT])
@pytest.mark.parametrize("number", [1, 3])
def test_a_marker_of_another_transaction_is_ignored(kind: Kind, number: int) -> None:
    fold = folded(within(1, 0), marker(Kind.COMMIT, 1), within(2, 1))
    add(fold, marker(kind, number))
    assert fold.last_stable_offset == 2
    assert fold.aborted == []
    assert judged(fold, within(2, 2)) == Accepted()


def test_a_marker_with_a_new_epoch_ends_the_transaction_and_fences() -> None:
    fold = folded(within(1, 0, epoch=3), marker(Kind.ABORT, 1, epoch=4))
    assert fold.last_stable_offset == 2
    assert isinstance(judged(fold, within(1, 1, epoch=3)), Fenced)
    assert judged(fold, within(2, 0, epoch=4)) == Accepted()
    assert isinstance(judged(fold, within(2, 1, epoch=4)), OutOfOrder)


def test_a_marker_twice_does_no_harm() -> None:
    fold = folded(within(1, 0), marker(Kind.ABORT, 1), marker(Kind.ABORT, 1), marker(Kind.COMMIT, 1))
    assert fold.aborted == [Aborted(7, 0, 1)]
    assert fold.last_stable_offset == 4


# ── claims that came too late ────────────────────────────────────────────────────────────────────────────────────────


def test_a_stale_claim_is_a_gap() -> None:
    fold = folded(sent(0))
    late = claim(1, sent(1, 4), within(1, 0, producer=8), appended_ms=NOW + 9 * DAY, max_timestamp=99)
    fold.apply(late, NOW + rules.STALE_AFTER_MS + 1)
    assert fold.offset_end == fold.last_stable_offset == 6
    assert (fold.appended_ms, fold.timestamp_max) == (NOW, 5)
    assert 8 not in fold.producers
    assert judged(fold, sent(1)) == Accepted()
    assert list(served(late, NOW + rules.STALE_AFTER_MS + 1)) == []


def test_three_hours_to_the_millisecond_is_not_stale() -> None:
    fold = Fold()
    late = claim(0, sent(0, 4), plain(2))
    fold.apply(late, NOW + rules.STALE_AFTER_MS)
    assert 7 in fold.producers
    assert [offset for offset, _ in served(late, NOW + rules.STALE_AFTER_MS)] == [0, 4]


def test_a_claim_out_of_place_is_a_bug_of_ours() -> None:
    with pytest.raises(AssertionError, match="claim at 1 applied at 0"):
        Fold().apply(claim(1, plain()), NOW)


# ── stored folds ─────────────────────────────────────────────────────────────────────────────────────────────────────


def random_batches(luck: random.Random, shadow: Fold, appended_ms: int) -> list[BatchInfo]:
    """A claim's worth of batches that the fold accepts, from few producers that come and go."""
    trial = Trial(shadow, appended_ms)
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
                marker(luck.choice([Kind.COMMIT, Kind.ABORT]), number, producer=max(producer, 0), epoch=epoch),
            ]
        )
        if trial.judge(batch) == Accepted():
            accepted.append(batch)
    return accepted


def random_chain(seed: int) -> list[tuple[Claim, int]]:
    luck, shadow, chain, appended_ms = random.Random(seed), Fold(), [], NOW
    for _ in range(60):
        appended_ms += luck.choice([-5, 1, 1000, DAY // 3, DAY + 1])
        batches = random_batches(luck, shadow, appended_ms)
        made = claim(shadow.offset_end, *batches, appended_ms=appended_ms, max_timestamp=luck.randint(0, 1000))
        created_ms = NOW if luck.random() < 0.9 else NOW + rules.STALE_AFTER_MS + 1
        shadow.apply(made, created_ms)
        chain.append((made, created_ms))
    return chain


def applied(fold: Fold, chain: Sequence[tuple[Claim, int]]) -> Fold:
    for made, created_ms in chain:
        fold.apply(made, created_ms)
    return fold


@pytest.mark.parametrize("seed", range(20))
def test_it_does_not_matter_where_a_fold_was_stored(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 4)
    chain = random_chain(seed)
    whole = applied(Fold(), chain)
    for stored_at in range(0, len(chain), 7):
        stored = Fold.decode(applied(Fold(), chain[:stored_at]).encode(), "x")
        resumed = applied(stored, chain[stored_at:])
        assert resumed.encode() == whole.encode()
        assert resumed.last_stable_offset == whole.last_stable_offset
        for producer in range(7):
            for sequence in (0, 1, 2, 5, SEQUENCE_MAX):
                asked = sent(sequence, producer=producer)
                at = whole.appended_ms
                assert repr(judged(resumed, asked, at)) == repr(judged(whole, asked, at))


def test_a_round_trip_keeps_everything() -> None:
    fold = folded(sent(5, 2), within(3, 0, producer=8), marker(Kind.ABORT, 3, producer=8), within(4, 1, producer=8))
    again = Fold.decode(fold.encode(), "x")
    assert again.encode() == fold.encode()
    assert again.producers == fold.producers
    assert again.aborted == fold.aborted
    assert (again.offset_end, again.last_stable_offset) == (fold.offset_end, fold.last_stable_offset)
    assert (again.appended_ms, again.timestamp_max, again.timestamp_offset) == (NOW, 5, 0)


def test_expired_producers_are_not_stored() -> None:
    fold = folded(sent(0))
    add(fold, plain(), appended_ms=NOW + DAY + 1)
    assert Fold.decode(fold.encode(), "x").producers == {}


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
def test_garbage_is_corrupt_and_named(body: bytes) -> None:
    with pytest.raises(Corrupt, match="fold of topic/3 cannot be read"):
        Fold.decode(body, "topic/3")


def test_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(Corrupt, match=r"fold of topic/3 has format 2; .*upgrade"):
        Fold.decode(msgspec.msgpack.encode([2, 5, 0, 0, 0, [], []]), "topic/3")


def test_any_damage_is_corrupt_or_a_fold_never_a_crash() -> None:
    body = folded(sent(5, 2), within(3, 0, producer=8), marker(Kind.ABORT, 3, producer=8)).encode()
    luck = random.Random(3)
    for _ in range(3000):
        damaged = bytearray(body)
        damaged[luck.randrange(len(body))] = luck.randrange(256)
        try:
            Fold.decode(bytes(damaged), "x")
        except Corrupt:
            continue


@pytest.mark.parametrize("seed", range(20))
def test_an_own_claim_is_adopted_as_it_would_be_applied(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that made a claim and brokers that read it must know the same, down to who is forgotten next."""
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 4)
    luck = random.Random(seed)
    made, read = Fold(), Fold()
    sequences: dict[int, int] = {}
    for step in range(60):
        trial = Trial(made, NOW + step)
        accepted = []
        for _ in range(luck.randint(1, 4)):
            producer = luck.randint(1, 7)
            batch = plain(2) if producer == 7 else sent(sequences.get(producer, 0), producer=producer)
            if isinstance(trial.judge(batch), Accepted):
                accepted.append(batch)
                sequences[producer] = sequences.get(producer, 0) + 1
        if not accepted:
            continue
        one = claim(made.offset_end, *accepted, appended_ms=NOW + step)
        made.adopt(one, trial)
        read.apply(one, one.stored_ms)
        assert made.encode() == read.encode()
