"""Topics that somebody waits for: a round is made for them at once, and they come first in it.

Before: metadata/asks.py, whose change feed wakes us.  After: driver.py, plan.chosen.
"""

import asyncio
import logging
from typing import Final

from lakestream.errors import LakestreamError
from lakestream.metadata.asks import Asks
from lakestream.pipeline.backlog import ChangedLogs

log = logging.getLogger(__name__)

FEED_RETRY_MS: Final = 200
HURRY_S: Final = 90.0
"""Nobody waits for longer: an ask that is still there was left behind."""


class AskedTopics:
    def __init__(self, asks: Asks, changed: ChangedLogs) -> None:
        self._asks = asks
        self._changed = changed
        self._waiting: dict[str, tuple[str, float]] = {}  # by the ask's name: the topic's id, until when
        self.news = asyncio.Event()
        """Set when somebody new waits."""

    def take(self) -> frozenset[str]:
        """The ids of all topics that are waited for now. For those who come later there is news again."""
        self.news.clear()
        now_s = asyncio.get_running_loop().time()
        self._waiting = {name: waiting for name, waiting in self._waiting.items() if waiting[1] > now_s}
        return frozenset(topic_id for topic_id, _ in self._waiting.values())

    async def follow(self) -> None:
        while True:
            try:
                async for _ in self._asks.watch():
                    await self._look()
            except LakestreamError as error:
                log.warning("pipeline.asks_unknown error=%s", error)
            await asyncio.sleep(FEED_RETRY_MS / 1000)

    async def _look(self) -> None:
        found = await self._asks.all()
        until_s = asyncio.get_running_loop().time() + HURRY_S
        new = [one for one in found if one.name not in self._waiting]
        self._waiting = {name: self._waiting.get(name, (ask.topic_id, until_s)) for name, ask in found}
        for _, ask in new:
            self._changed.look_again(ask.partitions())  # its own news may have been lost
            self._changed.news.set()
            self.news.set()
