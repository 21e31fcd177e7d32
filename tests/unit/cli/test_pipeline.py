"""What `lakestream pipeline` says, and how `serve` looks after it."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from lakestream.cli import child as children
from lakestream.cli.child import Child, beside, command_of
from lakestream.cli.pipeline import Tally, work_settings
from lakestream.pipeline.rounds import Round
from lakestream.settings import Profile, Settings


def test_the_child_is_told_what_the_parent_knows() -> None:
    settings = Settings(data_dir=Path("d"), profile=Profile.COST, interval_ms=250, wal_dir=Path("w"))
    words = command_of(settings)
    assert words[:4] == [sys.executable, "-m", "lakestream", "pipeline"]
    given = dict(zip(words[4::2], words[5::2], strict=True))
    assert given == {
        "--data-dir": "d",
        "--metadata": "sqlite",
        "--wal-dir": "w",
        "--profile": "cost",
        "--interval": "250ms",
        "--master": "local[*]",
    }


def test_workers_get_whole_paths() -> None:
    found = work_settings(Settings(data_dir=Path("d")))
    assert found.segments_dir == str(Path("d/wal").absolute())
    assert found.storage_url == Path("d/storage").absolute().as_uri()
    assert work_settings(Settings(metadata="oxia://h:1/n", storage="s3://b")).segments_dir is None


def test_the_bar_knows_what_is_left() -> None:
    tally = Tally(shows_bar=False)
    tally.note(Round(moves=1, records=1000, bytes=2048, files=2, lag_records=3000))
    assert tally.bar(0, tally.left) == f"[{'#' * 7:<30}]  25%  1,000 records"
    assert tally.bar(2000, 3000) == f"[{'#' * 22:<30}]  75%  3,000 records"  # within a round
    tally.note(Round(moves=1, records=3000, bytes=0, files=1, lag_records=0))
    assert tally.bar(0, tally.left) == f"[{'#' * 30}] 100%  4,000 records"
    assert tally.said() == "moved 4,000 records (2.0 KiB) into 3 files in 0.0 s"


def shell(script: str) -> list[str]:
    return ["sh", "-c", script, "sh"]


async def until(folder: Path, count: int) -> None:
    async with asyncio.timeout(20):
        while len(list(folder.iterdir())) < count:  # noqa: ASYNC110 -- another process does it
            await asyncio.sleep(0.02)


async def test_a_child_that_ends_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "BACKOFF_S_MIN", 0.01)
    task = asyncio.create_task(Child(shell(f"touch {tmp_path}/$$; kill -9 $$")).run())
    await until(tmp_path, 3)
    task.cancel()
    await asyncio.wait([task])
    said = [line for line in caplog.messages if "pipeline.ended" in line]
    assert "killed_by=SIGKILL restart_in=0.0s" in said[0]
    assert len(said) >= 2


async def test_a_child_is_ended_with_the_block_and_sees_the_parent_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    said.mkdir()
    script = f'trap "touch {said}/told; exit 0" TERM; touch {said}/$$; while :; do sleep 0.02; done'
    monkeypatch.setattr(children, "command_of", lambda settings: shell(script))
    async with beside(Settings()):
        await until(said, 1)
    assert (said / "told").exists()
    reader = shell(f'touch {said}/begun; cat <&"$2"; touch {said}/parent-gone')
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, *reader)
    await until(said, 3)
    process.kill()
    await process.wait()
    await until(said, 4)


PARENT = """
import asyncio, sys
from lakestream.cli.child import Child
asyncio.run(Child(sys.argv[1:]).run())
"""


async def test_without_java_one_line_says_so_and_it_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    said = tmp_path / "said"
    said.mkdir()
    path = os.environ["PATH"]
    monkeypatch.setattr(children, "JAVA_LOOK_S", 0.01)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    task = asyncio.create_task(Child(["/bin/sh", "-c", f"/usr/bin/touch {said}/$$; sleep 100", "sh"]).run())
    await asyncio.sleep(0.2)
    assert list(said.iterdir()) == []
    (line,) = caplog.messages
    assert line.startswith("pipeline.waits: Kafka is served, tables wait for Java. Spark needs Java")
    monkeypatch.setenv("PATH", path)
    await until(said, 1)
    task.cancel()
    await asyncio.wait([task])
