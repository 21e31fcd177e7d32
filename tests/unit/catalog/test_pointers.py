"""Pointers with crashes and races between any two writes.

A table has one name, or none and is dropped, and an acknowledged change is never lost.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest

from lakestream.catalog.errors import NamespaceNotEmpty, NoSuchNamespace, NoSuchTable, TableExists
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.namespaces import Namespaces
from lakestream.catalog.pointers import ABANDONED_AFTER_MS, Pointers, Table, TableEntry
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, LakestreamError, Missing, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import ANY, Folder, Key, Put, Record, Scanned, Stored

T = TypeVar("T")

A, B, C = (TableName(("default",), name) for name in "abc")


class Crash(Exception):
    """The process crashes."""


class CrashingStore(MemoryMetadataStore):
    """Crashes at a chosen write, before or after it took effect, and yields to other tasks at random."""

    def __init__(
        self, server: MemoryServer, crash_at: int = 0, *, after: bool = False, luck: random.Random | None = None
    ) -> None:
        super().__init__(server)
        self._left = crash_at
        self._after = after
        self._luck = luck
        self.writes = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        await self._wait()
        found = await super().get(key, confirmed=confirmed)
        await self._wait()
        return found

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
        await self._wait()
        return await super().scan(folder, start, end, limit=limit, guard=guard, confirmed=confirmed)

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        return await self._written(lambda: super(CrashingStore, self).put(puts))

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        return await self._written(lambda: super(CrashingStore, self).delete(key, expected))

    async def _written(self, write: Callable[[], Awaitable[T]]) -> T:
        self.writes += 1
        await self._wait()
        dies = self.writes == self._left
        if dies and not self._after:
            raise Crash
        done = await write()
        if dies:
            raise Crash
        await self._wait()
        return done

    async def _wait(self) -> None:
        if self._luck is not None:
            for _ in range(self._luck.randrange(4)):
                await asyncio.sleep(0)


def pointers_over(store: MemoryMetadataStore) -> Pointers:
    return Pointers(store, Namespaces(store))


def table(name: TableName, place: str = "s3://b/m0") -> Table:
    return Table(namespace=name.namespace, name=name.name, uuid="u", metadata_location=place, location=f"s3://b/{name}")


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
async def pointers(server: MemoryServer) -> Pointers:
    store = server.client()
    await Namespaces(store).create(("default",), {})
    return pointers_over(store)


async def names(pointers: Pointers) -> list[str]:
    return (await pointers.page(("default",))).names


async def test_create_find_move_rename_drop(pointers: Pointers) -> None:
    created = await pointers.create("t1", table(A))
    assert await pointers.find(A) == await pointers.find_id("t1") == created
    moved = await pointers.move(created, "s3://b/m1", "s3://b/a")
    with pytest.raises(Conflict):
        await pointers.move(created, "s3://b/m2", "s3://b/a")
    await pointers.rename(A, B)
    assert (await pointers.find(B)).table.metadata_location == moved.table.metadata_location
    with pytest.raises(NoSuchTable):
        await pointers.find(A)
    assert await names(pointers) == ["b"]
    await pointers.create("t2", table(A))
    with pytest.raises(TableExists):
        await pointers.rename(A, B)
    with pytest.raises(TableExists):
        await pointers.create("t3", table(A))
    await pointers.drop(B, purge=False)
    assert await names(pointers) == ["a"]
    await pointers.rename(A, B)
    await pointers.drop(B, purge=True)
    assert await names(pointers) == []
    assert [found.table.purged async for found in pointers.all()] == [True]


async def test_namespace_must_exist_and_be_empty(pointers: Pointers, server: MemoryServer) -> None:
    store = server.client()
    namespaces = Namespaces(store)
    elsewhere = TableName(("other",), "t")
    with pytest.raises(NoSuchNamespace):
        await pointers.create("t1", table(elsewhere))
    await pointers.create("t1", table(A))
    with pytest.raises(NoSuchNamespace):
        await pointers.rename(A, elsewhere)
    with pytest.raises(NamespaceNotEmpty):
        await namespaces.drop(("default",), pointers.is_empty)
    await namespaces.create(("other",), {})
    await namespaces.create(("other", "inner"), {})
    with pytest.raises(NamespaceNotEmpty):
        await namespaces.drop(("other",), pointers.is_empty)
    with pytest.raises(NoSuchNamespace):
        await namespaces.create(("nowhere", "x"), {})
    await namespaces.drop(("other", "inner"), pointers.is_empty)
    await pointers.rename(A, elsewhere)
    with pytest.raises(NamespaceNotEmpty):
        await namespaces.drop(("other",), pointers.is_empty)
    await namespaces.drop(("default",), pointers.is_empty)


async def test_names_are_listed_in_pages(pointers: Pointers) -> None:
    made = ["a", "a.b", "a/b", "aa", "ä", "b c", "Z", "~", "!"]
    for number, name in enumerate(made):
        await pointers.create(f"t{number}", table(TableName(("default",), name)))
    seen: list[str] = []
    start = ""
    while True:
        page = await pointers.page(("default",), start, limit=2)
        seen += page.names
        start = page.following
        if not start:
            break
    assert sorted(seen) == sorted(made)
    assert len([found async for found in pointers.all()]) == len(made)


async def changed(pointers: Pointers, step: str) -> None:
    match step:
        case "create":
            await pointers.create("t9", table(C))
        case "rename":
            await pointers.rename(A, B)
        case "drop":
            await pointers.drop(A, purge=False)
        case "purge":
            await pointers.drop(A, purge=True)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("crash_at", range(1, 9))
@pytest.mark.parametrize("step", ["create", "rename", "drop", "purge"])
async def test_table_has_one_name_or_none_after_any_crash(
    server: MemoryServer, pointers: Pointers, step: str, crash_at: int, after: bool
) -> None:
    """The change took effect completely or not at all, without a repair, and every name can be used again."""
    await pointers.create("t1", table(A))
    with suppress(Crash):
        await changed(pointers_over(CrashingStore(server, crash_at, after=after)), step)
    there = set(await names(pointers))
    await pointers.remove_abandoned(SystemClock().now_ms() + 2 * ABANDONED_AFTER_MS)
    assert there == set(await names(pointers))
    assert there in ({"create": [{"a"}, {"a", "c"}], "rename": [{"a"}, {"b"}]}.get(step) or [{"a"}, set()])
    for name in (A, B, C):
        if name.name in there:
            await pointers.find(name)
        else:
            with pytest.raises(NoSuchTable):
                await pointers.find(name)
            await pointers.create(f"new-{name.name}", table(name))
            assert (await pointers.find(name)).table_id == f"new-{name.name}"
    assert set(await names(pointers)) == {"a", "b", "c"}
    for name in (A, B, C):
        await pointers.drop(name, purge=False)
    await Namespaces(server.client()).drop(("default",), pointers.is_empty)


@pytest.mark.parametrize("crash_at", range(1, 6))
async def test_create_with_the_same_id_completes_after_a_crash(
    server: MemoryServer, pointers: Pointers, crash_at: int
) -> None:
    """A topic's table has the topic's id: the next run of the pipeline finds the records of the crashed one."""
    with suppress(Crash):
        await pointers_over(CrashingStore(server, crash_at, after=True)).create("topic", table(A))
    with suppress(TableExists):
        await pointers.create("topic", table(A, "s3://b/again"))
    assert (await pointers.find(A)).table_id == "topic"


async def test_abandoned_creates_are_removed(server: MemoryServer, pointers: Pointers) -> None:
    with suppress(Crash):
        await pointers_over(CrashingStore(server, 3)).create("t1", table(A))
    now_ms = SystemClock().now_ms()
    assert await pointers.remove_abandoned(now_ms) == 0
    assert await pointers.remove_abandoned(now_ms + 2 * ABANDONED_AFTER_MS) == 1
    assert [found async for found in pointers.all()] == []


class InterruptedStore(MemoryMetadataStore):
    """Runs another complete change just before its n-th write."""

    def __init__(self, server: MemoryServer, at: int, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server)
        self._left = at
        self._meanwhile = meanwhile

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        await self._count()
        return await super().put(puts)

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        await self._count()
        return await super().delete(key, expected)

    async def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            await self._meanwhile()


STEPS = ("create", "rename", "drop", "purge", "create_b", "drop_namespace", "commit", "rename_id", "drop_id")


async def outcome_of(pointers: Pointers, store: MemoryMetadataStore, step: str) -> str:
    """Returns the outcome of a change: done, or its error."""
    try:
        match step:
            case "create_b":
                await pointers.create("t8", table(B))
            case "drop_namespace":
                await Namespaces(store).drop(("default",), pointers.is_empty)
            case "rename_id":
                await pointers.rename("t1", C)
            case "drop_id":
                await pointers.drop("t1", purge=False)
            case "commit":
                await pointers.move(await pointers.find(A), "s3://b/new", "s3://b/x")
            case _:
                await changed(pointers, step)
    except LakestreamError as error:
        return type(error).__name__
    return "done"


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("second", STEPS)
@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("full", [True, False])
async def test_change_in_the_middle_of_another_change(
    server: MemoryServer, pointers: Pointers, full: bool, first: str, second: str, at: int
) -> None:
    """The final state matches the outcomes of both changes."""
    if full:
        await pointers.create("t1", table(A))
    answers: dict[str, list[str]] = {step: [] for step in STEPS}
    other = server.client()

    async def meanwhile() -> None:
        answers[second].append(await outcome_of(pointers_over(other), other, second))

    store = InterruptedStore(server, at, meanwhile)
    answers[first].append(await outcome_of(pointers_over(store), store, first))
    done = {step for step, states in answers.items() if "done" in states}

    there = {name: found for name in (A, B, C) if (found := await _found_or_none(pointers, name)) is not None}
    assert sorted(name.name for name in there) == await names(pointers)
    ids = [found.table_id for found in there.values()]
    assert len(ids) == len(set(ids)), "a table with two names"
    if await other.get(keys.namespace_key(("default",))) is None:
        assert not there, "a table in a dropped namespace"
    assert ("t9" in ids) == ("create" in done)
    assert ("t8" in ids) == ("create_b" in done)
    assert ("t1" in ids) == (full and not done & {"drop", "purge", "drop_id"})
    if "commit" in done and "t1" in ids:
        (found,) = (found for found in there.values() if found.table_id == "t1")
        assert found.table.metadata_location == "s3://b/new"
    if done & {"rename", "rename_id"} and not done & {"drop", "purge", "drop_id"}:
        assert "t1" in [there[name].table_id for name in (B, C) if name in there]


async def _found_or_none(pointers: Pointers, name: TableName) -> TableEntry | None:
    try:
        return await pointers.find(name)
    except NoSuchTable:
        return None


class Race:
    """Several processes that change the same names concurrently, and the outcomes."""

    def __init__(self, server: MemoryServer, seed: int) -> None:
        self.luck = random.Random(seed)
        self.server = server
        self.committed: dict[str, tuple[int, str]] = {}
        """Table id → the newest acknowledged version, and its metadata file."""
        self.dropped: set[str] = set()
        self.made = 0

    @property
    def alive(self) -> dict[str, str]:
        return {table_id: place for table_id, (_, place) in self.committed.items() if table_id not in self.dropped}

    def note(self, found: TableEntry) -> None:
        committed = (found.version, found.table.metadata_location)
        self.committed[found.table_id] = max(committed, self.committed.get(found.table_id, committed))

    async def worker(self) -> None:
        pointers = pointers_over(CrashingStore(self.server, luck=self.luck))
        for _ in range(6):
            with suppress(NoSuchTable, TableExists, Conflict, NoSuchNamespace, NamespaceNotEmpty):
                await self.step(pointers)

    async def step(self, pointers: Pointers) -> None:
        name, other = self.luck.choice([A, B, C]), self.luck.choice([A, B, C])
        match self.luck.randrange(6):
            case 0 | 1:
                self.made += 1
                self.note(await pointers.create(f"t{self.made}", table(name)))
            case 2:
                await pointers.rename(name, other)
            case 3:
                self.dropped.add((await pointers.drop(name, purge=False)).table_id)
            case 4:
                found = await pointers.find(name)
                self.note(await pointers.move(found, f"s3://b/{self.luck.random()}", "s3://b/x"))
            case 5:
                await Namespaces(CrashingStore(self.server, luck=self.luck)).drop(("default",), pointers.is_empty)
                await Namespaces(self.server.client()).create(("default",), {})


@pytest.mark.parametrize("seed", range(300))
async def test_random_races_leave_consistent_names(server: MemoryServer, pointers: Pointers, seed: int) -> None:
    race = Race(server, seed)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(race.worker())
    found: dict[str, TableEntry] = {}
    with suppress(LakestreamError):
        await Namespaces(server.client()).create(("default",), {})
    for name in (A, B, C):
        with suppress(NoSuchTable):
            one = await pointers.find(name)
            assert one.table_id not in found, "a table with two names"
            found[one.table_id] = one
    assert set(found) == set(race.alive), "a table was lost or reappeared"
    assert {table_id: one.table.metadata_location for table_id, one in found.items()} == race.alive
    assert sorted(one.table.name for one in found.values()) == await names(pointers)
