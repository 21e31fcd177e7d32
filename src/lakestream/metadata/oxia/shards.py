"""Which shard a home belongs to, and which node leads that shard now.

One stream of assignments is kept open; every message is the whole map. When the stream breaks, or a caller doubts the
map because a leader does not answer, the next node is asked. The map is a hint: a node that does not lead says so.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import xxhash

from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.oxia.errors import CallFailed, Effect, for_caller
from lakestream.metadata.oxia.node import Nodes
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings

RETRY_PAUSE_S = 0.05
_DOUBT_INTERVAL_S = 0.5
"""A stream this young is not doubted: its map is as new as it gets."""


def hash_of(home: str) -> int:
    """As the server and its own clients have it: the low half of XXH3-64."""
    return xxhash.xxh3_64_intdigest(home.encode()) & 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    leader: str
    """Empty during an election."""
    hash_min: int
    hash_max: int
    """Inclusive, as Oxia has it."""


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
                one.shard, one.leader, one.int32_hash_range.min_hash_inclusive, one.int32_hash_range.max_hash_inclusive
            )
            for one in assignments
        )
    )


@dataclass(eq=False, slots=True)
class _Tie:
    """A block of code that lasts only while `address` leads `shard`."""

    shard: int
    address: str
    limit: asyncio.Timeout


class Shards:
    def __init__(self, nodes: Nodes, settings: OxiaSettings) -> None:
        self._nodes = nodes
        self._settings = settings
        self._map = ShardMap()
        self._changed = asyncio.Event()
        self._known = deque(settings.addresses)
        self._failure: CallFailed | None = None
        self._stream_limit: asyncio.Timeout | None = None
        self._stream_opened_s = 0.0
        self._ties: set[_Tie] = set()
        self._homes: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns with the first map, or raises why there is none."""
        self._task = asyncio.create_task(self._run(), name="oxia.shards")
        try:
            async with asyncio.timeout(self._settings.start_timeout_ms / 1000):
                while not self._map.shards:
                    self._raise_if_refused()
                    await self._changed.wait()
        except TimeoutError:
            why = self._failure or CallFailed(Effect.NONE, "no answer")
            raise for_caller(f"metadata store {self._settings}", why) from None

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
                raise Unavailable(f"metadata store {self._settings}: no shard keeps {home!r} now; try again")
            if len(self._homes) >= 100_000:
                self._homes.clear()
            self._homes[home] = number
        return number

    async def leader_of(self, shard: int, timeout_s: float) -> str:
        """The node that leads it, waited for during an election."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (leader := self._map.leader_of(shard)):
                    await self._changed.wait()
                return leader
        except TimeoutError:
            raise CallFailed(Effect.NONE, f"shard {shard} has no leader for {timeout_s:.1f} s") from None

    async def settle(self, pause_s: float = RETRY_PAUSE_S) -> None:
        """Before another try: ask for a newer map, and wait for it a little."""
        self._doubt()
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return
        # Those who waited for one new map do not all storm the new leader in the same instant as it takes office.
        await asyncio.sleep(pause_s / 10)

    @asynccontextmanager
    async def while_leads(self, shard: int, address: str) -> AsyncIterator[None]:
        """Ends the block with `CallFailed` when the map names another leader: a stream would wait for the old one."""
        try:
            async with asyncio.timeout(None) as limit:
                tie = _Tie(shard, address, limit)
                self._ties.add(tie)
                try:
                    yield
                finally:
                    self._ties.discard(tie)
        except TimeoutError:
            raise CallFailed(Effect.NONE, f"shard {shard} is no longer led by {address}") from None

    def _doubt(self) -> None:
        """The one who tells us who leads may be the one that hangs."""
        now = asyncio.get_running_loop().time()
        if self._stream_limit is not None and now - self._stream_opened_s > _DOUBT_INTERVAL_S:
            self._stream_limit.reschedule(now)
            self._stream_limit = None

    async def _run(self) -> None:
        while True:
            address = self._known[0]
            try:
                await self._follow(address)
            except CallFailed as failure:
                self._failure = failure
                self._announce()
            self._known.rotate(-1)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _follow(self, address: str) -> None:
        self._stream_opened_s = asyncio.get_running_loop().time()
        node = self._nodes[address]
        stream = node.assignments(self._settings.namespace, self._settings.request_timeout_ms / 1000)
        try:
            async with asyncio.timeout(None) as self._stream_limit, aclosing(stream) as messages:
                async for message in messages:
                    self._take(shard_map(message, self._settings.namespace))
        except TimeoutError:
            raise CallFailed(Effect.NONE, f"{address}: its map of shards is in doubt") from None
        finally:
            self._stream_limit = None

    def _take(self, fresh: ShardMap) -> None:
        if not fresh.shards or fresh == self._map:
            return
        self._map = fresh
        self._homes.clear()
        # The one that we hear this from stays first, as the stream's loop expects.
        self._known = deque(dict.fromkeys([self._known[0], *self._settings.addresses, *fresh.leaders()]))
        now = asyncio.get_running_loop().time()
        for tie in list(self._ties):
            if fresh.leader_of(tie.shard) not in ("", tie.address):
                self._ties.discard(tie)
                tie.limit.reschedule(now)
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _raise_if_refused(self) -> None:
        if self._failure is not None and self._failure.effect is Effect.REFUSED:
            error: LakestreamError = for_caller(f"metadata store {self._settings}", self._failure)
            raise error
