"""Worker processes start under both event loops: that of the tests, and uvloop, which brokers use."""

import asyncio
import hashlib
import random
from collections.abc import Callable

import pytest
import uvloop

from lakestream.aio.worker_process import PIECE_BYTES, WorkerProcess
from lakestream.errors import Unavailable


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_process_starts_and_its_exit_is_unavailable(new_event_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def call() -> None:
        worker = WorkerProcess("the worker", "lakestream.errors", 1.0)  # exits without a response
        try:
            with pytest.raises(Unavailable, match="the worker exited with code"):
                await worker.call(lambda _: b"request")
        finally:
            await worker.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(call())


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_large_requests_arrive_completely(new_event_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    program = """
import hashlib
from lakestream.aio.worker_loop import serve
serve(lambda request: hashlib.sha256(request).digest(), 1 << 30)
"""
    requests = [b"", b"x", *(random.Random(size).randbytes(PIECE_BYTES + size) for size in (-1, 0, 1, 5_000_000))]

    async def call() -> None:
        worker = WorkerProcess("the worker", "", 10.0)
        worker.command = (*worker.command[:1], "-c", program)
        try:
            for request in requests:
                body = memoryview(request)
                assert await worker.call(lambda _, body=body: body) == hashlib.sha256(request).digest()  # type: ignore[misc]
        finally:
            await worker.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(call())
