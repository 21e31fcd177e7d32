"""Runs several coroutines concurrently, with a limit."""

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import chain, islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

LIMIT: Final = 64
"""For the partitions of one request: in sequence, their round trips add up to the client's timeout; without a limit,
one request could use all memory."""


async def gather_limited(coroutines: Iterable[Coroutine[Any, Any, T]], limit: int = LIMIT) -> list[T]:
    """Returns the results in the order of the coroutines. The first error cancels the others and is raised unchanged.

    A coroutine is taken from the iterable when it can run. If a coroutine itself raises CancelledError, for example
    because a shared read was cancelled, the error is raised after the others have ended.
    """
    results: dict[int, T] = {}
    pending = enumerate(coroutines)
    first = list(islice(pending, limit))

    async def run(index: int, coroutine: Coroutine[Any, Any, T]) -> None:
        results[index] = await coroutine
        for index, coroutine in pending:
            results[index] = await coroutine

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(*one)) for one in first]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        for _, coroutine in chain(first, pending):
            coroutine.close()  # has no effect on one that ran; avoids a warning for one that did not start
    for task in tasks:
        task.result()  # a coroutine that raises CancelledError itself ends its task, but not the group
    return [results[index] for index in range(len(results))]
