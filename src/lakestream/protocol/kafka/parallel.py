"""The partitions of one request, some at a time: one after another, a round trip each would add up to a client's
time-out, and all at once, one request could name enough of them to take all memory."""

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

AT_ONCE_MAX: Final = 64


async def answers(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """In the order of the calls, which are made as they are needed."""
    found: list[T] = []
    left = iter(calls)
    while some := list(islice(left, AT_ONCE_MAX)):
        found += await asyncio.gather(*some)
    return found
