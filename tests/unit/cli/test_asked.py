"""What a broker says of itself when it is asked why somebody waits."""

import asyncio
import logging
import os
import signal

import pytest

from lakestream.cli.asked import tells_when_asked, where


async def _outer(gate: asyncio.Event) -> None:
    await _inner(gate)


async def _inner(gate: asyncio.Event) -> None:
    await gate.wait()


async def test_it_says_where_each_task_stands_and_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.create_task(_outer(gate), name="kafka.request")
    await asyncio.sleep(0)
    tells_when_asked(lambda: [("1.2.3.4:5", 3)])
    try:
        with caplog.at_level(logging.WARNING):
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.05)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
    said = "\n".join(caplog.messages)
    assert "broker.unanswered client=1.2.3.4:5 requests=3" in said
    (line,) = [line for line in caplog.messages if "name=kafka.request" in line]
    places = line.split("at=")[1].split(" < ")
    assert [place.split(" ")[1] for place in places] == ["wait", "_inner", "_outer"]
    gate.set()
    await task
    assert where(task) == "its end"
