"""What one consumer has not taken yet."""

import asyncio
from contextlib import aclosing

import pytest

from lakestream.errors import Unavailable
from lakestream.metadata.store import Changes
from lakestream.metadata.watchers import PATHS_MAX, Watchers


async def test_a_consumer_too_far_behind_looks_at_everything() -> None:
    watchers = Watchers()
    async with aclosing(watchers.watch("/a")) as changes:
        await anext(changes)
        watchers.tell([f"/a/{n}" for n in range(PATHS_MAX)])
        watchers.tell(["/b/1"])
        assert len((await anext(changes)).paths) == PATHS_MAX
        watchers.tell([f"/a/{n}" for n in range(PATHS_MAX + 1)])
        assert await anext(changes) == Changes(frozenset(), everything=True)
        watchers.tell_everything()
        watchers.tell(["/a/1"])
        assert await anext(changes) == Changes(frozenset(["/a/1"]), everything=True)


async def test_who_leaves_is_forgotten() -> None:
    watchers = Watchers()
    async with aclosing(watchers.watch("")) as changes:
        await anext(changes)
        assert len(watchers) == 1
    assert len(watchers) == 0


async def test_closing_is_heard_by_those_who_wait() -> None:
    watchers = Watchers()
    changes = watchers.watch("")
    await anext(changes)
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    watchers.close("closed")
    with pytest.raises(Unavailable, match="closed"):
        await waiting
