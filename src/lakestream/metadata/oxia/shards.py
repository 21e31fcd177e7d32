"""Maps homes to shards, and shards to their current leaders.

Receives the map from one stream of assignments; every message has the whole map. If the stream fails, or a call
suspects that the map is stale because a leader does not respond, the stream is opened on the next node. The map is a
hint: a node that is not the leader rejects the call.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import xxhash

from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.oxia.connection import OxiaNodes
from lakestream.metadata.oxia.errors import CallFailed, Effect, for_caller
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings

RETRY_PAUSE_S = 0.05
_REOPEN_INTERVAL_S = 0.5
"""A younger stream is not reopened: its map is as new as possible."""


def hash_of(home: str) -> int:
    """Returns the hash that Oxia's servers and clients use: the low half of XXH3-64."""
    return xxhash.xxh3_64_intdigest(home.encode()) & 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    leader: str
    """Empty during an election."""
    hash_min: int
    hash_max: int
    """Inclusive, as in Oxia."""


@dataclass(frozen=True, slots=True)
class ShardMap:
    shards: tuple[Shard, ...] = ()

    def number_of(self, home: str) -> int | None:
        code = hash_of(home)
        return next((shard.number for shard in self.shards if shard.hash_min <= code <= shard.hash_max), None)

    def leader_of(self, number: int) -> str:
        return next((shard.leader for shard in self.shards if shard.number == number), "")

    def leaders(self) -> Iterable[str]:
        return (shard.leader for shard in self.shards if shard.leader)


def shard_map(message: pb.ShardAssignments, namespace: str) -> ShardMap:
    assignments = message.namespaces[namespace].assignments if namespace in message.namespaces else ()
    return ShardMap(
        tuple(
            Shard(
                item.shard,
                item.leader,
                item.int32_hash_range.min_hash_inclusive,
                item.int32_hash_range.max_hash_inclusive,
            )
            for item in assignments
        )
    )


@dataclass(eq=False, slots=True)
class _LeaderScope:
    """A block of code that is ended when `address` no longer leads `shard`."""

    shard: int
    address: str
    timeout: asyncio.Timeout


class Shards:
    def __init__(self, nodes: OxiaNodes, settings: OxiaSettings) -> None:
        self._nodes = nodes
        self._settings = settings
        self._map = ShardMap()
        self._changed = asyncio.Event()
        self._addresses = deque(settings.addresses)
        self._failure: CallFailed | None = None
        self._stream_timeout: asyncio.Timeout | None = None
        self._stream_opened_s = 0.0
        self._scopes: set[_LeaderScope] = set()
        self._homes: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Waits for the first map. Raises the reason if there is none."""
        self._task = asyncio.create_task(self._run(), name="oxia.shards")
        try:
            async with asyncio.timeout(self._settings.start_timeout_ms / 1000):
                while not self._map.shards:
                    self._raise_if_refused()
                    await self._changed.wait()
        except TimeoutError:
            failure = self._failure or CallFailed(Effect.NONE, "no response")
            raise for_caller(f"metadata store {self._settings}", failure) from None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def all(self) -> list[int]:
        return [shard.number for shard in self._map.shards]

    def number_of(self, home: str) -> int:
        number = self._homes.get(home)
        if number is None:
            number = self._map.number_of(home)
            if number is None:
                raise Unavailable(f"metadata store {self._settings}: no shard has the home {home!r} now: retry")
            if len(self._homes) >= 100_000:
                self._homes.clear()
            self._homes[home] = number
        return number

    async def leader_of(self, shard: int, timeout_s: float) -> str:
        """Returns the address of the shard's leader. Waits during an election."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (leader := self._map.leader_of(shard)):
                    await self._changed.wait()
                return leader
        except TimeoutError:
            raise CallFailed(Effect.NONE, f"shard {shard} has no leader for {timeout_s:.1f} s") from None

    async def refresh(self, pause_s: float = RETRY_PAUSE_S) -> None:
        """Must be called before a retry: reopens the stream if it is old, and waits up to `pause_s` for a new map."""
        self._reopen_stream()
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return
        # All callers get the new map at the same time; the pause keeps them from overloading a newly elected leader.
        await asyncio.sleep(pause_s / 10)

    @asynccontextmanager
    async def while_leads(self, shard: int, address: str) -> AsyncIterator[None]:
        """Ends the block with `CallFailed` when the map has another leader: a stream would wait for the old one."""
        try:
            async with asyncio.timeout(None) as timeout:
                scope = _LeaderScope(shard, address, timeout)
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            raise CallFailed(Effect.NONE, f"shard {shard} is no longer led by {address}") from None

    def _reopen_stream(self) -> None:
        """Ends the current stream: its node may be the one that hangs."""
        now = asyncio.get_running_loop().time()
        if self._stream_timeout is not None and now - self._stream_opened_s > _REOPEN_INTERVAL_S:
            self._stream_timeout.reschedule(now)
            self._stream_timeout = None

    async def _run(self) -> None:
        while True:
            address = self._addresses[0]
            try:
                await self._follow(address)
            except CallFailed as failure:
                self._failure = failure
                self._notify()
            self._addresses.rotate(-1)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _follow(self, address: str) -> None:
        self._stream_opened_s = asyncio.get_running_loop().time()
        node = self._nodes[address]
        stream = node.assignments(self._settings.namespace, self._settings.request_timeout_ms / 1000)
        try:
            async with asyncio.timeout(None) as self._stream_timeout, aclosing(stream) as messages:
                async for message in messages:
                    self._update(shard_map(message, self._settings.namespace))
        except TimeoutError:
            raise CallFailed(Effect.NONE, f"{address}: its map of shards may be stale") from None
        finally:
            self._stream_timeout = None

    def _update(self, new: ShardMap) -> None:
        if not new.shards or new == self._map:
            return
        self._map = new
        self._homes.clear()
        # The node of the stream stays first, as `_run` expects.
        self._addresses = deque(dict.fromkeys([self._addresses[0], *self._settings.addresses, *new.leaders()]))
        now = asyncio.get_running_loop().time()
        for scope in list(self._scopes):
            if new.leader_of(scope.shard) not in ("", scope.address):
                self._scopes.discard(scope)
                scope.timeout.reschedule(now)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _raise_if_refused(self) -> None:
        if self._failure is not None and self._failure.effect is Effect.REFUSED:
            error: LakestreamError = for_caller(f"metadata store {self._settings}", self._failure)
            raise error
