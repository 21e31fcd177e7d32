import asyncio
import os
import subprocess
import sys

import pytest

from lakestream.server.shared_pages import PAGE_BYTES, PageWriter, SharedPages

FORK = """
import asyncio
import os
from lakestream.server.shared_pages import PageWriter, SharedPages
pages = SharedPages(2)

async def write_when_asked():
    async def body():
        return b"from the child"
    PageWriter(pages, 1, body).start()
    await asyncio.sleep(30)

if (pid := os.fork()) == 0:
    asyncio.run(write_when_asked())
assert asyncio.run(pages.ask(1, 20)) == b"from the child"
os.kill(pid, 9)
os.wait()
"""


def test_page_is_written_by_another_process_when_it_is_asked_for() -> None:
    assert subprocess.run([sys.executable, "-c", FORK], check=False, timeout=60).returncode == 0


def test_pages_are_independent() -> None:
    pages = SharedPages(2)
    pages.write(1, b"one")
    assert (pages.read(0), pages.read(1)) == (None, b"one")
    pages.close()


def test_partly_written_page_is_skipped() -> None:
    pages = SharedPages(1)
    pages.write(0, b"one")
    pages._memory[12:13] = b"O"
    assert pages.read(0) is None
    pages.close()


def test_page_above_the_size_limit_is_not_written() -> None:
    pages = SharedPages(2)
    with pytest.raises(ValueError, match="do not fit into page 0"):
        pages.write(0, b"x" * PAGE_BYTES)
    assert pages.read(0) is None
    pages.close()


async def test_page_is_missing_when_its_writer_does_not_respond() -> None:
    pages = SharedPages(1)
    pages.write(0, b"old")
    assert await pages.ask(0, 0.01) is None
    pages.close()


async def test_requests_end_when_the_pipe_of_a_stopped_writer_is_full() -> None:
    pages = SharedPages(1)
    while True:
        try:
            os.write(pages._pipes[0][1], b"?" * 4096)
        except BlockingIOError:
            break
    assert await pages.ask(0, 0.01) is None
    pages.close()


async def test_writer_continues_after_a_failure_and_answers_concurrent_requests() -> None:
    pages, calls = SharedPages(1), 0

    async def body() -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a bug")
        return b"body %d" % calls

    writer = PageWriter(pages, 0, body)
    writer.start()
    assert await pages.ask(0, 0.05) is None
    assert set(await asyncio.gather(*(pages.ask(0, 5) for _ in range(10)))) == {b"body 2"}
    await writer.close()
    pages.close()
