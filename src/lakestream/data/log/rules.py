"""The rules of the log protocol, each a small pure function, on one page.

Each closes a hole: `make sim-mutants` switches the rules of the protocol off one by one, most of them here, and shows
what breaks. They are called as `rules.name(...)` so that it can.
"""

from collections.abc import Sequence
from typing import Final

from lakestream.metadata.claims import Claim, Dated

STALE_AFTER_MS: Final = 3 * 60 * 60 * 1000
"""A claim made later than this after its bytes were stored is skipped by every fold. A rule, not a setting."""

ORPHAN_AFTER_MS: Final = 6 * 60 * 60 * 1000
"""Stored bytes that nobody claimed are swept after this: no claim that counts is made that late."""

PRODUCER_EXPIRY_MS: Final = 24 * 60 * 60 * 1000
PRODUCERS_MAX: Final = 5_000
RECENT_BATCHES: Final = 5
CLAIM_BATCHES_MAX: Final = 1_000
SEQUENCE_END: Final = 2**31


def floor_allows(floor: int, offset: int) -> bool:
    """A create at `offset`, or a scan from it, counts only if the floor read with it is not above: below the floor a
    key may be absent because it was trimmed, and whoever creates it there gives out offsets that are long taken."""
    return floor <= offset


def is_stale(claim: Claim, created_ms: int) -> bool:
    """Its maker stalled between storing and claiming: the sweeper may have taken the bytes for an orphan."""
    return created_ms - claim.stored_ms > STALE_AFTER_MS


def is_mine(found: Claim, tried: Claim) -> bool:
    """A refused or unanswered create may have met itself: look before trying again."""
    return found.claim_id == tried.claim_id


def is_gapless(claims: Sequence[Dated], offset_start: int) -> bool:
    """A gap in a chain means that a trim went by between two reads."""
    expected = offset_start
    for dated in claims:
        if dated.claim.offset_start != expected:
            return False
        expected = dated.claim.offset_end
    return True


def needs_confirming(refusals: int, accepted: int) -> bool:
    """A refusal is believed only from a view that is known to be newest. A create that succeeds proves its view; where
    nothing is left to create, the store is asked."""
    return refusals > 0 and accepted == 0


def saves_fold(offset_mine: int, offset_stored: int) -> bool:
    """A stored fold only moves forward."""
    return offset_mine > offset_stored


def trim_point(claims: Sequence[Dated], floor: int, bound: int) -> int:
    """How far the floor may be raised, from the claims at and above it: to the end of the last one that lies wholly
    below `bound`. Always a claim's border, so that a claim at or above the floor is always one that counts."""
    point = floor
    for dated in claims:
        if dated.claim.offset_end > bound:
            break
        point = dated.claim.offset_end
    return point


def trim_bound(upto: int, table_end: int, fold_offset: int) -> int:
    """Only what is in the table, and in the stored fold, may go."""
    return min(upto, table_end, fold_offset)


def epoch_is_current(epoch: int, epoch_known: int) -> bool:
    return epoch >= epoch_known


def sequence_follows(sequence_first: int, sequence_last: int) -> bool:
    return sequence_first == (sequence_last + 1) % SEQUENCE_END


def opens_at(offset_asked: int, offset_now: int) -> bool:
    """A transaction may begin where it was asked whether it goes on, and nowhere later: a marker may lie between."""
    return offset_asked == offset_now


def may_sweep(*, pinned: int, unclaimed: int, sealed: bool, age_ms: int) -> bool:
    """Bytes go when every range in them was claimed and has left the chain. A range that nobody claimed may still be
    claimed, and a segment that was not sealed may still grow, until so late that a claim no longer counts."""
    if pinned:
        return False
    if unclaimed or not sealed:
        return age_ms > ORPHAN_AFTER_MS
    return True
