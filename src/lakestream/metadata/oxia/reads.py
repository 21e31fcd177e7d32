"""Reads: joined per node and shard, tried again at whoever leads now, until the call's time is up.

Above: store.py.  Below: grouping.py, shards.py, node.py.

An Oxia leader answers reads without asking the others, so one that was just deposed may answer what no longer holds.
Two ways around that: `confirmed` reads go to a node that acknowledged a write begun after the call, and `on` reads go
to exactly the node that is named, where a write was acknowledged before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lakestream.errors import Unavailable
from lakestream.metadata.oxia.errors import CallFailed, Effect, for_caller
from lakestream.metadata.oxia.grouping import Grouper
from lakestream.metadata.oxia.node import Nodes
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.oxia.writes import Acked

T = TypeVar("T")


class Reader:
    """All reads of one shard by this client."""

    def __init__(
        self, shard: int, nodes: Nodes, shards: Shards, settings: OxiaSettings, probe: Callable[[], Awaitable[Acked]]
    ) -> None:
        self._shard = shard
        self._nodes = nodes
        self._shards = shards
        self._settings = settings
        self._probe = probe
        self._where = f"metadata store {settings}, shard {shard}"
        self._groups: dict[str, Grouper[pb.GetRequest, pb.GetResponse]] = {}

    async def get(self, request: pb.GetRequest, *, confirmed: bool = False) -> pb.GetResponse:
        async def attempt(address: str) -> pb.GetResponse:
            (answer,) = await self.on(address, [request])
            return answer

        return await self._until_answered(attempt, confirmed)

    async def scan(
        self, start: str, end: str, limit: int | None, guard: pb.GetRequest | None, *, confirmed: bool
    ) -> tuple[list[pb.GetResponse], pb.GetResponse | None]:
        """The range, and the guard read after it on the same node."""

        async def attempt(address: str) -> tuple[list[pb.GetResponse], pb.GetResponse | None]:
            found = await self._nodes[address].scan(self._shard, start, end, limit, self._timeout_s)
            return found, (await self.on(address, [guard]))[0] if guard is not None else None

        return await self._until_answered(attempt, confirmed)

    async def on(self, address: str, requests: Sequence[pb.GetRequest]) -> list[pb.GetResponse]:
        """On this very node, begun after this call, or `CallFailed`."""
        group = self._groups.get(address)
        if group is None:
            group = self._groups[address] = self._new_group(address)
        return await group.ask(requests)

    async def close(self, reason: Unavailable) -> None:
        for group in self._groups.values():
            await group.close(reason)

    @property
    def _timeout_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    async def _until_answered(self, attempt: Callable[[str], Awaitable[T]], confirmed: bool) -> T:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.retry_budget_ms / 1000
        while True:
            try:
                return await attempt(await self._address(confirmed))
            except CallFailed as failure:
                if failure.effect is Effect.REFUSED or loop.time() >= deadline_s:
                    raise for_caller(self._where, failure) from None
            await self._shards.settle()

    async def _address(self, confirmed: bool) -> str:
        if confirmed:
            return (await self._probe()).address
        return await self._shards.leader_of(self._shard, self._timeout_s)

    def _new_group(self, address: str) -> Grouper[pb.GetRequest, pb.GetResponse]:
        async def send(requests: list[pb.GetRequest]) -> list[pb.GetResponse]:
            return await self._nodes[address].read(self._shard, requests, self._timeout_s)

        return Grouper(
            send,
            size_of=lambda request: len(request.key),
            count_max=self._settings.group_count_max,
            bytes_max=self._settings.group_bytes_max,
            waiting_max=self._settings.waiting_count_max,
        )
