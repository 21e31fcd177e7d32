"""Changes that a consumer of a watch has not received yet."""

import asyncio
from contextlib import aclosing

import pytest

from lakestream.errors import Unavailable
from lakestream.metadata.store import Changes
from lakestream.metadata.watchers import PATHS_MAX, Watchers


async def test_consumer_with_too_many_unread_paths_gets_everything() -> None:
    watchers = Watchers()
    async with aclosing(watchers.watch("/a")) as changes:
        await anext(changes)
        watchers.notify([f"/a/{n}" for n in range(PATHS_MAX)])
        watchers.notify(["/b/1"])
        assert len((await anext(changes)).paths) == PATHS_MAX
        watchers.notify([f"/a/{n}" for n in range(PATHS_MAX + 1)])
        assert await anext(changes) == Changes(frozenset(), everything=True)
        watchers.notify_everything()
        watchers.notify(["/a/1"])
        assert await anext(changes) == Changes(frozenset(["/a/1"]), everything=True)


async def test_closed_watch_is_removed() -> None:
    watchers = Watchers()
    async with aclosing(watchers.watch("")) as changes:
        await anext(changes)
        assert len(watchers) == 1
    assert len(watchers) == 0


async def test_close_raises_unavailable_in_waiting_watches() -> None:
    watchers = Watchers()
    changes = watchers.watch("")
    await anext(changes)
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    watchers.close("closed")
    with pytest.raises(Unavailable, match="closed"):
        await waiting
