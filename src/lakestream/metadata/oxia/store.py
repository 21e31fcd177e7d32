"""`MetadataStore` over Oxia: keys in, records out. Routes each call to its shard; the work is done one file below.

A call's way down is drawn in `__init__.py`. All keys of a folder share a home, so a call on a folder meets one shard.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from lakestream.clock import Ids, RandomIds
from lakestream.errors import Conflict, Missing, Rejected, Unavailable
from lakestream.metadata.oxia.errors import CallFailed
from lakestream.metadata.oxia.node import Nodes
from lakestream.metadata.oxia.notifications import ChangeFeed
from lakestream.metadata.oxia.paths import check_folder, check_key, is_child, range_of
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.reads import Reader
from lakestream.metadata.oxia.sessions import OxiaSession
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.oxia.writes import Acked, Answer, Deleted, PutOp, Refusal, Writer, uncertain
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
class _Lane:
    """What this client does with one shard."""

    writes: Writer
    reads: Reader


class OxiaStore:
    def __init__(self, settings: OxiaSettings, ids: Ids | None = None) -> None:
        """Use `open`: a store that was not opened knows no shards."""
        self._settings = settings
        self._identity = (ids or RandomIds()).new()[:16]
        self._nodes = Nodes()
        self._shards = Shards(self._nodes, settings)
        self._feed = ChangeFeed(self._nodes, self._shards, settings)
        self._lanes: dict[int, _Lane] = {}
        self._sessions: list[OxiaSession] = []
        self._closed = False

    @classmethod
    async def open(cls, settings: OxiaSettings, ids: Ids | None = None) -> "OxiaStore":
        """Unavailable: nobody answers. Misconfigured: there is no such namespace."""
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
        lane = self._lane(key.home)
        return _record(await lane.reads.get(_get(key.path), confirmed=confirmed), key.path)

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
        lane = self._lane(folder.home)
        if end is not None and end <= start:
            limit = 0
        first, last = range_of(folder, start, end)
        guard_get = _get(guard.path) if guard else None
        found, guarding = await lane.reads.scan(first, last, limit, guard_get, confirmed=confirmed)
        records = [record for answer in found if (record := _record(answer, answer.key)) is not None]
        return Scanned(records, _record(guarding, guard.path) if guard and guarding else None)

    async def _nearest(self, folder: Folder, name: str, comparison: pb.Comparison) -> Record | None:
        check_folder(folder, name)
        lane = self._lane(folder.home)
        found = await lane.reads.get(_get(f"{folder.path}/{name}", comparison))
        return _record(found, found.key) if is_child(folder, found.key) else None

    # Writes

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        for put in puts:
            check_key(put.key)
        answers = await self._by_shard([put.key.home for put in puts], puts, self._put_in)
        return [answer.stored if isinstance(answer, Acked) else answer for answer in answers]

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        """A create whose answer was lost is tried again and recognises its own first try (writes.py), so the answer is
        Created, Conflict with another's record, or Uncertain. The guard is read on the node that acknowledged a write
        of this call: the create itself, or its repetition."""
        for create in creates:
            if check_key(create.key).home != check_key(create.guard).home:
                raise Rejected(f"guard {create.guard.path} of {create.key.path}: they must share a home")
        return await self._by_shard([create.key.home for create in creates], creates, self._create_in)

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        writes = self._lane(check_key(key).home).writes
        (answer,) = await writes.ask([writes.delete_op(key.path, expected)])
        return _deleted(answer)

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        """Record by record, each at the version that was seen: unlike Oxia's own range delete this may be tried again
        after a lost answer, and those who watch hear every path. What is put meanwhile stays."""
        writes = self._lane(folder.home).writes
        while records := (await self.scan(folder, start, end, limit=self._settings.group_count_max)).records:
            for answer in await writes.ask([writes.delete_op(record.path, record.version) for record in records]):
                if isinstance(answer, Unavailable):
                    raise answer
            start = f"{records[-1].name}\0"

    async def _put_in(self, lane: _Lane, puts: Sequence[Put]) -> list[Acked | Refusal]:
        ops = [await self._put_op(lane.writes, put) for put in puts]
        answers = iter(await lane.writes.ask([op for op in ops if isinstance(op, PutOp)]))
        return [_put_answer(next(answers)) if isinstance(op, PutOp) else op for op in ops]

    async def _put_op(self, writes: Writer, put: Put) -> PutOp | Refusal:
        session = put.session
        if session is None:
            return writes.put_op(put.key.path, put.key.home, put.value, put.expected)
        assert isinstance(session, OxiaSession), "a session of this store"
        try:
            session_id = await session.id_on(self._shards.number_of(put.key.home))
        except (Missing, Unavailable) as error:
            return error
        return writes.put_op(put.key.path, put.key.home, put.value, put.expected, session_id)

    async def _create_in(self, lane: _Lane, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        writes = lane.writes
        ops = [writes.put_op(create.key.path, create.key.home, create.value, ABSENT) for create in creates]
        answers = [_put_answer(answer) for answer in await writes.ask(ops)]
        guards = await self._guards(lane, creates, answers)
        return [_created(create, answer, guards) for create, answer in zip(creates, answers, strict=True)]

    async def _guards(
        self, lane: _Lane, creates: Sequence[Create], answers: Sequence[Acked | Refusal]
    ) -> dict[tuple[str, str], Record | None]:
        """The guards after the creates, by (node that acknowledged, path). What cannot be read is left out."""
        wanted: dict[str, dict[str, None]] = {}
        for create, answer in zip(creates, answers, strict=True):
            if isinstance(answer, Acked):
                wanted.setdefault(answer.address, {})[create.guard.path] = None
        guards: dict[tuple[str, str], Record | None] = {}
        for address, paths in wanted.items():
            try:
                found = await lane.reads.on(address, [_get(path) for path in paths])
            except CallFailed:
                continue
            guards |= {(address, path): _record(one, path) for path, one in zip(paths, found, strict=True)}
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
        """Of the leader of the first shard; the clocks of a cluster's machines are kept together by their owner."""
        self._check_open()
        return (await self._lane_of(self._shards.all()[0]).writes.probe()).modified_ms

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        reason = Unavailable(CLOSED)
        await asyncio.gather(*(session.close() for session in self._sessions))
        await self._feed.close(CLOSED)
        for lane in self._lanes.values():
            await lane.writes.close(reason)
            await lane.reads.close(reason)
        await self._shards.close()
        await self._nodes.close()

    # Shards

    def _lane(self, home: str) -> _Lane:
        self._check_open()
        return self._lane_of(self._shards.number_of(home))

    def _lane_of(self, shard: int) -> _Lane:
        lane = self._lanes.get(shard)
        if lane is None:
            writes = Writer(shard, self._nodes, self._shards, self._settings, self._identity)
            reads = Reader(shard, self._nodes, self._shards, self._settings, writes.probe)
            lane = self._lanes[shard] = _Lane(writes, reads)
        return lane

    async def _by_shard(
        self,
        homes: Sequence[str],
        items: Sequence[T],
        ask: Callable[[_Lane, Sequence[T]], Awaitable[list[U]]],
    ) -> list[U | Unavailable]:
        """Items of one shard stay together and in order, shards work side by side, answers come in the order given."""
        if self._closed:
            return [Unavailable(CLOSED) for _ in items]
        places: dict[int, list[int]] = {}
        for place, home in enumerate(homes):
            places.setdefault(self._shards.number_of(home), []).append(place)
        parts = await asyncio.gather(
            *(ask(self._lane_of(shard), [items[place] for place in mine]) for shard, mine in places.items())
        )
        answers: dict[int, U | Unavailable] = {}
        for mine, part in zip(places.values(), parts, strict=True):
            answers.update(zip(mine, part, strict=True))
        return [answers[place] for place in range(len(items))]

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(CLOSED)


def _get(path: str, comparison: pb.Comparison = pb.EQUAL) -> pb.GetRequest:
    return pb.GetRequest(key=path, include_value=True, comparison_type=comparison)


def _record(answer: pb.GetResponse, path: str) -> Record | None:
    if answer.status != pb.OK:
        return None
    return Record(path, answer.value, answer.version.version_id, answer.version.created_timestamp)


def _put_answer(answer: Answer) -> Acked | Refusal:
    assert not isinstance(answer, Deleted), "a put is answered as a put"
    return answer


def _created(
    create: Create, answer: Acked | Refusal, guards: dict[tuple[str, str], Record | None]
) -> Created | Conflict | Unavailable:
    if isinstance(answer, Acked):
        seen = (answer.address, create.guard.path)
        return Created(*answer.stored, guards[seen], answer.repeated) if seen in guards else uncertain(create.key.path)
    assert not isinstance(answer, Missing), "a create has no session that could be missing"
    return answer


def _deleted(answer: Answer) -> bool:
    assert not isinstance(answer, Acked), "a delete is answered as a delete"
    if isinstance(answer, Deleted):
        return answer.was_there
    raise answer
