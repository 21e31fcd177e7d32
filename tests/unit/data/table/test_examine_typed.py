"""What `lakestream doctor` says of typed tables."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.data.table.lakes import LOG, NOW_MS, TOPIC_ID
from tests.unit.data.table.plain import Record, batch_of
from tests.unit.data.table.test_examine import Doctor
from tests.unit.data.table.typed_lakes import TypedLake, odd_values, typed, typed_lake
from tests.unit.data.typed.tiny import value

from lakestream.data.table.past import Past
from lakestream.model import PartitionId


@pytest.fixture
async def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TypedLake]:
    async with typed_lake(tmp_path, monkeypatch) as lake:
        yield lake


@pytest.fixture
async def doctor(lake: TypedLake) -> AsyncIterator[Doctor]:
    made = Doctor(lake)
    await made.topics.create("orders", made.topic)
    yield made
    await made.threads.close()


async def reach(doctor: Doctor, count: int) -> None:
    doctor.served.end = count
    await doctor.claims.advance_table_end(LOG, count)
    await doctor.claims.raise_floor(LOG, count)


async def test_nothing_while_all_is_well(lake: TypedLake, doctor: Doctor) -> None:
    await typed(lake)
    await lake.type(odd_values(100))
    await lake.type([None, None])
    await reach(doctor, 102)
    assert await doctor.troubles() == []


async def test_a_value_that_is_not_served(lake: TypedLake, doctor: Doctor) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None), b"raw"])
    await reach(doctor, 2)

    async def history(partition: PartitionId, offset: int, bytes_max: int) -> Past:
        """A deletion, where there is a value."""
        return Past([(0, [batch_of([Record(0, NOW_MS, 0, b"k0", None), Record(1, NOW_MS + 1, 0, b"k1", b"raw")])])], 2)

    doctor.served.history = history  # type: ignore[method-assign]
    found = await doctor.troubles()
    assert any("offset 0" in text for text in found), found


async def test_a_writer_that_is_gone(lake: TypedLake, doctor: Doctor) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None), b"raw"])
    await lake.catalog.writers.remove(TOPIC_ID)
    await reach(doctor, 2)
    found = await doctor.troubles()
    assert any("writer 1 typed, and nobody knows it" in text for text in found), found
