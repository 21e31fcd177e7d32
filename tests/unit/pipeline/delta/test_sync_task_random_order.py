"""Tests random sequences of changes to a table and its Delta table: in the end both have the same rows, each once."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.manifest import DataFileContent
from tests.harness.table.history_tables import TOPIC_ID, Lake, many, rows_of
from tests.unit.pipeline.delta.test_sync_task import BOTH, EAGER, fields, maintenance_of, root, set_fields, sync_task_of

from lakestream.catalog.delta.log import DeltaLog
from lakestream.catalog.delta.paths import key_of
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.data.table.arrow.types import SCHEMA
from lakestream.errors import Unavailable
from lakestream.metadata.topics import Topic, Topics

SEEDS = range(40 if os.environ.get("SOAK") else 3)
STEPS = 30


@pytest.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    made = await Lake(tmp_path).open()
    await Topics(made.server.client()).create("orders", Topic(TOPIC_ID, 1, BOTH))
    yield made
    await made.close()


class RandomChanges:
    def __init__(self, lake: Lake, luck: random.Random) -> None:
        self.lake, self.luck = lake, luck
        self.sync_tasks = [sync_task_of(lake) for _ in range(2)]
        self.end = 0
        self.left: set[int] = set()
        self.names = 0

    async def move(self) -> None:
        count = self.luck.randint(1, 6)
        await self.lake.move(many(self.end, self.end + count))
        self.left |= set(range(self.end, self.end + count))
        self.end += count

    async def sync(self) -> None:
        await self.luck.choice(self.sync_tasks).sync_all()

    async def sync_concurrently(self) -> None:
        await asyncio.gather(*(sync_task.sync_all() for sync_task in self.sync_tasks))

    async def restart_sync(self) -> None:
        """As after a restart of the process: without caches."""
        self.sync_tasks[self.luck.randrange(2)] = sync_task_of(self.lake)

    async def lose_a_response(self) -> None:
        create, luck = type(self.lake.store).create, self.luck

        async def lost(store: Any, key: str, body: Any) -> None:
            if luck.random() < 0.5:
                await create(store, key, body)
            raise Unavailable("no answer")

        log = DeltaLog.commit

        async def commit(delta: DeltaLog, *arguments: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(self.lake.store), "create", lost)
                return await log(delta, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeltaLog, "commit", commit)
            await self.sync()

    async def maintain(self) -> None:
        sync_task = self.luck.choice(self.sync_tasks)
        await maintenance_of(self.lake, sync_task, EAGER).maintain()

    async def add_position_delete(self) -> None:
        data = (await self._listing()).data
        if not data:
            return
        file = self.luck.choice(data)
        offsets = self._offsets(file.location)
        place = self.luck.randrange(len(offsets))
        positions = pa.table({"file_path": [file.location], "pos": pa.array([place], pa.int64())})
        deletes = await self.lake.foreign_file(positions, content=DataFileContent.POSITION_DELETES)
        await self.lake.replace([], [deletes], keep=True)
        self.left.discard(offsets[place])

    async def rewrite(self) -> None:
        """As another engine that deletes some rows."""
        if self.left:
            self.left -= set(self.luck.sample(sorted(self.left), min(2, len(self.left) - 1)))
            rows = rows_of([record for record in many(0, self.end) if record.offset in self.left]).cast(SCHEMA)
            await self.lake.replace([await self.lake.foreign_file(rows)])

    async def add_column(self) -> None:
        number = 16 + self.names
        self.names += 1
        new = {"id": number, "name": f"more{self.names % 2}_{number}", "type": "string", "required": False}
        await set_fields(self.lake, [*await fields(self.lake), new])

    async def rename(self) -> None:
        found = await fields(self.lake)
        self.names += 1
        await set_fields(self.lake, [{**one, "name": f"v{self.names}"} if one["id"] == 1 else one for one in found])

    async def _listing(self) -> Any:
        listings = LiveFileReader(self.lake.store, self.lake.catalog.locations)
        return await listings.of_main((await self.lake.table()).metadata)

    def _offsets(self, location: str) -> list[int]:
        rows = pq.read_table(self.lake.root / self.lake.key(location), columns=["_stream"]).to_pylist()
        return [row["_stream"]["offset"] for row in rows]

    async def final_offsets(self) -> list[int]:
        """Returns the offsets in the Delta table after maintenance has rewritten all files that block it."""
        sync_task = sync_task_of(self.lake)
        for _ in range(4):
            await sync_task.sync_all()
            if not sync_task.statuses[TOPIC_ID].lagging:
                break
            await maintenance_of(self.lake, sync_task, EAGER).maintain()
        assert sync_task.statuses[TOPIC_ID].lagging == ""
        key = self.lake.key((await self.lake.table()).metadata["location"])
        state = await DeltaLog(self.lake.store, f"{key}/data/_delta_log").read()
        files = [self.lake.root / key_of(path, f"{key}/data") for path in state.files]
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        assert all("value" in row for row in rows), "files keep the first name of the column"
        return sorted(row["_stream"]["offset"] for row in rows)


@pytest.mark.parametrize("seed", SEEDS)
async def test_both_tables_have_the_same_rows_after_random_changes(lake: Lake, seed: int) -> None:
    luck = random.Random(seed)
    changes = RandomChanges(lake, luck)
    common = [changes.move, changes.sync, changes.sync_concurrently, changes.maintain]
    rare = [
        changes.restart_sync,
        changes.lose_a_response,
        changes.add_position_delete,
        changes.rewrite,
        changes.add_column,
        changes.rename,
    ]
    await changes.move()
    for _ in range(STEPS):
        await luck.choice(luck.choice([common, rare]))()
    assert await changes.final_offsets() == sorted(changes.left)
    assert [record.offset for record in await lake.read_all()] == sorted(changes.left)
    assert (await root(lake) / "_delta_log").exists()
