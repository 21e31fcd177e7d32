"""A full disk, a catalog that rejects commits and a bucket that is down, under the pipeline on real stores: it is
reported, no record is lost, and the pipeline recovers without intervention."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.harness.log.brokers import plain
from tests.harness.processes.serve import error_of

from lakestream.catalog.identifiers import TableName
from lakestream.cli.main import main
from lakestream.config.settings import LogSettings, Profile, Settings, WalSettings
from lakestream.errors import Unavailable
from lakestream.metadata.topics import Topic
from lakestream.model import KiB, MiB, PartitionId
from lakestream.pipeline import worker as work_module
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.tasks import Move, Outcome, WorkSettings
from lakestream.pipeline.topic_status import MicroBatchResult
from lakestream.pipeline.worker import open_work
from lakestream.server.node import open_node
from lakestream.server.pipeline import open_driver
from lakestream.storage.retrying import RetrySettings
from lakestream.testing.processes import Process
from lakestream.testing.servers import s3_server

QUICK = LogSettings(wal=WalSettings(flush_interval_ms=5))


class Installation:
    def __init__(self, folder: Path, storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.storage = storage
        self._settings = Settings(
            data_dir=folder, storage=storage.as_uri(), wal_dir=folder / "wal", profile=Profile.LATENCY, log=QUICK
        )
        self._flags = ["--data-dir", str(folder), "--storage", storage.as_uri(), "--wal-dir", str(folder / "wal")]
        self._capsys = capsys

    async def produce(self, values: dict[str, str]) -> None:
        """Appends one record to each topic."""
        async with open_node(self._settings) as node:
            for name, value in values.items():
                if name not in await node.topics.all():
                    await node.topics.create(name, Topic(name, 1))
                await node.log.append(PartitionId(name, 0), plain(value))

    async def move(self, after_work: Callable[[], None] = lambda: None) -> MicroBatchResult:
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
            offsets: str = table.metadata["properties"]["lakestream.next-offsets"]
            return offsets

    def doctor(self) -> list[str]:
        """Returns the findings of `doctor` about the pipeline."""
        self._capsys.readouterr()
        main(["doctor", *self._flags, "--json"])
        lines = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        return [line["said"] for line in lines if line["what"] == "pipeline"]


class _Job:
    """A job with a callback between its work and the commit."""

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


def test_topic_recovers_from_a_full_disk(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_module, "PATIENT", RetrySettings(deadline_ms=2_000))
    installation = Installation(tmp_path / "data", small_disk, capsys)
    asyncio.run(installation.produce({"bad": "first", "good": "first"}))
    assert asyncio.run(installation.move()).records == 2
    filler = small_disk / "filler"
    filler.write_bytes(bytes(3 * MiB + 512 * KiB))
    asyncio.run(installation.produce({"bad": os.urandom(900 * KiB).hex()}))  # half of it, compressed
    result = asyncio.run(installation.move())
    assert (result.records, result.lag_records) == (0, 1)
    output = "\n".join(installation.doctor())
    assert "topic bad cannot be moved for " in output
    assert "space" in output or "full" in output
    assert "topic good" not in output
    filler.unlink()
    assert asyncio.run(installation.move()).records == 1
    assert not [line for line in installation.doctor() if "bad" in line]
    assert asyncio.run(installation.next_offset("bad")) == '{"0":2}'


def test_topic_recovers_from_rejected_commits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installation = Installation(tmp_path / "data", tmp_path / "storage", capsys)
    asyncio.run(installation.produce({"bad": "first", "good": "first"}))
    assert asyncio.run(installation.move()).records == 2
    asyncio.run(installation.produce({"bad": "second", "good": "second"}))
    (folder,) = (tmp_path / "storage").glob("tables/default/bad-*/metadata")
    away = folder.with_name("away")

    def break_metadata_folder() -> None:
        folder.rename(away)
        folder.write_text("no folder")

    assert asyncio.run(installation.move(break_metadata_folder)).records == 1  # the record of the other topic
    assert any(
        "topic bad cannot be moved for " in line and "the commit to its table failed" in line
        for line in installation.doctor()
    )
    folder.unlink()
    away.rename(folder)
    assert asyncio.run(installation.move()).records == 1
    assert not [line for line in installation.doctor() if "bad" in line]
    assert [asyncio.run(installation.next_offset(name)) for name in ("bad", "good")] == ['{"0":2}'] * 2


async def test_pipeline_waits_until_its_bucket_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with s3_server(tmp_path) as s3:
        storage = f"s3://{s3.bucket('lake')}"
        secrets = {"AWS_ACCESS_KEY_ID": s3.access_key_id, "AWS_SECRET_ACCESS_KEY": s3.secret_access_key}
        for name, value in {**secrets, "AWS_ENDPOINT_URL": s3.endpoint, "AWS_REGION": s3.region}.items():
            monkeypatch.setenv(name, value)
        async with open_node(Settings(data_dir=tmp_path, storage=storage, log=QUICK)) as node:
            await node.topics.create("t", Topic("t", 1))
            await node.log.append(PartitionId("t", 0), plain("value"))
        s3.process.kill()
        wrong = ["pipeline", "--data-dir", str(tmp_path), "--storage", storage, "--master", "lokal"]
        assert "invalid --master 'lokal'" in await asyncio.to_thread(lambda: error_of(*wrong))
        log = tmp_path / "pipeline.log"
        command = [sys.executable, "-m", "lakestream", "pipeline"]
        flags = ["--data-dir", str(tmp_path), "--storage", storage, "--master", "local[1]"]
        pipeline = Process("pipeline", flags, log, command=command, environment=os.environ)
        pipeline.start()
        try:
            await pipeline.wait_ready(lambda: _logs(log, "pipeline.start_failed", 2))
            pauses = re.findall(
                r"pipeline.start_failed error=cannot create .* in s3://lake: .* retry_in=(.*)s", _text(log)
            )
            assert pauses[:2] == ["1.0", "2.0"]
            s3.process.start()
            await pipeline.wait_ready(lambda: _logs(log, "pipeline.moved ranges=1 records=1 ", 1))
            assert pipeline.stop() == 0

            log.unlink()
            (s3.root / "lake").rename(s3.root / "other")
            pipeline.start()
            with pytest.raises(Unavailable, match=r"the bucket does not exist\. Create it, or correct"):
                await pipeline.wait_ready(lambda: _logs(log, "pipeline.moved", 1))
            assert "pipeline.start_failed" not in _text(log)
        finally:
            pipeline.kill()


async def _logs(log: Path, text: str, count: int) -> bool:
    return _text(log).count(text) >= count


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else ""
