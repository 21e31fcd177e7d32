"""Reads: batched per node and shard, and retried on the current leader until the call's deadline.

Above: store.py.  Below: batching.py, shards.py, connection.py.

An Oxia leader serves reads without its followers, so a deposed leader may return stale records. To avoid that,
`confirmed` reads go to a node that has acknowledged a write which began after the call, and `on` reads go to a given
node, which has acknowledged a write before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lakestream.errors import Unavailable
from lakestream.metadata.oxia.batching import Batcher
from lakestream.metadata.oxia.connection import OxiaNodes
from lakestream.metadata.oxia.errors import CallFailed, Effect, for_caller
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.oxia.writes import PutAck

T = TypeVar("T")


class OxiaReader:
    """All reads of one shard by this client."""

    def __init__(
        self,
        shard: int,
        nodes: OxiaNodes,
        shards: Shards,
        settings: OxiaSettings,
        probe: Callable[[], Awaitable[PutAck]],
    ) -> None:
        self._shard = shard
        self._nodes = nodes
        self._shards = shards
        self._settings = settings
        self._probe = probe
        self._where = f"metadata store {settings}, shard {shard}"
        self._batchers: dict[str, Batcher[pb.GetRequest, pb.GetResponse]] = {}

    async def get(self, request: pb.GetRequest, *, confirmed: bool = False) -> pb.GetResponse:
        async def attempt(address: str) -> pb.GetResponse:
            (response,) = await self.on(address, [request])
            return response

        return await self._retry(attempt, confirmed)

    async def scan(
        self, start: str, end: str, limit: int | None, guard: pb.GetRequest | None, *, confirmed: bool
    ) -> tuple[list[pb.GetResponse], pb.GetResponse | None]:
        """Returns the range, and the guard, which is read after it on the same node."""

        async def attempt(address: str) -> tuple[list[pb.GetResponse], pb.GetResponse | None]:
            records = await self._nodes[address].scan(self._shard, start, end, limit, self._timeout_s)
            return records, (await self.on(address, [guard]))[0] if guard is not None else None

        return await self._retry(attempt, confirmed)

    async def on(self, address: str, requests: Sequence[pb.GetRequest]) -> list[pb.GetResponse]:
        """Reads on the given node, after this call began. Raises `CallFailed`."""
        batcher = self._batchers.get(address)
        if batcher is None:
            batcher = self._batchers[address] = self._new_batcher(address)
        return await batcher.execute(requests)

    async def close(self, reason: Unavailable) -> None:
        for batcher in self._batchers.values():
            await batcher.close(reason)

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    async def _retry(self, attempt: Callable[[str], Awaitable[T]], confirmed: bool) -> T:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.retry_budget_ms / 1000
        while True:
            try:
                return await attempt(await self._address(confirmed))
            except CallFailed as failure:
                if failure.effect is Effect.REFUSED or loop.time() >= deadline_s:
                    raise for_caller(self._where, failure) from None
            await self._shards.refresh()

    async def _address(self, confirmed: bool) -> str:
        if confirmed:
            return (await self._probe()).address
        return await self._shards.leader_of(self._shard, self._timeout_s)

    def _new_batcher(self, address: str) -> Batcher[pb.GetRequest, pb.GetResponse]:
        async def send(requests: list[pb.GetRequest]) -> list[pb.GetResponse]:
            return await self._nodes[address].read(self._shard, requests, self._timeout_s)

        return Batcher(
            send,
            size_of=lambda request: len(request.key),
            count_max=self._settings.group_count_max,
            bytes_max=self._settings.group_bytes_max,
            waiting_max=self._settings.waiting_count_max,
        )
