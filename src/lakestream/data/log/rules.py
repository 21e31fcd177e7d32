"""Rules of the log protocol, each a small pure function.

Each closes a hole: `make sim-mutants` switches the rules of the protocol off one by one, most of them here, and the
simulation must detect it. Call them as `rules.name(...)`, so that they can be switched off.
"""

from collections.abc import Sequence
from typing import Final

from lakestream.metadata.claims import Claim, StoredClaim

STALE_AFTER_MS: Final = 3 * 60 * 60 * 1000
"""A claim created later than this after its bytes were stored is void. A rule, not a setting."""

ORPHAN_AFTER_MS: Final = 6 * 60 * 60 * 1000
"""Unclaimed stored bytes are deleted after this time: no valid claim is created that late."""

PRODUCER_EXPIRY_MS: Final = 24 * 60 * 60 * 1000
PRODUCERS_MAX: Final = 5_000
RECENT_BATCHES: Final = 5
CLAIM_BATCHES_MAX: Final = 1_000
SEQUENCE_END: Final = 2**31


def floor_allows(floor: int, offset: int) -> bool:
    """Returns whether a create at `offset`, or a scan from it, is valid: the floor read with it must not be above it.

    Below the floor a key may be absent because it was trimmed, and a claim created there would reuse offsets."""
    return floor <= offset


def is_stale(claim: Claim, created_ms: int) -> bool:
    """Returns whether its broker stalled between storing and claiming: the bytes may have been deleted as an orphan."""
    return created_ms - claim.stored_ms > STALE_AFTER_MS


def is_own_claim(found: Claim, tried: Claim) -> bool:
    """Returns whether the claim that a rejected or unanswered create finds is its own: read it before a retry."""
    return found.claim_id == tried.claim_id


def is_gapless(claims: Sequence[StoredClaim], offset_start: int) -> bool:
    """Returns whether the claims follow one another. A gap means that a trim happened between two reads."""
    expected = offset_start
    for stored in claims:
        if stored.claim.offset_start != expected:
            return False
        expected = stored.claim.offset_end
    return True


def needs_confirming(rejections: int, accepted: int) -> bool:
    """Returns whether a rejection needs a confirmed read of the view. A create that succeeds proves that its view was
    up to date; without one, the store must be read."""
    return rejections > 0 and accepted == 0


def saves_state(own_offset: int, stored_offset: int) -> bool:
    """Returns whether the state may replace the stored one, which only moves forward."""
    return own_offset > stored_offset


def trim_point(claims: Sequence[StoredClaim], floor: int, bound: int) -> int:
    """Returns how far the floor may be raised, from the claims at and above it: to the end of the last one that lies
    wholly below `bound`. Always a claim's border, so that a claim at or above the floor is always a valid one."""
    point = floor
    for stored in claims:
        if stored.claim.offset_end > bound:
            break
        point = stored.claim.offset_end
    return point


def trim_bound(upto: int, table_end: int, saved_offset: int) -> int:
    """Returns the end of what may be trimmed: it must be in the table and in the stored state."""
    return min(upto, table_end, saved_offset)


def epoch_is_current(epoch: int, producer_epoch: int) -> bool:
    return epoch >= producer_epoch


def sequence_follows(sequence_first: int, sequence_last: int) -> bool:
    return sequence_first == (sequence_last + 1) % SEQUENCE_END


def opens_at(checked_offset: int, current_offset: int) -> bool:
    """Returns whether a transaction may start: only at the offset where it was checked to be ongoing. A marker may lie
    between that offset and a later one."""
    return checked_offset == current_offset


def may_delete(*, referenced: int, unclaimed: int, sealed: bool, age_ms: int) -> bool:
    """Returns whether an object or segment may be deleted: every range in it was claimed and has left its chain.

    An unclaimed range may still be claimed, and an unsealed segment may still grow, until a claim on it would be
    stale."""
    if referenced:
        return False
    if unclaimed or not sealed:
        return age_ms > ORPHAN_AFTER_MS
    return True
