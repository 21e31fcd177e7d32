"""The schema registry on every metadata store: one order of changes, whoever keeps them."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.metadata_backends import BACKENDS, Backend
from tests.unit.coordination.schemas.stand_in import registry_over, wanted

from lakestream.coordination.schemas.deleting import delete_subject
from lakestream.coordination.schemas.names import parse
from lakestream.coordination.schemas.refusals import NoSuchSchema, NoSuchSubject
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.coordination.schemas.shelf import SchemaShelf
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
        registry.close()


@pytest.fixture
def mark() -> str:
    """Servers are shared among tests: each has subjects and fields of its own."""
    return uuid.uuid4().hex


async def test_brokers_race_and_agree(backend: Backend, registries: list[SchemaRegistry], mark: str) -> None:
    same = await asyncio.gather(*(one.register(wanted(f"same-{mark}", mark)) for one in registries))
    assert len({found.version for found in same}) == 1
    wishes = [wanted(f"s-{mark}", mark, f"f{number}?") for number in range(9)]
    found = await asyncio.gather(*(registries[number % 3].register(wish) for number, wish in enumerate(wishes)))
    assert sorted(one.version.number for one in found) == list(range(1, 10))
    assert len({one.version.id for one in found}) == 9
    shelf = SchemaShelf(await backend.open())
    for one in found:
        assert (await shelf.source_of(".", one.version.id)).text == one.text.text
        assert (await shelf.version(f"s-{mark}", one.version.number)).id == one.version.id


async def test_what_is_gone_is_gone_everywhere(registries: list[SchemaRegistry], mark: str) -> None:
    here, there, _ = registries
    made = await here.register(wanted(mark, mark))
    assert (await there.registration(parse(mark), 1)).version == made.version
    for permanent in (False, True):
        await here.change(lambda state, how=permanent: delete_subject(state, parse(mark), permanent=how))  # type: ignore[misc]
    with pytest.raises(NoSuchSubject):
        await there.registration(parse(mark), 1)
    with pytest.raises(NoSuchSchema):
        await SchemaShelf(here.shelf.log._store).source_of(".", made.version.id)
    assert Removed(mark, (1,), True) in await there.shelf.log.read(0)
