"""The servers that tests start: they come up, and nothing of them is left behind, however the test ends."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lakestream.errors import Misconfigured, Unavailable
from lakestream.testing.processes import Process, free_port, listens
from lakestream.testing.servers import azurite, oxia_standalone, s3_server, toxiproxy


async def wait_deaf(port: int) -> None:
    async with asyncio.timeout(10):
        while await listens(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_each_listens_inside_its_block_and_not_after(tmp_path: Path) -> None:
    async with (
        s3_server(tmp_path / "s3") as s3,
        azurite(tmp_path / "azure") as azure,
        oxia_standalone(tmp_path / "oxia") as oxia,
        toxiproxy() as network,
    ):
        way = await network.proxy(f"127.0.0.1:{s3.port}")
        s3.bucket("lake")
        await azure.container("lake")
        ports = [s3.port, azure.port, oxia.port, way.port]
        assert [await listens(port) for port in ports] == [True] * 4
        await way.cut()
        assert not await listens(way.port)
        await way.mend()
    assert [await listens(port) for port in ports] == [False] * 4


async def test_a_cancelled_test_leaves_nothing(tmp_path: Path) -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def test() -> None:
        async with s3_server(tmp_path) as s3:
            started.set_result(s3.port)
            await asyncio.sleep(60)

    task = asyncio.create_task(test())
    port = await started
    task.cancel()
    await asyncio.wait([task])
    await wait_deaf(port)


A_TEST_PROCESS = """
import asyncio, pathlib, sys
from lakestream.testing.servers import s3_server
async def main():
    async with s3_server(pathlib.Path(sys.argv[1])) as s3:
        print(s3.port, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def start_test_process(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", A_TEST_PROCESS, str(folder)], stdout=subprocess.PIPE, text=True)


async def test_a_killed_test_process_leaves_nothing(tmp_path: Path) -> None:
    with start_test_process(tmp_path) as child:
        assert child.stdout is not None
        port = int(await asyncio.to_thread(child.stdout.readline))
        assert await listens(port)
        os.kill(child.pid, signal.SIGKILL)
    await wait_deaf(port)


async def test_a_missing_program_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESTREAM_CACHE", str(tmp_path))
    with pytest.raises(Misconfigured, match="run make tools"):
        async with s3_server(tmp_path):
            pass


async def test_a_program_that_ends_at_once_says_why(tmp_path: Path) -> None:
    process = Process("versitygw", ["--no-such-flag"], tmp_path / "log")
    process.start()
    with pytest.raises(Unavailable, match="no-such-flag"):
        await process.wait_ready(lambda: listens(free_port()))
    process.kill()
