"""Servers that tests start are ready inside their block, and end with it, even if the test is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.harness.processes.serve import wait_until_closed

from lakestream.errors import Misconfigured, Unavailable
from lakestream.testing.processes import Process, free_port, listens
from lakestream.testing.servers import azurite, oxia_standalone, s3_server, toxiproxy


async def test_servers_listen_inside_their_block_and_not_after_it(tmp_path: Path) -> None:
    async with (
        s3_server(tmp_path / "s3") as s3,
        azurite(tmp_path / "azure") as azure,
        oxia_standalone(tmp_path / "oxia") as oxia,
        toxiproxy() as network,
    ):
        proxy = await network.proxy(f"127.0.0.1:{s3.port}")
        s3.bucket("lake")
        await azure.container("lake")
        ports = [s3.port, azure.port, oxia.port, proxy.port]
        assert [await listens(port) for port in ports] == [True] * 4
        await proxy.cut()
        assert not await listens(proxy.port)
        await proxy.restore()
    assert [await listens(port) for port in ports] == [False] * 4


async def test_server_ends_when_the_test_is_cancelled(tmp_path: Path) -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def test() -> None:
        async with s3_server(tmp_path) as s3:
            started.set_result(s3.port)
            await asyncio.sleep(60)

    task = asyncio.create_task(test())
    port = await started
    task.cancel()
    await asyncio.wait([task])
    await wait_until_closed(port)


TEST_PROCESS = """
import asyncio, pathlib, sys
from lakestream.testing.servers import s3_server
async def main():
    async with s3_server(pathlib.Path(sys.argv[1])) as s3:
        print(s3.port, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def start_test_process(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", TEST_PROCESS, str(folder)], stdout=subprocess.PIPE, text=True)


async def test_server_ends_when_the_test_process_is_killed(tmp_path: Path) -> None:
    with start_test_process(tmp_path) as child:
        assert child.stdout is not None
        port = int(await asyncio.to_thread(child.stdout.readline))
        assert await listens(port)
        os.kill(child.pid, signal.SIGKILL)
    await wait_until_closed(port)


async def test_error_names_the_command_to_run_when_a_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESTREAM_CACHE", str(tmp_path))
    with pytest.raises(Misconfigured, match="run make tools"):
        async with s3_server(tmp_path):
            pass


async def test_error_contains_the_output_when_a_program_exits_immediately(tmp_path: Path) -> None:
    process = Process("versitygw", ["--no-such-flag"], tmp_path / "log")
    process.start()
    with pytest.raises(Unavailable, match="no-such-flag"):
        await process.wait_ready(lambda: listens(free_port()))
    process.kill()


def test_no_process_of_a_program_runs_after_its_kill(tmp_path: Path) -> None:
    """The children of a killed parent end some milliseconds after it, and hold their ports until then."""
    script = "import os, time; [os.fork() for _ in range(3)]; x = bytearray(100 << 20); print('up', flush=True)"
    script += "; time.sleep(60)"
    log = tmp_path / "log"
    process = Process("parent", ["-c", script], log, command=[sys.executable])
    process.start()
    deadline_s = time.monotonic() + 30
    while log.read_text().count("up") < 8:
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.01)
    group = process.group()
    assert len(group) == 8
    process.kill()
    assert not any(Path(f"/proc/{pid}/fd").exists() and _state(pid) not in "ZX" for pid in group)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
