"""Contract of the records of writer schemas, on every metadata store."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.harness.stores.metadata_backends import BACKENDS

from lakestream.errors import Corrupt, Missing
from lakestream.metadata import keys
from lakestream.metadata.store import MetadataStore, put_one
from lakestream.metadata.writer_schemas import Writers
from lakestream.schemas.value_format import ValuePart
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema

WRITER = WriterSchema(
    7,
    "AVRO",
    '{"type": "ä"}',
    references=(("a", "b"),),
    schema_id=7,
    framed=True,
    columns=(ColumnBinding(16, (None, ColumnBinding(17))), None),
)


@pytest.fixture(params=list(BACKENDS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield await backend.open()


@pytest.fixture
def topic_id() -> str:
    return uuid.uuid4().hex


async def test_a_writer_is_read_as_it_was_written(store: MetadataStore, topic_id: str) -> None:
    writers = Writers(store)
    assert await writers.create(topic_id, ValuePart.VALUE, WRITER) == WRITER
    assert await writers.get(topic_id, 7) == WRITER
    with pytest.raises(Missing, match=f"/typed/{topic_id}/8 is missing"):
        await writers.get(topic_id, 8)


async def test_second_create_returns_the_first_record(store: MetadataStore, topic_id: str) -> None:
    writers = Writers(store)
    await writers.create(topic_id, ValuePart.VALUE, WRITER)
    assert await writers.create(topic_id, ValuePart.VALUE, WriterSchema(7, "JSON", "{}")) == WRITER


async def test_all_and_remove_affect_one_table_only(store: MetadataStore, topic_id: str) -> None:
    writers = Writers(store)
    values = {number: WriterSchema(number, "JSON", "") for number in (*range(-120, 0), 1, 2**31 - 1)}
    key = WriterSchema(5, "AVRO", "key")
    for writer in values.values():
        await writers.create(topic_id, ValuePart.VALUE, writer)
    await writers.create(topic_id, ValuePart.KEY, key)
    await writers.create(f"{topic_id}0", ValuePart.VALUE, WRITER)
    found = await writers.all(topic_id)
    assert found.values == values
    assert found.of(ValuePart.KEY) == {5: key}
    await writers.remove(topic_id)
    gone = await writers.all(topic_id)
    assert not gone.values
    assert not gone.keys
    assert await writers.get(f"{topic_id}0", 7) == WRITER


async def test_invalid_record_is_corrupt(store: MetadataStore, topic_id: str) -> None:
    await put_one(store, keys.writer_key(topic_id, "value", 1), b"\xff{")
    with pytest.raises(Corrupt, match="is not a writer schema"):
        await Writers(store).get(topic_id, 1)
