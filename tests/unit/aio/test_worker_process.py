"""Worker processes start under both event loops: that of the tests, and uvloop, which brokers use."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from lakestream.aio.worker_process import WorkerProcess
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
