"""The dump of pending requests and tasks on SIGUSR1."""

import asyncio
import logging
import os
import signal

import pytest

from lakestream.cli.process.signals import install_task_dump, stack_of


async def _outer(gate: asyncio.Event) -> None:
    await _inner(gate)


async def _inner(gate: asyncio.Event) -> None:
    await gate.wait()


async def test_signal_logs_pending_requests_and_the_stack_of_each_task(caplog: pytest.LogCaptureFixture) -> None:
    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.create_task(_outer(gate), name="kafka.request")
    await asyncio.sleep(0)
    install_task_dump(lambda: [("1.2.3.4:5", 3)])
    try:
        with caplog.at_level(logging.WARNING):
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.05)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
    assert "broker.pending_requests client=1.2.3.4:5 requests=3" in caplog.messages
    (line,) = [line for line in caplog.messages if "name=kafka.request" in line]
    calls = line.split("at=")[1].split(" < ")
    assert [call.split(" ")[1] for call in calls] == ["wait", "_inner", "_outer"]
    gate.set()
    await task
    assert stack_of(task) == "its end"
