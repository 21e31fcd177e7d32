"""The schema registry on every metadata store: all brokers apply one order of changes."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.harness.stores.metadata_backends import BACKENDS, Backend
from tests.harness.typed.toy_schema_format import registry_over, wanted

from lakestream.coordination.schema_registry.delete import delete_subject
from lakestream.coordination.schema_registry.errors import NoSuchSchema, NoSuchSubject
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.coordination.schema_registry.subjects import parse
from lakestream.metadata.schemas import Removed


@pytest.fixture(params=list(BACKENDS))
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
async def registries(backend: Backend) -> AsyncIterator[list[SchemaRegistry]]:
    """Three brokers."""
    opened = [registry_over(await backend.open()) for _ in range(3)]
    yield opened
    for registry in opened:
        await registry.close()


@pytest.fixture
def mark() -> str:
    """Returns a unique suffix of subjects and fields, because tests share servers."""
    return uuid.uuid4().hex


async def test_concurrent_registrations_get_unique_ids_and_versions(
    backend: Backend, registries: list[SchemaRegistry], mark: str
) -> None:
    same = await asyncio.gather(*(registry.register(wanted(f"same-{mark}", mark)) for registry in registries))
    assert len({registered.version for registered in same}) == 1
    requests = [wanted(f"s-{mark}", mark, f"f{number}?") for number in range(9)]
    results = await asyncio.gather(
        *(registries[number % 3].register(request) for number, request in enumerate(requests))
    )
    assert sorted(registered.version.number for registered in results) == list(range(1, 10))
    assert len({registered.version.id for registered in results}) == 9
    reader = SchemaReader(await backend.open())
    for registered in results:
        assert (await reader.source_of(".", registered.version.id)).text == registered.text.text
        assert (await reader.version(f"s-{mark}", registered.version.number)).id == registered.version.id


async def test_permanently_deleted_subject_is_missing_at_all_brokers(
    registries: list[SchemaRegistry], mark: str
) -> None:
    here, there, _ = registries
    registered = await here.register(wanted(mark, mark))
    assert (await there.registration(parse(mark), 1)).version == registered.version
    for permanent in (False, True):
        await here.change(lambda state, how=permanent: delete_subject(state, parse(mark), permanent=how))  # type: ignore[misc]
    with pytest.raises(NoSuchSubject):
        await there.registration(parse(mark), 1)
    with pytest.raises(NoSuchSchema):
        await SchemaReader(here.reader.log._store).source_of(".", registered.version.id)
    assert Removed(mark, (1,), True) in await there.reader.log.read(0)
