"""The catalog on every metadata store: the same results, and one winner of concurrent commits."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.harness.catalog.iceberg_tables import SCHEMA, append, catalog_over
from tests.harness.stores.metadata_backends import BACKENDS, Backend

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import (
    CommitFailed,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    TableExists,
)
from lakestream.catalog.identifiers import Namespace, TableName
from lakestream.catalog.table_metadata import updates as u
from lakestream.catalog.table_metadata.builder import NewTable
from lakestream.catalog.table_metadata.requirements import AssertRefSnapshotId
from lakestream.clock import SystemClock
from lakestream.errors import LakestreamError
from lakestream.storage.memory import MemoryObjectStore


@pytest.fixture(params=list(BACKENDS))
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(SystemClock())


@pytest.fixture
async def catalogs(backend: Backend, objects: MemoryObjectStore) -> list[Catalog]:
    """Returns catalogs of three processes, each with its own client. Ids differ from those of earlier runs."""
    return [catalog_over(await backend.open(), objects, uuid.uuid4().int) for _ in range(3)]


@pytest.fixture
async def catalog(catalogs: list[Catalog]) -> Catalog:
    return catalogs[0]


@pytest.fixture
async def namespace(catalog: Catalog) -> Namespace:
    made = (f"test-{uuid.uuid4().hex}",)
    await catalog.namespaces.create(made, {"owner": "me"})
    return made


async def test_namespaces(catalog: Catalog, namespace: Namespace) -> None:
    odd = [(*namespace, name) for name in ("a.b", "a/b", "ü %+", "~", "a")]
    for one in odd:
        await catalog.namespaces.create(one, {})
    await catalog.namespaces.create((*namespace, "a", "deep"), {})
    assert sorted(await catalog.namespaces.children(namespace)) == sorted(odd)
    assert await catalog.namespaces.children((*namespace, "a")) == [(*namespace, "a", "deep")]
    assert namespace in await catalog.namespaces.children()
    with pytest.raises(NamespaceExists):
        await catalog.namespaces.create(namespace, {})
    with pytest.raises(NamespaceNotEmpty):
        await catalog.drop_namespace((*namespace, "a"))
    with pytest.raises(NoSuchNamespace):
        await catalog.namespaces.properties((*namespace, "none"))
    altered = await catalog.namespaces.alter(namespace, {"a": "b"}, ["owner", "none"])
    assert (altered.updated, altered.removed, altered.missing) == (["a"], ["owner"], ["none"])
    assert await catalog.namespaces.properties(namespace) == {"a": "b"}
    for one in [(*namespace, "a", "deep"), *odd, namespace]:
        await catalog.drop_namespace(one)
    with pytest.raises(NoSuchNamespace):
        await catalog.drop_namespace(namespace)


async def test_create_commit_rename_drop(catalog: Catalog, catalogs: list[Catalog], namespace: Namespace) -> None:
    name, renamed = TableName(namespace, "a/b.c ü"), TableName(namespace, "new")
    table = await catalog.create(name, NewTable(SCHEMA))
    assert (await catalogs[1].load(name)).metadata == table.metadata
    with pytest.raises(TableExists):
        await catalogs[1].create(name, NewTable(SCHEMA))
    await catalogs[1].commit(name, [AssertRefSnapshotId("main")], append(1, 1, location=table.metadata["location"]))
    with pytest.raises(CommitFailed):
        await catalog.commit(name, [AssertRefSnapshotId("main")], append(2, 1, location=table.metadata["location"]))
    await catalogs[2].rename(name, renamed)
    assert not await catalog.exists(name)
    assert (await catalog.load(renamed)).metadata["current-snapshot-id"] == 1
    assert (await catalog.pointers.page(namespace)).names == ["new"]
    with pytest.raises(NamespaceNotEmpty):
        await catalog.drop_namespace(namespace)
    await catalog.drop(renamed)
    with pytest.raises(NoSuchTable):
        await catalogs[2].load(renamed)
    await catalogs[2].drop_namespace(namespace)


async def test_many_tables_are_listed_in_pages(catalog: Catalog, namespace: Namespace) -> None:
    names = [f"t{number}" for number in range(25)] + ["t1x", "t1.x", "ü"]
    for name in names:
        await catalog.create(TableName(namespace, name), NewTable(SCHEMA))
    seen: list[str] = []
    start, pages = "", 0
    while pages == 0 or start:
        page = await catalog.pointers.page(namespace, start, limit=10)
        seen, start, pages = seen + page.names, page.following, pages + 1
    assert (sorted(seen), pages) == (sorted(names), 3)


async def test_one_of_many_concurrent_commits_succeeds(
    catalogs: list[Catalog], namespace: Namespace, objects: MemoryObjectStore
) -> None:
    name = TableName(namespace, "contested")
    created = await catalogs[0].create(name, NewTable(SCHEMA))
    wins = [0, 0, 0]

    async def writer(process: int) -> None:
        while True:
            head = (await catalogs[process].load(name)).metadata
            number = head["last-sequence-number"] + 1
            if number > 15:
                return
            parent = head["current-snapshot-id"]
            expected = None if parent == -1 else parent
            try:
                change = append(number * 10 + process, number, expected, head["location"])
                await catalogs[process].commit(name, [AssertRefSnapshotId("main", expected)], change)
                wins[process] += 1
            except CommitFailed:
                continue

    await asyncio.gather(*(writer(process) for process in range(3)))
    table = (await catalogs[0].load(name)).metadata
    assert sum(wins) == len(table["snapshots"]) == len(table["snapshot-log"]) == 15
    assert [one["sequence-number"] for one in table["snapshots"]] == list(range(1, 16))
    folder = created.metadata["location"].removeprefix("s3://lake/data/")
    assert len([info async for page in objects.walk(folder) for info in page]) == 16


async def test_concurrent_create_rename_drop_lose_no_table(catalogs: list[Catalog], namespace: Namespace) -> None:
    """Three processes create, rename and drop three names: no table is lost, none has two names."""
    names = [TableName(namespace, text) for text in "abc"]
    made: set[str] = set()
    dropped: set[str] = set()

    async def worker(process: int) -> None:
        catalog = catalogs[process]
        for step in range(8):
            name, other = names[(step + process) % 3], names[(step * 2 + process) % 3]
            try:
                match step % 4:
                    case 0 | 2:
                        made.add((await catalog.create(name, NewTable(SCHEMA))).table_id)
                    case 1:
                        await catalog.rename(name, other)
                    case 3:
                        dropped.add((await catalog.pointers.drop(name, purge=False)).table_id)
            except LakestreamError:
                continue

    await asyncio.gather(*(worker(process) for process in range(3)))
    there = (await catalogs[0].pointers.page(namespace)).names
    ids = [(await catalogs[0].load(TableName(namespace, name))).table_id for name in there]
    assert sorted(ids) == sorted(made - dropped)


async def test_concurrent_property_changes_are_all_kept(catalogs: list[Catalog], namespace: Namespace) -> None:
    name = TableName(namespace, "t")
    await catalogs[0].create(name, NewTable(SCHEMA))
    changes = [(catalog, u.SetProperties({f"p{process}": "x"})) for process, catalog in enumerate(catalogs)]
    await asyncio.gather(*(catalog.commit(name, [], [change]) for catalog, change in changes))
    assert set((await catalogs[0].load(name)).metadata["properties"]) == {"p0", "p1", "p2"}
