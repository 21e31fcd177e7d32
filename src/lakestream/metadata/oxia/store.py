"""`MetadataStore` on Oxia. Routes each call to its shard.

The modules of a call are listed in `__init__.py`. All keys of a folder share a home, so a call on a folder uses one
shard.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from lakestream.clock import Ids, RandomIds
from lakestream.errors import Conflict, Missing, Rejected, Unavailable
from lakestream.metadata.oxia.connection import OxiaNodes
from lakestream.metadata.oxia.errors import CallFailed
from lakestream.metadata.oxia.key_ranges import check_folder, check_key, is_child, range_of
from lakestream.metadata.oxia.notifications import ChangeFeed
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.reads import OxiaReader
from lakestream.metadata.oxia.sessions import OxiaSession
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.oxia.writes import DeleteAck, OxiaWriter, PutAck, PutOp, WriteError, WriteResult, uncertain
from lakestream.metadata.store import (
    ABSENT,
    ANY,
    Changes,
    Create,
    Created,
    Folder,
    Key,
    Put,
    Record,
    Scanned,
    Session,
    Stored,
)

CLOSED = "metadata store: this client is closed"
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class _ShardClient:
    """Reads and writes of one shard."""

    writes: OxiaWriter
    reads: OxiaReader


class OxiaStore:
    def __init__(self, settings: OxiaSettings, ids: Ids | None = None) -> None:
        """Use `open`: without it, the store has no map of shards."""
        self._settings = settings
        self._identity = (ids or RandomIds()).new()[:16]
        self._nodes = OxiaNodes()
        self._shards = Shards(self._nodes, settings)
        self._feed = ChangeFeed(self._nodes, self._shards, settings)
        self._clients: dict[int, _ShardClient] = {}
        self._sessions: list[OxiaSession] = []
        self._closed = False

    @classmethod
    async def open(cls, settings: OxiaSettings, ids: Ids | None = None) -> "OxiaStore":
        """Opens the store. Raises Unavailable if no node responds, Misconfigured if the namespace does not exist."""
        store = cls(settings, ids)
        try:
            await store._shards.start()
        except BaseException:
            await store.close()
            raise
        return store

    # Reads

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        check_key(key)
        client = self._client(key.home)
        return _record(await client.reads.get(_get(key.path), confirmed=confirmed), key.path)

    async def floor(self, folder: Folder, name: str) -> Record | None:
        return await self._nearest(folder, name, pb.FLOOR)

    async def ceiling(self, folder: Folder, name: str) -> Record | None:
        return await self._nearest(folder, name, pb.CEILING)

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        check_folder(folder, start, end)
        if guard is not None and check_key(guard).home != folder.home:
            raise Rejected(f"guard {guard.path} of a scan of {folder.path}: they must share a home")
        client = self._client(folder.home)
        if end is not None and end <= start:
            limit = 0
        first, last = range_of(folder, start, end)
        guard_get = _get(guard.path) if guard else None
        responses, guard_response = await client.reads.scan(first, last, limit, guard_get, confirmed=confirmed)
        records = [record for response in responses if (record := _record(response, response.key)) is not None]
        return Scanned(records, _record(guard_response, guard.path) if guard and guard_response else None)

    async def _nearest(self, folder: Folder, name: str, comparison: pb.Comparison) -> Record | None:
        check_folder(folder, name)
        client = self._client(folder.home)
        response = await client.reads.get(_get(f"{folder.path}/{name}", comparison))
        return _record(response, response.key) if is_child(folder, response.key) else None

    # Writes

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        for put in puts:
            check_key(put.key)
        results = await self._by_shard([put.key.home for put in puts], puts, self._put_in)
        return [result.stored if isinstance(result, PutAck) else result for result in results]

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        """Creates records.

        A create whose response was lost is retried and recognizes its own first attempt (writes.py), so the result is
        Created, Conflict with a record of another writer, or Uncertain. The guard is read on the node that acknowledged
        a write of this call: the create or its retry.
        """
        for create in creates:
            if check_key(create.key).home != check_key(create.guard).home:
                raise Rejected(f"guard {create.guard.path} of {create.key.path}: they must share a home")
        return await self._by_shard([create.key.home for create in creates], creates, self._create_in)

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        writes = self._client(check_key(key).home).writes
        (result,) = await writes.execute([writes.delete_op(key.path, expected)])
        return _delete_result(result)

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        """Deletes single records, each at the version that was read.

        Unlike Oxia's range delete, this can be retried after a lost response, and watches get every path. Records that
        are put concurrently stay.
        """
        writes = self._client(folder.home).writes
        while records := (await self.scan(folder, start, end, limit=self._settings.group_count_max)).records:
            for result in await writes.execute([writes.delete_op(record.path, record.version) for record in records]):
                if isinstance(result, Unavailable):
                    raise result
            start = f"{records[-1].name}\0"

    async def _put_in(self, client: _ShardClient, puts: Sequence[Put]) -> list[PutAck | WriteError]:
        ops = [await self._put_op(client.writes, put) for put in puts]
        results = iter(await client.writes.execute([op for op in ops if isinstance(op, PutOp)]))
        return [_put_result(next(results)) if isinstance(op, PutOp) else op for op in ops]

    async def _put_op(self, writes: OxiaWriter, put: Put) -> PutOp | WriteError:
        session = put.session
        if session is None:
            return writes.put_op(put.key.path, put.key.home, put.value, put.expected)
        assert isinstance(session, OxiaSession), "a session of this store"
        try:
            session_id = await session.id_on(self._shards.number_of(put.key.home))
        except (Missing, Unavailable) as error:
            return error
        return writes.put_op(put.key.path, put.key.home, put.value, put.expected, session_id)

    async def _create_in(
        self, client: _ShardClient, creates: Sequence[Create]
    ) -> list[Created | Conflict | Unavailable]:
        writes = client.writes
        ops = [writes.put_op(create.key.path, create.key.home, create.value, ABSENT) for create in creates]
        results = [_put_result(result) for result in await writes.execute(ops)]
        guards = await self._guards(client, creates, results)
        return [_create_result(create, result, guards) for create, result in zip(creates, results, strict=True)]

    async def _guards(
        self, client: _ShardClient, creates: Sequence[Create], results: Sequence[PutAck | WriteError]
    ) -> dict[tuple[str, str], Record | None]:
        """Reads the guards after the creates, by (node that acknowledged, path). Failed reads have no entry."""
        paths_of: dict[str, dict[str, None]] = {}
        for create, result in zip(creates, results, strict=True):
            if isinstance(result, PutAck):
                paths_of.setdefault(result.address, {})[create.guard.path] = None
        guards: dict[tuple[str, str], Record | None] = {}
        for address, paths in paths_of.items():
            try:
                responses = await client.reads.on(address, [_get(path) for path in paths])
            except CallFailed:
                continue
            guards |= {(address, path): _record(one, path) for path, one in zip(paths, responses, strict=True)}
        return guards

    # Sessions, changes, time

    async def session(self, timeout_ms: int) -> Session:
        self._check_open()
        if timeout_ms <= 0:
            raise Rejected(f"session timeout is {timeout_ms} ms: give a positive one")
        session = OxiaSession(self._nodes, self._shards, self._settings, timeout_ms, self._identity)
        self._sessions = [old for old in self._sessions if not old.lost] + [session]
        return session

    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        self._check_open()
        async with aclosing(self._feed.watch(prefix)) as changes:
            async for change in changes:
                yield change

    async def now_ms(self) -> int:
        """Returns the time of the first shard's leader. The operator keeps the clocks of a cluster synchronized."""
        self._check_open()
        return (await self._client_of(self._shards.all()[0]).writes.probe()).modified_ms

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        reason = Unavailable(CLOSED)
        await asyncio.gather(*(session.close() for session in self._sessions))
        await self._feed.close(CLOSED)
        for client in self._clients.values():
            await client.writes.close(reason)
            await client.reads.close(reason)
        await self._shards.close()
        await self._nodes.close()

    # Shards

    def _client(self, home: str) -> _ShardClient:
        self._check_open()
        return self._client_of(self._shards.number_of(home))

    def _client_of(self, shard: int) -> _ShardClient:
        client = self._clients.get(shard)
        if client is None:
            writes = OxiaWriter(shard, self._nodes, self._shards, self._settings, self._identity)
            reads = OxiaReader(shard, self._nodes, self._shards, self._settings, writes.probe)
            client = self._clients[shard] = _ShardClient(writes, reads)
        return client

    async def _by_shard(
        self,
        homes: Sequence[str],
        items: Sequence[T],
        execute: Callable[[_ShardClient, Sequence[T]], Awaitable[list[U]]],
    ) -> list[U | Unavailable]:
        """Executes the items of a shard together, in order, and shards concurrently. Results are in item order."""
        if self._closed:
            return [Unavailable(CLOSED) for _ in items]
        by_shard: dict[int, list[int]] = {}
        for index, home in enumerate(homes):
            by_shard.setdefault(self._shards.number_of(home), []).append(index)
        shard_results = await asyncio.gather(
            *(
                execute(self._client_of(shard), [items[index] for index in indexes])
                for shard, indexes in by_shard.items()
            )
        )
        results: dict[int, U | Unavailable] = {}
        for indexes, shard_result in zip(by_shard.values(), shard_results, strict=True):
            results.update(zip(indexes, shard_result, strict=True))
        return [results[index] for index in range(len(items))]

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(CLOSED)


def _get(path: str, comparison: pb.Comparison = pb.EQUAL) -> pb.GetRequest:
    return pb.GetRequest(key=path, include_value=True, comparison_type=comparison)


def _record(response: pb.GetResponse, path: str) -> Record | None:
    if response.status != pb.OK:
        return None
    return Record(path, response.value, response.version.version_id, response.version.created_timestamp)


def _put_result(result: WriteResult) -> PutAck | WriteError:
    assert not isinstance(result, DeleteAck), "the result of a put"
    return result


def _create_result(
    create: Create, result: PutAck | WriteError, guards: dict[tuple[str, str], Record | None]
) -> Created | Conflict | Unavailable:
    if isinstance(result, PutAck):
        key = (result.address, create.guard.path)
        return Created(*result.stored, guards[key], result.repeated) if key in guards else uncertain(create.key.path)
    assert not isinstance(result, Missing), "a create has no session that could be missing"
    return result


def _delete_result(result: WriteResult) -> bool:
    assert not isinstance(result, PutAck), "the result of a delete"
    if isinstance(result, DeleteAck):
        return result.existed
    raise result
