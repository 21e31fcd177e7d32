"""Watches refresh requests: their topics are moved immediately, and first in the micro-batch.

Before: metadata/refresh_requests.py, which brokers write.  After: driver.py, plan.select_backlogs.
"""

import asyncio
import logging
from typing import Final

from lakestream.errors import LakestreamError
from lakestream.metadata.refresh_requests import RefreshRequests
from lakestream.pipeline.backlog import ChangedPartitions

log = logging.getLogger(__name__)

WATCH_RETRY_MS: Final = 200
EXPIRY_S: Final = 90.0
"""No client waits longer: a request that still exists was left by a broker that ended."""


class RefreshRequestWatcher:
    def __init__(self, requests: RefreshRequests, changed: ChangedPartitions) -> None:
        self._requests = requests
        self._changed = changed
        self._waiting: dict[str, tuple[str, float]] = {}  # by name of the request: topic id, time of expiry
        self.news = asyncio.Event()
        """Set when there is a new request."""

    def take(self) -> frozenset[str]:
        """Returns the ids of all topics with requests. Later requests set `news` again."""
        self.news.clear()
        now_s = asyncio.get_running_loop().time()
        self._waiting = {name: waiting for name, waiting in self._waiting.items() if waiting[1] > now_s}
        return frozenset(topic_id for topic_id, _ in self._waiting.values())

    async def follow(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                async for _ in self._requests.watch():
                    await self._refresh()
            except LakestreamError as error:
                log.warning("pipeline.refresh_requests_failed error=%s", error)
            await asyncio.sleep(WATCH_RETRY_MS / 1000)

    async def _refresh(self) -> None:
        found = await self._requests.all()
        until_s = asyncio.get_running_loop().time() + EXPIRY_S
        new = [one for one in found if one.name not in self._waiting]
        self._waiting = {name: self._waiting.get(name, (one.topic_id, until_s)) for name, one in found}
        for _, request in new:
            self._changed.requeue(request.partitions())  # the watch event of the appended records may have been lost
            self._changed.news.set()
            self.news.set()
