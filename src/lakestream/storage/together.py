"""Several calls at once, a few at a time; the first error ends the others and is raised as itself."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(calls: Sequence[Coroutine[Any, Any, T]], at_once_max: int) -> list[T]:
    """The answers in the order of the calls."""
    places = asyncio.Semaphore(at_once_max)

    async def one(call: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await call

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        for call in calls:
            call.close()  # does nothing to one that ran; one that never began would warn
    return [task.result() for task in tasks]
