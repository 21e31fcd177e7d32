"""Checks once at startup that the store works and that its clock agrees with this machine's.

A small object is created, created again (which must fail), read, overwritten and deleted: this checks all permissions
and guarantees that a broker needs, in about a second, before it accepts requests.
"""

from typing import NamedTuple

from lakestream.clock import CLOCK_SKEW_MS_MAX, Clock, Ids
from lakestream.errors import Conflict, Misconfigured
from lakestream.model import Span
from lakestream.storage.object_store import ObjectStore

_STORE_RESOLUTION_MS = 1000
_BODY = b"lakestream probe"


class StoreCheck(NamedTuple):
    clock_offset_ms: int
    """The store's clock minus this machine's; 0 if the difference is below the store's resolution (often 1 s)."""


async def check_store(store: ObjectStore, name: str, clock: Clock, ids: Ids) -> StoreCheck:
    """Raises Misconfigured or Unavailable, in one line, if the store is not usable. `name` is for the message."""
    key = f"probe/{ids.new()}"
    before_ms = clock.now_ms()
    await store.create(key, [_BODY])
    after_ms = clock.now_ms()
    try:
        modified_ms = (await store.head(key)).modified_ms
        await _check_guarantees(store, name, key)
    finally:
        await store.delete([key])
    return StoreCheck(clock_offset_ms(before_ms, after_ms, modified_ms))


async def _check_guarantees(store: ObjectStore, name: str, key: str) -> None:
    if await store.get_ranges(key, [Span(11, 16), Span(0, 10)]) != [b"probe", b"lakestream"]:
        raise Misconfigured(f"{name} returns other bytes than were written: Lakestream cannot use this store")
    try:
        await store.create(key, [_BODY])
    except Conflict:
        pass
    else:
        raise Misconfigured(f"{name} ignores create-only writes (If-None-Match): Lakestream cannot use this store")
    await store.put(key, [_BODY, _BODY])
    if (await store.head(key)).size != 2 * len(_BODY):
        raise Misconfigured(f"{name} returns the old object after an overwrite: Lakestream cannot use this store")


def clock_offset_ms(before_ms: int, after_ms: int, modified_ms: int) -> int:
    """Returns the smallest offset for an object written between `before` and `after` and dated `modified` (pure)."""
    resolution_ms = 0 if modified_ms % _STORE_RESOLUTION_MS else _STORE_RESOLUTION_MS - 1
    if modified_ms > after_ms:
        return modified_ms - after_ms
    return min(0, modified_ms + resolution_ms - before_ms)


def check_clock(check: StoreCheck, name: str) -> None:
    """Raises Misconfigured if the clocks differ too much: a broker with a wrong clock must not start."""
    if abs(check.clock_offset_ms) > CLOCK_SKEW_MS_MAX:
        direction = "behind" if check.clock_offset_ms > 0 else "ahead of"
        seconds = abs(check.clock_offset_ms) // 1000
        raise Misconfigured(f"this machine's clock is {seconds} s {direction} that of {name}: set it (NTP), then start")
