"""A full disk and a catalog that refuses, under the pipeline on real stores: `doctor` says so, nothing is lost, and the
topic goes on by itself."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.unit.data.brokers import plain

from lakestream.catalog.names import TableName
from lakestream.cli.main import main
from lakestream.metadata.topics import Topic
from lakestream.model import KiB, MiB, PartitionId
from lakestream.moving import open_driver
from lakestream.node import open_node
from lakestream.pipeline import work as work_module
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.job import LocalJob, WorkSettings
from lakestream.pipeline.rounds import Round
from lakestream.pipeline.tasks import Move, Outcome
from lakestream.pipeline.work import open_work
from lakestream.settings import LogSettings, Profile, Settings, WalSettings
from lakestream.storage.retrying import RetrySettings

QUICK = LogSettings(wal=WalSettings(flush_interval_ms=5))


class Place:
    def __init__(self, folder: Path, storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.storage = storage
        self._settings = Settings(
            data_dir=folder, storage=storage.as_uri(), wal_dir=folder / "wal", profile=Profile.LATENCY, log=QUICK
        )
        self._flags = ["--data-dir", str(folder), "--storage", storage.as_uri(), "--wal-dir", str(folder / "wal")]
        self._capsys = capsys

    async def produce(self, values: dict[str, str]) -> None:
        """By topic."""
        async with open_node(self._settings) as node:
            for name, value in values.items():
                if name not in await node.topics.all():
                    await node.topics.create(name, Topic(name, 1))
                await node.log.append(PartitionId(name, 0), plain(value))

    async def move(self, after_work: Callable[[], None] = lambda: None) -> Round:
        work = WorkSettings(storage_url=self._settings.storage_url, segments_dir=str(self._settings.segments_dir))
        job = _Job(LocalJob(open_work(work)), after_work)
        try:
            async with open_driver(self._settings, PipelineOptions(once=True), job) as driver:
                return await driver.run_once()
        finally:
            await job.close()

    async def next_offset(self, topic_id: str) -> str:
        async with open_node(self._settings) as node:
            table = await node.catalog.load(TableName(("default",), topic_id))
            found: str = table.metadata["properties"]["lakestream.next-offsets"]
            return found

    def doctor(self) -> list[str]:
        """What it says of the pipeline."""
        self._capsys.readouterr()
        main(["doctor", *self._flags, "--json"])
        lines = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        return [line["said"] for line in lines if line["what"] == "pipeline"]


class _Job:
    """Between its work and the commit something happens."""

    def __init__(self, job: LocalJob, after_work: Callable[[], None]) -> None:
        self._job = job
        self._after_work = after_work

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        outcomes = await self._job.run(moves)
        self._after_work()
        return outcomes

    async def close(self) -> None:
        await self._job.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_module, "RetrySettings", lambda: RetrySettings(deadline_ms=2_000))
    place = Place(tmp_path / "data", small_disk, capsys)
    asyncio.run(place.produce({"bad": "first", "good": "first"}))
    assert asyncio.run(place.move()).records == 2
    filler = small_disk / "filler"
    filler.write_bytes(bytes(3 * MiB + 512 * KiB))
    asyncio.run(place.produce({"bad": os.urandom(900 * KiB).hex()}))  # half of it, compressed
    done = asyncio.run(place.move())
    assert (done.records, done.lag_records) == (0, 1)
    said = "\n".join(place.doctor())
    assert "topic bad is not moved for " in said
    assert "space" in said or "full" in said
    assert "topic good" not in said
    filler.unlink()
    assert asyncio.run(place.move()).records == 1
    assert not [line for line in place.doctor() if "bad" in line]
    assert asyncio.run(place.next_offset("bad")) == '{"0":2}'


def test_a_catalog_that_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path / "data", tmp_path / "storage", capsys)
    asyncio.run(place.produce({"bad": "first", "good": "first"}))
    assert asyncio.run(place.move()).records == 2
    asyncio.run(place.produce({"bad": "second", "good": "second"}))
    (folder,) = (tmp_path / "storage").glob("tables/default/bad-*/metadata")
    away = folder.with_name("away")

    def break_it() -> None:
        folder.rename(away)
        folder.write_text("no folder")

    assert asyncio.run(place.move(break_it)).records == 1  # of the other topic
    assert any("topic bad is not moved for " in line and "cannot be committed to" in line for line in place.doctor())
    folder.unlink()
    away.rename(folder)
    assert asyncio.run(place.move()).records == 1
    assert not [line for line in place.doctor() if "bad" in line]
    assert [asyncio.run(place.next_offset(name)) for name in ("bad", "good")] == ['{"0":2}'] * 2
