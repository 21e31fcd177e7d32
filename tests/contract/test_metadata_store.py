"""Contract of metadata stores, sentence by sentence of `metadata/store.py`, on every backend."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from tests.harness.stores.metadata_backends import BACKENDS, Backend

from lakestream.errors import Conflict, Missing, Unavailable
from lakestream.metadata.store import (
    ABSENT,
    ANY,
    Changes,
    Create,
    Created,
    Folder,
    Key,
    MetadataStore,
    Put,
    Record,
    Session,
    Stored,
    put_one,
)
from lakestream.model import MiB

WAKE_S_MAX = 10.0
"""Generous, because the machine may be busy. Benchmarks measure the latency."""


@pytest.fixture(params=list(BACKENDS))
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


@pytest.fixture
async def other(backend: Backend, store: MetadataStore) -> MetadataStore:
    """Another client of the same store."""
    return await backend.open()


class Root(NamedTuple):
    """Key prefix of one test. All its keys share a home."""

    path: str

    def folder(self, name: str) -> Folder:
        return Folder(f"{self.path}/{name}", self.path)

    def key(self, name: str) -> Key:
        return Key(f"{self.path}/keys/{name}", self.path)


@pytest.fixture
def root() -> Root:
    return Root(f"/test-{uuid.uuid4().hex}")


async def fill(store: MetadataStore, folder: Folder, *names: str) -> None:
    answers = await store.put([Put(folder.key(name), name.encode(), ABSENT) for name in names])
    assert all(isinstance(answer, Stored) for answer in answers)


def names_of(records: list[Record]) -> list[str]:
    return [record.name for record in records]


async def create_one(store: MetadataStore, key: Key, value: bytes, guard: Key) -> Created:
    (answer,) = await store.create([Create(key, value, guard)])
    if isinstance(answer, Created):
        return answer
    raise answer


async def put_ephemeral(
    store: MetadataStore, key: Key, value: bytes, session: Session, expected: int | None = ANY
) -> Stored:
    (answer,) = await store.put([Put(key, value, expected, session)])
    if isinstance(answer, Stored):
        return answer
    raise answer


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = WAKE_S_MAX) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - it happens outside of this loop
            await asyncio.sleep(0.02)


# Get and put


async def test_a_missing_key_is_none(store: MetadataStore, root: Root) -> None:
    assert await store.get(root.key("a")) is None
    assert await store.get(root.key("a"), confirmed=True) is None


async def test_a_record_is_read_as_it_was_put(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    stored = await put_one(store, root.key("a"), b"value")
    expected = Record(root.key("a").path, b"value", stored.version, stored.created_ms)
    for client in (store, other):
        assert await client.get(root.key("a")) == expected
        assert await client.get(root.key("a"), confirmed=True) == expected
    assert expected.name == "a"


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)), b"\xff" * 300, bytes(range(256)) * 4096])
async def test_values_may_be_any_bytes(store: MetadataStore, other: MetadataStore, root: Root, value: bytes) -> None:
    assert len(value) <= MiB
    await put_one(store, root.key("a"), b"before")
    await put_one(store, root.key("a"), value)
    found = await other.get(root.key("a"))
    assert found is not None
    assert found.value == value
    assert isinstance(found.value, bytes)
    assert [record.value for record in (await other.scan(root.folder("keys"))).records] == [value]


async def test_every_put_gives_a_greater_version(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    versions = []
    for turn in range(5):
        versions += [(await put_one(client, root.key("a"), b"same value")).version for client in (store, other)]
        if turn == 2:
            await store.delete(root.key("a"))
    assert versions == sorted(set(versions))


async def test_put_with_expected_absent_creates_and_never_overwrites(
    store: MetadataStore, other: MetadataStore, root: Root
) -> None:
    first = await put_one(store, root.key("a"), b"first", ABSENT)
    for client in (store, other):
        with pytest.raises(Conflict):
            await put_one(client, root.key("a"), b"second", ABSENT)
    found = await other.get(root.key("a"))
    assert found is not None
    assert (found.value, found.version) == (b"first", first.version)


async def test_put_with_a_version_succeeds_once(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    first = await put_one(store, root.key("a"), b"1")
    second = await put_one(other, root.key("a"), b"2", first.version)
    with pytest.raises(Conflict):
        await put_one(store, root.key("a"), b"3", first.version)
    await put_one(store, root.key("a"), b"4", second.version)
    found = await store.get(root.key("a"))
    assert found is not None
    assert found.value == b"4"


async def test_put_with_a_version_conflicts_for_a_missing_key(store: MetadataStore, root: Root) -> None:
    first = await put_one(store, root.key("a"), b"1")
    with pytest.raises(Conflict):
        await put_one(store, root.key("b"), b"1", first.version)
    assert await store.get(root.key("b")) is None


async def test_put_with_expected_any_overwrites(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    await put_one(store, root.key("a"), b"1", ANY)
    await put_one(other, root.key("a"), b"2", ANY)
    found = await store.get(root.key("a"))
    assert found is not None
    assert found.value == b"2"


async def test_an_acknowledged_put_is_seen_by_every_later_read(
    store: MetadataStore, other: MetadataStore, root: Root
) -> None:
    for turn in range(50):
        writer, reader = (store, other) if turn % 2 else (other, store)
        stored = await put_one(writer, root.key("a"), str(turn).encode())
        found = await reader.get(root.key("a"))
        assert found is not None
        assert (found.value, found.version) == (str(turn).encode(), stored.version)


async def test_put_of_no_items_returns_no_results(store: MetadataStore, root: Root) -> None:
    assert await store.put([]) == []
    assert await store.create([]) == []


async def test_many_puts_have_one_result_each_in_order(store: MetadataStore, root: Root) -> None:
    old = await put_one(store, root.key("old"), b"old")
    answers = await store.put(
        [
            Put(root.key("new"), b"1", ABSENT),
            Put(root.key("old"), b"2", ABSENT),
            Put(root.key("old"), b"3", old.version),
            Put(root.key("gone"), b"4", old.version),
            Put(root.key("free"), b"5"),
        ]
    )
    assert [type(answer) for answer in answers] == [Stored, Conflict, Stored, Conflict, Stored]
    records = (await store.scan(root.folder("keys"))).records
    assert {record.name: record.value for record in records} == {"new": b"1", "old": b"3", "free": b"5"}
    stored = [answer for answer in answers if isinstance(answer, Stored)]
    versions = {record.name: record.version for record in records}
    assert [answer.version for answer in stored] == [versions["new"], versions["old"], versions["free"]]


async def test_puts_of_one_key_in_one_call_take_effect_in_order(store: MetadataStore, root: Root) -> None:
    key = root.key("a")
    answers = await store.put([Put(key, b"1", ABSENT), Put(key, b"2", ABSENT), Put(key, b"3"), Put(key, b"4")])
    assert [type(answer) for answer in answers] == [Stored, Conflict, Stored, Stored]
    found = await store.get(key)
    assert found is not None
    assert found.value == b"4"
    assert isinstance(answers[3], Stored)
    assert found.version == answers[3].version


async def test_reader_of_a_put_sees_earlier_puts_of_the_home(
    store: MetadataStore, other: MetadataStore, root: Root
) -> None:
    """Groups rely on it: the writes of a coordinator take effect with its last put."""
    first, last = root.key("first"), root.key("last")

    async def write() -> None:
        for number in range(100):
            value = f"{number}".encode()
            await store.put([Put(first, value), *(Put(root.key(f"{n}"), b"x") for n in range(20)), Put(last, value)])

    async def number_of(key: Key) -> int:
        record = await other.get(key)
        return -1 if record is None else int(record.value)

    writing = asyncio.create_task(write())
    while not writing.done():
        seen = await number_of(last)
        assert await number_of(first) >= seen
        await asyncio.sleep(0)
    await writing


async def test_puts_of_several_homes_in_one_call(store: MetadataStore, root: Root) -> None:
    keys = [Key(f"{root.path}/{n}/a", f"{root.path}/{n}") for n in range(50)]
    answers = await store.put([Put(key, key.path.encode(), ABSENT) for key in keys])
    assert all(isinstance(answer, Stored) for answer in answers)
    answers = await store.put([Put(key, b"", ABSENT if n % 2 else ANY) for n, key in enumerate(keys)])
    assert [type(answer) for answer in answers] == [Stored, Conflict] * 25
    for n, key in enumerate(keys):
        found = await store.get(key)
        assert found is not None
        assert found.value == (key.path.encode() if n % 2 else b"")


async def test_each_concurrent_call_gets_its_result(store: MetadataStore, root: Root) -> None:
    async def call(n: int) -> None:
        first, again = await store.put([Put(root.key(f"{n:04}"), b"", ABSENT), Put(root.key(f"{n:04}"), b"", ABSENT)])
        assert isinstance(first, Stored)
        assert isinstance(again, Conflict)

    await asyncio.gather(*(call(n) for n in range(300)))
    assert names_of((await store.scan(root.folder("keys"))).records) == [f"{n:04}" for n in range(300)]


# When it was created


async def test_created_ms_is_the_time_of_the_stores_clock(
    store: MetadataStore, other: MetadataStore, root: Root
) -> None:
    before = await store.now_ms()
    stored = await put_one(store, root.key("a"), b"")
    assert before <= stored.created_ms <= await other.now_ms()
    await asyncio.sleep(0.01)
    again = await put_one(other, root.key("a"), b"later")
    found = await store.get(root.key("a"))
    assert found is not None
    assert stored.created_ms == again.created_ms == found.created_ms


async def test_created_ms_changes_after_a_delete(store: MetadataStore, root: Root) -> None:
    first = await put_one(store, root.key("a"), b"")
    assert await store.delete(root.key("a"))
    await asyncio.sleep(0.01)
    assert (await put_one(store, root.key("a"), b"")).created_ms > first.created_ms


# Order, floor, ceiling, scan

NAMES = ["!", "0", "00", "1", "10", "2", "A", "a", "a b", "a!", "a-b", "aa", "ab", "b", "floor", "~", "é", "日本", "😀"]


async def test_names_are_ordered_as_plain_strings(store: MetadataStore, root: Root) -> None:
    assert sorted(NAMES) == NAMES
    await fill(store, root.folder("f"), *reversed(NAMES))
    assert names_of((await store.scan(root.folder("f"))).records) == NAMES
    for name in NAMES:
        found = await store.get(root.folder("f").key(name))
        assert found is not None
        assert found.value == name.encode()


async def with_neighbours(store: MetadataStore, root: Root) -> Folder:
    """Fills a folder `f` with b, d and f, and neighbouring keys that must not be taken for its own."""
    folder = root.folder("f")
    await fill(store, folder, "b", "d", "f")
    for near in ("f!", "f-", "f0", "fa", "e", "g", "f/a", "f/c", "f/d", "f/z", "f/d/e"):
        await fill(store, root.folder(near), "a", "c", "d", "z")
    await put_one(store, Key(folder.path, root.path), b"the folder's own name")
    return folder


@pytest.mark.parametrize(
    ("name", "floor", "ceiling"),
    [
        ("", None, "b"),
        ("a", None, "b"),
        ("b", "b", "b"),
        ("c", "b", "d"),
        ("d", "d", "d"),
        ("d0", "d", "f"),
        ("f", "f", "f"),
        ("g", "f", None),
        ("~", "f", None),
        ("é", "f", None),
    ],
)
async def test_floor_and_ceiling_stay_in_their_folder(
    store: MetadataStore, root: Root, name: str, floor: str | None, ceiling: str | None
) -> None:
    folder = await with_neighbours(store, root)
    below, above = await store.floor(folder, name), await store.ceiling(folder, name)
    assert (below.path if below else None) == (folder.key(floor).path if floor else None)
    assert (above.path if above else None) == (folder.key(ceiling).path if ceiling else None)
    assert below is None or below.value == below.name.encode()


async def test_floor_and_ceiling_of_an_empty_folder(store: MetadataStore, root: Root) -> None:
    await with_neighbours(store, root)
    assert await store.floor(root.folder("ea"), "z") is None
    assert await store.ceiling(root.folder("ea"), "") is None


async def test_a_scan_stays_in_its_folder(store: MetadataStore, root: Root) -> None:
    folder = await with_neighbours(store, root)
    records = (await store.scan(folder)).records
    assert [record.path for record in records] == [folder.key(name).path for name in ("b", "d", "f")]
    assert (await store.scan(root.folder("nothing"))).records == []


@pytest.mark.parametrize(
    ("start", "end", "limit", "expected"),
    [
        ("", None, None, "bdf"),
        ("b", None, None, "bdf"),
        ("b0", None, None, "df"),
        ("", "f", None, "bd"),
        ("b", "f", None, "bd"),
        ("d", "d", None, ""),
        ("d", "d0", None, "d"),
        ("f", "b", None, ""),
        ("g", None, None, ""),
        ("", "b", None, ""),
        ("", "~", None, "bdf"),
        ("", None, 1, "b"),
        ("c", None, 1, "d"),
        ("", None, 2, "bd"),
        ("", "d", 2, "b"),
        ("", None, 3, "bdf"),
        ("", None, 100, "bdf"),
    ],
)
async def test_scan_returns_names_within_its_bounds(
    store: MetadataStore, root: Root, start: str, end: str | None, limit: int | None, expected: str
) -> None:
    folder = await with_neighbours(store, root)
    for confirmed in (False, True):
        scanned = await store.scan(folder, start, end, limit=limit, confirmed=confirmed)
        assert names_of(scanned.records) == list(expected)
        assert scanned.guard is None


async def test_long_scan_returns_all_records(store: MetadataStore, root: Root) -> None:
    names = [f"{n:020d}" for n in range(2500)]
    await fill(store, root.folder("f"), *names)
    assert names_of((await store.scan(root.folder("f"))).records) == names
    assert names_of((await store.scan(root.folder("f"), names[700], limit=1500)).records) == names[700:2200]


async def test_scan_returns_its_guard(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    folder, guard = root.folder("f"), root.folder("f").key("floor")
    await fill(store, folder, "1", "2")
    assert (await store.scan(folder, guard=guard)).guard is None
    for value in (b"1", b"2"):
        await put_one(other, guard, value)
        for confirmed in (False, True):
            scanned = await store.scan(folder, "", "3", guard=guard, confirmed=confirmed)
            assert names_of(scanned.records) == ["1", "2"]
            assert scanned.guard is not None
            assert (scanned.guard.path, scanned.guard.value) == (guard.path, value)
    assert names_of((await store.scan(folder, guard=guard)).records) == ["1", "2", "floor"]


# Create, then read the guard


async def test_create_reads_the_guard_after_it(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    guard = root.key("guard")
    first = await create_one(store, root.key("1"), b"1", guard)
    assert first.guard is None
    found = await other.get(root.key("1"))
    assert found == Record(root.key("1").path, b"1", first.version, first.created_ms)
    await put_one(store, guard, b"a")
    second = await create_one(store, root.key("2"), b"2", guard)
    assert second.guard is not None
    assert (second.guard.path, second.guard.value) == (guard.path, b"a")
    changed = await put_one(other, guard, b"changed just before")
    third = await create_one(store, root.key("3"), b"3", guard)
    assert third.guard is not None
    assert (third.guard.value, third.guard.version) == (b"changed just before", changed.version)
    assert await store.delete(guard)
    assert (await create_one(other, root.key("4"), b"4", guard)).guard is None


async def test_create_never_overwrites(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    await create_one(store, root.key("a"), b"first", root.key("guard"))
    for client in (store, other):
        with pytest.raises(Conflict):
            await create_one(client, root.key("a"), b"second", root.key("guard"))
    found = await store.get(root.key("a"))
    assert found is not None
    assert found.value == b"first"


async def test_many_creates_have_one_result_each_in_order(store: MetadataStore, root: Root) -> None:
    logs = [Folder(f"{root.path}/{n}", f"{root.path}/{n}") for n in range(40)]
    await store.put([Put(log.key("floor"), log.path.encode()) for log in logs[::2]])
    await store.put([Put(log.key("0"), b"there already") for log in logs[::5]])
    answers = await store.create([Create(log.key("0"), b"mine", log.key("floor")) for log in logs])
    assert len(answers) == len(logs)
    for n, (log, answer) in enumerate(zip(logs, answers, strict=True)):
        if n % 5 == 0:
            assert isinstance(answer, Conflict)
            continue
        assert isinstance(answer, Created)
        assert (answer.guard.value if answer.guard else None) == (log.path.encode() if n % 2 == 0 else None)
        found = await store.get(log.key("0"))
        assert found is not None
        assert (found.value, found.version, found.created_ms) == (b"mine", answer.version, answer.created_ms)


async def test_creates_of_one_key_in_one_call(store: MetadataStore, root: Root) -> None:
    create = Create(root.key("a"), b"", root.key("guard"))
    answers = await store.create([create, create])
    assert [type(answer) for answer in answers] == [Created, Conflict]


async def test_one_of_concurrent_creates_of_a_key_succeeds(
    store: MetadataStore, other: MetadataStore, root: Root
) -> None:
    keys = [root.key(f"{n:03}") for n in range(200)]
    wins: dict[Key, list[bytes]] = {key: [] for key in keys}

    async def claim(client: MetadataStore, name: bytes, key: Key) -> None:
        (answer,) = await client.create([Create(key, name, root.key("guard"))])
        if isinstance(answer, Created):
            wins[key].append(name)
        else:
            assert isinstance(answer, Conflict)

    await asyncio.gather(
        *(claim(client, name, key) for key in keys for client, name in ((store, b"one"), (other, b"two")))
    )
    assert {key: [(await store.get(key) or Record("", b"", 0, 0)).value] for key in keys} == wins


async def test_concurrent_increments_are_all_kept(backend: Backend, root: Root) -> None:
    clients = [await backend.open() for _ in range(4)]
    await put_one(clients[0], root.key("n"), b"0", ABSENT)

    async def increment(client: MetadataStore) -> None:
        while True:
            there = await client.get(root.key("n"))
            assert there is not None
            try:
                await put_one(client, root.key("n"), str(int(there.value) + 1).encode(), there.version)
            except Conflict:
                continue
            return

    async def count(client: MetadataStore) -> None:
        for _ in range(25):
            await increment(client)

    await asyncio.gather(*(count(client) for client in clients))
    found = await clients[0].get(root.key("n"))
    assert found is not None
    assert found.value == b"100"


# Delete


async def test_delete_returns_whether_the_record_existed(
    store: MetadataStore, other: MetadataStore, root: Root
) -> None:
    await put_one(store, root.key("a"), b"")
    assert await other.delete(root.key("a"))
    assert await store.get(root.key("a")) is None
    assert (await store.scan(root.folder("keys"))).records == []
    assert await store.floor(root.folder("keys"), "z") is None
    assert not await store.delete(root.key("a"))
    assert not await other.delete(root.key("never"))


async def test_delete_with_another_version_conflicts(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    first = await put_one(store, root.key("a"), b"1")
    second = await put_one(store, root.key("a"), b"2")
    with pytest.raises(Conflict):
        await other.delete(root.key("a"), first.version)
    assert await store.get(root.key("a")) is not None
    assert await other.delete(root.key("a"), second.version)
    assert not await other.delete(root.key("a"), second.version)
    assert await store.get(root.key("a")) is None


async def test_version_is_not_reused_after_a_delete(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    seen: set[int] = set()
    for client in (store, other) * 5:
        stored = await put_one(client, root.key("a"), b"same", ABSENT)
        assert stored.version not in seen
        for version in seen:
            with pytest.raises(Conflict):
                await put_one(client, root.key("a"), b"stale", version)
        seen.add(stored.version)
        assert await client.delete(root.key("a"))


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [("", "~", ""), ("b", "f", "f"), ("b0", "e", "bf"), ("d", "d", "bdf"), ("f", "b", "bdf"), ("g", "~", "bdf")],
)
async def test_delete_range_deletes_names_within_its_bounds(
    store: MetadataStore, other: MetadataStore, root: Root, start: str, end: str, left: str
) -> None:
    folder = await with_neighbours(store, root)
    await store.delete_range(folder, start, end)
    assert names_of((await other.scan(folder)).records) == list(left)
    for near in ("f!", "f-", "f0", "fa", "e", "g", "f/a", "f/c", "f/d", "f/z", "f/d/e"):
        assert names_of((await other.scan(root.folder(near))).records) == ["a", "c", "d", "z"]
    assert await other.get(Key(folder.path, root.path)) is not None


async def test_delete_range_deletes_many_records(store: MetadataStore, root: Root) -> None:
    names = [f"{n:020d}" for n in range(2500)]
    await fill(store, root.folder("f"), *names)
    await store.delete_range(root.folder("f"), names[0], names[2400])
    assert names_of((await store.scan(root.folder("f"))).records) == names[2400:]


# Sessions


async def test_ephemeral_record_is_deleted_with_its_session(
    store: MetadataStore, other: MetadataStore, backend: Backend, root: Root
) -> None:
    session = await store.session(backend.session_ms)
    assert not session.lost
    stored = await put_ephemeral(store, root.key("a"), b"here", session)
    await put_one(store, root.key("b"), b"stays")
    found = await other.get(root.key("a"))
    assert found == Record(root.key("a").path, b"here", stored.version, stored.created_ms)
    assert names_of((await other.scan(root.folder("keys"))).records) == ["a", "b"]
    await session.close()
    assert session.lost
    assert await other.get(root.key("a")) is None
    assert names_of((await other.scan(root.folder("keys"))).records) == ["b"]
    await put_one(other, root.key("a"), b"anew", ABSENT)


async def test_expected_holds_for_ephemeral_puts_too(store: MetadataStore, backend: Backend, root: Root) -> None:
    session = await store.session(backend.session_ms)
    first = await put_ephemeral(store, root.key("a"), b"1", session, ABSENT)
    with pytest.raises(Conflict):
        await put_ephemeral(store, root.key("a"), b"2", session, ABSENT)
    await put_ephemeral(store, root.key("a"), b"3", session, first.version)
    with pytest.raises(Conflict):
        await put_ephemeral(store, root.key("a"), b"4", session, first.version)
    await session.close()
    assert await store.get(root.key("a")) is None


async def test_put_with_a_closed_session_is_missing(store: MetadataStore, backend: Backend, root: Root) -> None:
    session = await store.session(backend.session_ms)
    await put_ephemeral(store, root.key("a"), b"", session)
    await session.close()
    answers = await store.put([Put(root.key("a"), b"", ANY, session), Put(root.key("b"), b"")])
    assert [type(answer) for answer in answers] == [Missing, Stored]
    assert await store.get(root.key("a")) is None


async def test_overwrite_changes_the_session_of_a_record(
    store: MetadataStore, other: MetadataStore, backend: Backend, root: Root
) -> None:
    mine, theirs = await store.session(backend.session_ms), await other.session(backend.session_ms)
    for name in ("kept", "taken", "mine"):
        await put_ephemeral(store, root.key(name), b"", mine)
    await put_one(store, root.key("kept"), b"permanent now")
    await put_ephemeral(other, root.key("taken"), b"theirs now", theirs)
    await mine.close()
    assert names_of((await store.scan(root.folder("keys"))).records) == ["kept", "taken"]
    await theirs.close()
    assert names_of((await store.scan(root.folder("keys"))).records) == ["kept"]


async def test_key_can_be_created_after_an_ephemeral_record_was_deleted(
    store: MetadataStore, backend: Backend, root: Root
) -> None:
    session = await store.session(backend.session_ms)
    await put_ephemeral(store, root.key("a"), b"", session)
    assert await store.delete(root.key("a"))
    await put_one(store, root.key("a"), b"permanent", ABSENT)
    await session.close()
    assert await store.get(root.key("a")) is not None


async def test_session_of_a_live_client_does_not_expire(
    store: MetadataStore, other: MetadataStore, backend: Backend, root: Root
) -> None:
    session = await store.session(backend.session_ms)
    await put_ephemeral(store, root.key("a"), b"", session)
    await asyncio.sleep(2 * backend.session_ms / 1000)
    assert not session.lost
    assert await other.get(root.key("a")) is not None


async def test_sessions_end_with_their_client(
    store: MetadataStore, other: MetadataStore, backend: Backend, root: Root
) -> None:
    session = await store.session(backend.session_ms)
    await put_ephemeral(store, root.key("a"), b"", session)
    await store.close()

    async def is_deleted() -> bool:
        return await other.get(root.key("a")) is None

    await eventually(is_deleted, backend.session_ms / 1000 + 5)


async def test_a_frozen_clients_session_is_lost(store: MetadataStore, backend: Backend, root: Root) -> None:
    async with backend.remote_client() as there:

        async def open_session(far: MetadataStore) -> Session:
            session = await far.session(backend.session_ms)
            await put_ephemeral(far, root.key("a"), b"", session)
            return session

        async def wait_lost(far: MetadataStore) -> bool:
            lost = session.lost
            async with asyncio.timeout(WAKE_S_MAX):
                await session.wait_lost()
            return lost

        async def put_again(far: MetadataStore) -> None:
            await put_ephemeral(far, root.key("a"), b"zombie", session)

        async def is_deleted() -> bool:
            return await store.get(root.key("a")) is None

        session = await there.run(open_session)
        assert not await is_deleted()
        there.freeze()
        await eventually(is_deleted, backend.session_ms / 1000 + 5)
        assert (await store.scan(root.folder("keys"))).records == []
        assert await store.floor(root.folder("keys"), "z") is None
        assert await store.ceiling(root.folder("keys"), "") is None
        await put_one(store, root.key("b"), b"", ABSENT)
        there.thaw()
        assert await there.run(wait_lost)
        with pytest.raises(Missing):
            await there.run(put_again)
        assert await is_deleted()


async def test_key_can_be_created_after_its_session_expired(store: MetadataStore, backend: Backend, root: Root) -> None:
    async with backend.remote_client() as there:

        async def open_session(far: MetadataStore) -> None:
            await put_ephemeral(far, root.key("a"), b"", await far.session(backend.session_ms))

        await there.run(open_session)
        with pytest.raises(Conflict):
            await put_one(store, root.key("a"), b"too early", ABSENT)
        there.freeze()

        async def create() -> bool:
            (answer,) = await store.create([Create(root.key("a"), b"mine", root.key("guard"))])
            return isinstance(answer, Created)

        await eventually(create, backend.session_ms / 1000 + 5)
        there.thaw()


# Watch


@asynccontextmanager
async def watching(store: MetadataStore, prefix: str) -> AsyncIterator[AsyncIterator[Changes]]:
    """Opens a watch and takes its first item."""
    async with aclosing(cast(AsyncGenerator[Changes, None], store.watch(prefix))) as changes:
        assert await take(changes) == Changes(frozenset(), everything=True)
        yield changes


async def take(changes: AsyncIterator[Changes]) -> Changes:
    async with asyncio.timeout(WAKE_S_MAX):
        return await anext(changes)


async def take_until(changes: AsyncIterator[Changes], *paths: str) -> list[Changes]:
    """Takes items until they contain all paths. `everything` covers all paths, because the consumer then reads them."""
    missing, items = set(paths), []
    while missing:
        items.append(await take(changes))
        missing -= missing if items[-1].everything else items[-1].paths
    return items


async def test_a_watch_begins_with_everything(store: MetadataStore, root: Root) -> None:
    await put_one(store, root.key("a"), b"")
    async with watching(store, root.path), watching(store, "/"):
        pass


async def test_watch_reports_changes_of_all_clients(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    async with watching(store, root.path) as changes:
        for writer in (other, store, other):
            await put_one(writer, root.key("a"), b"")
            await take_until(changes, root.key("a").path)
            await create_one(writer, root.key("b"), b"", root.key("guard"))
            await take_until(changes, root.key("b").path)
            await writer.delete(root.key("b"))
            await take_until(changes, root.key("b").path)


async def test_watch_reports_deleted_ranges(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    folder = root.folder("f")
    await fill(other, folder, "1", "2", "3")
    async with watching(store, root.path) as changes:
        await other.delete_range(folder, "1", "3")
        await take_until(changes, folder.key("1").path, folder.key("2").path)


async def test_watch_reports_ephemeral_records(
    store: MetadataStore, other: MetadataStore, backend: Backend, root: Root
) -> None:
    session = await other.session(backend.session_ms)
    async with watching(store, root.path) as changes:
        await put_ephemeral(other, root.key("a"), b"", session)
        await take_until(changes, root.key("a").path)
        await session.close()
        await take_until(changes, root.key("a").path)


async def test_watch_reports_records_of_an_expired_session(store: MetadataStore, backend: Backend, root: Root) -> None:
    async with backend.remote_client() as there, watching(store, root.path) as changes:

        async def open_session(far: MetadataStore) -> None:
            await put_ephemeral(far, root.key("a"), b"", await far.session(backend.session_ms))

        await there.run(open_session)
        await take_until(changes, root.key("a").path)
        there.freeze()

        async def is_deleted() -> bool:
            await take(changes)
            return await store.get(root.key("a")) is None

        await eventually(is_deleted, backend.session_ms / 1000 + WAKE_S_MAX)
        there.thaw()


async def test_watch_reports_only_its_prefix(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    async with watching(store, f"{root.path}/a") as changes:
        await put_one(other, root.folder("b").key("x"), b"")
        await put_one(other, root.folder("a").key("x"), b"")
        await put_one(other, root.folder("aa/deeper").key("x"), b"")
        wanted = {root.folder("a").key("x").path, root.folder("aa/deeper").key("x").path}
        items = await take_until(changes, *wanted)
        assert frozenset().union(*(item.paths for item in items)) <= wanted


async def test_changes_are_merged_for_a_slow_consumer(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    keys = [root.key(f"{n:02}") for n in range(50)]
    paths = {key.path for key in keys}
    async with watching(store, root.path) as slow, watching(store, root.path) as quick:
        for key in keys:
            await put_one(other, key, b"")
        await take_until(quick, *paths)
        item = await take(slow)
        assert item.everything or item.paths == paths


async def test_every_watch_reports_a_change(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    async with watching(store, root.path) as one, watching(store, root.path) as two, watching(other, root.path) as far:
        await put_one(other, root.key("a"), b"")
        for changes in (one, two, far):
            await take_until(changes, root.key("a").path)


async def test_watch_can_be_cancelled_while_it_waits(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    async with watching(store, root.path) as kept:
        tasks_before = len(asyncio.all_tasks())
        for _ in range(5):
            async with watching(store, root.path) as changes:
                waiting = asyncio.ensure_future(anext(changes))
                await asyncio.sleep(0.01)
                waiting.cancel()
                await asyncio.wait([waiting])
        await put_one(other, root.key("a"), b"")
        await take_until(kept, root.key("a").path)
    assert len(asyncio.all_tasks()) <= tasks_before + 3  # the store's own tasks do not accumulate


# Close


async def test_a_closed_store_is_unavailable(store: MetadataStore, other: MetadataStore, root: Root) -> None:
    await put_one(store, root.key("a"), b"")
    await store.close()
    await store.close()
    folder, key = root.folder("keys"), root.key("a")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get(key),
        lambda: store.floor(folder, "a"),
        lambda: store.ceiling(folder, "a"),
        lambda: store.scan(folder),
        lambda: put_one(store, key, b""),
        lambda: create_one(store, root.key("b"), b"", key),
        lambda: store.delete(key),
        lambda: store.delete_range(folder, "", "~"),
        lambda: store.session(10_000),
        lambda: anext(store.watch(root.path)),
        lambda: store.now_ms(),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            await call()
    assert names_of((await other.scan(folder)).records) == ["a"]


async def test_close_ends_waiting_watches(store: MetadataStore, root: Root) -> None:
    async with watching(store, root.path) as changes:
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.01)
        await store.close()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(WAKE_S_MAX):
                await waiting
