"""Sessions of ephemeral records. Oxia's sessions belong to one shard; this one opens one in each shard that it needs.

Above: store.py.  Below: shards.py, connection.py.

A session is lost when the server reports it, or when no keep-alive succeeded for longer than its timeout. The time is
counted from when the last successful one was *sent*, so it never ends later than on the server.
"""

import asyncio
from contextlib import suppress

from lakestream.errors import Missing
from lakestream.metadata.oxia.connection import OxiaNodes
from lakestream.metadata.oxia.errors import CallFailed, Effect, for_caller
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards

TIMEOUT_MS_MIN = 2_000
TIMEOUT_MS_MAX = 300_000
"""Limits of Oxia, to which timeouts are clamped."""


class OxiaSession:
    def __init__(
        self, nodes: OxiaNodes, shards: Shards, settings: OxiaSettings, timeout_ms: int, identity: str
    ) -> None:
        self._nodes = nodes
        self._shards = shards
        self._settings = settings
        self._timeout_ms = min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)
        self._identity = identity
        self._ids: dict[int, int] = {}
        self._alive_s: dict[int, float] = {}
        self._opening = asyncio.Lock()
        self._lost = asyncio.Event()
        self._task = asyncio.create_task(self._keep_alive(), name="oxia.session")

    @property
    def lost(self) -> bool:
        now = asyncio.get_running_loop().time()
        if any(now - alive_s > self._timeout_ms / 1000 for alive_s in self._alive_s.values()):
            self.lose()
        return self._lost.is_set()

    def lose(self) -> None:
        self._lost.set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def id_on(self, shard: int) -> int:
        """Returns its id in a shard, and opens it there if necessary.

        Raises Missing if the session is lost, Unavailable if the shard does not respond in time.
        """
        async with self._opening:
            if self.lost:
                raise Missing("the session has ended: open another")
            if shard not in self._ids:
                await self._open(shard)
            return self._ids[shard]

    async def close(self) -> None:
        """Ends the session. If a shard does not respond, its records are deleted after the timeout."""
        already_lost = self.lost
        self.lose()
        self._task.cancel()
        await asyncio.wait([self._task])
        if not already_lost:
            await asyncio.gather(*(self._close(shard, session_id) for shard, session_id in self._ids.items()))

    @property
    def _request_timeout_s(self) -> float:
        return min(self._settings.request_timeout_ms, self._timeout_ms // 3) / 1000

    async def _open(self, shard: int) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.retry_budget_ms / 1000
        while True:
            sent_s = loop.time()
            try:
                address = await self._shards.leader_of(shard, self._request_timeout_s)
                # If the response is lost, the session expires, because it gets no keep-alives.
                self._ids[shard] = await self._nodes[address].create_session(
                    shard, self._timeout_ms, self._identity, self._request_timeout_s
                )
                self._alive_s[shard] = sent_s
                return
            except CallFailed as failure:
                if failure.effect is Effect.REFUSED or loop.time() >= deadline_s:
                    raise for_caller(f"metadata store {self._settings}, shard {shard}", failure) from None
            await self._shards.refresh()

    async def _close(self, shard: int, session_id: int) -> None:
        with suppress(CallFailed):
            address = await self._shards.leader_of(shard, self._request_timeout_s)
            await self._nodes[address].close_session(shard, session_id, self._request_timeout_s)

    async def _keep_alive(self) -> None:
        """Sends keep-alives at a third of the timeout, and sooner after a failure."""
        interval_s = self._timeout_ms / 3000
        pause_s = interval_s
        while not self.lost:
            await asyncio.sleep(pause_s)
            results = await asyncio.gather(*(self._heartbeat(*session) for session in self._ids.items()))
            pause_s = interval_s if all(results) else interval_s / 5

    async def _heartbeat(self, shard: int, session_id: int) -> bool:
        sent_s = asyncio.get_running_loop().time()
        try:
            address = await self._shards.leader_of(shard, self._request_timeout_s)
            await self._nodes[address].keep_alive(shard, session_id, self._request_timeout_s)
        except CallFailed as failure:
            if failure.effect is Effect.SESSION_GONE:
                self.lose()
            else:
                await self._shards.refresh()
            return False
        self._alive_s[shard] = sent_s
        return True
