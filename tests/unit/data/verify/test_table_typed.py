"""Checks of tables with converted values by `lakestream doctor`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.harness.table.history_tables import LOG, NOW_MS, TOPIC_ID
from tests.harness.table.reference_codec import Record, batch_of
from tests.harness.table.typed_history_tables import TypedLake, odd_values, typed, typed_lake
from tests.harness.typed.toy_format import value
from tests.unit.data.verify.test_table import Doctor

from lakestream.data.table.history_types import HistoryRead
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


async def test_no_findings_when_the_table_is_valid(lake: TypedLake, doctor: Doctor) -> None:
    await typed(lake)
    await lake.type(odd_values(100))
    await lake.type([None, None])
    await reach(doctor, 102)
    assert await doctor.problems() == []


async def test_finding_when_a_value_cannot_be_served(lake: TypedLake, doctor: Doctor) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None), b"raw"])
    await reach(doctor, 2)

    async def history(partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        """Returns a tombstone instead of a value."""
        return HistoryRead(
            [(0, [batch_of([Record(0, NOW_MS, 0, b"k0", None), Record(1, NOW_MS + 1, 0, b"k1", b"raw")])])], 2
        )

    doctor.served.history = history  # type: ignore[method-assign]
    found = await doctor.problems()
    assert any("offset 0" in text for text in found), found


async def test_finding_when_a_writer_schema_is_missing(lake: TypedLake, doctor: Doctor) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None), b"raw"])
    await lake.catalog.writers.remove(TOPIC_ID)
    await reach(doctor, 2)
    found = await doctor.problems()
    assert any("rows of writer schema 1, which the metadata store lacks" in text for text in found), found
