"""Answers on their way out: in order, whole, from memory and from files, however slowly they are taken."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakestream.filed import FileSpan, OpenFile
from lakestream.protocol.kafka.outlet import Outlet

LARGE = bytes(range(256)) * 40_000  # ten megabytes: more than a socket takes at once


class Wire:
    """An outlet, and the other end of its socket."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.moves = 0
        self.broken: list[str] = []
        self.outlet = Outlet(self.near.fileno(), asyncio.get_running_loop(), self._moved, self.broken.append)

    def _moved(self) -> None:
        self.moves += 1

    async def receive(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while len(received) < count:
            received += await asyncio.wait_for(loop.sock_recv(self.far, 1 << 16), 5)
        return bytes(received)

    def close(self) -> None:
        self.outlet.close()
        self.near.close()
        self.far.close()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


def filed(folder: Path, data: bytes) -> OpenFile:
    path = folder / "file"
    path.write_bytes(data)
    return OpenFile(os.open(path, os.O_RDONLY), str(path))


async def test_memory_and_files_go_out_in_order(wire: Wire, tmp_path: Path) -> None:
    file = filed(tmp_path, b"0123456789")
    wire.outlet.send([b"<", FileSpan(file, 2, 3), b"", b"|", FileSpan(file, 9, 1), memoryview(b">")])
    wire.outlet.send([b"!"])
    assert await wire.receive(8) == b"<234|9>!"
    assert wire.outlet.size == 0


async def test_a_slow_reader_gets_everything(wire: Wire, tmp_path: Path) -> None:
    file = filed(tmp_path, LARGE)
    wire.outlet.send([b"a", FileSpan(file, 0, len(LARGE)), LARGE, b"z"])
    await asyncio.sleep(0.05)
    assert 0 < wire.outlet.size < 2 * len(LARGE)
    assert await wire.receive(2 * len(LARGE) + 2) == b"a" + LARGE + LARGE + b"z"
    assert wire.outlet.size == 0
    assert wire.moves > 1


async def test_thousands_of_small_pieces(wire: Wire) -> None:
    pieces = [f"{number},".encode() for number in range(5_000)]
    wire.outlet.send(pieces)
    assert await wire.receive(sum(map(len, pieces))) == b"".join(pieces)


async def test_a_deleted_file_is_sent_all_the_same(wire: Wire, tmp_path: Path) -> None:
    file = filed(tmp_path, b"still there")
    (tmp_path / "file").unlink()
    wire.outlet.send([FileSpan(file, 0, 11)])
    assert await wire.receive(11) == b"still there"


async def test_a_file_that_was_cut_off_breaks_the_connection(wire: Wire, tmp_path: Path) -> None:
    file = filed(tmp_path, b"short")
    wire.outlet.send([FileSpan(file, 0, 10)])
    await asyncio.sleep(0.02)
    assert len(wire.broken) == 1
    assert "ends before byte" in wire.broken[0]


async def test_a_client_that_left_is_told_once(wire: Wire) -> None:
    wire.far.close()
    wire.outlet.send([LARGE])
    await asyncio.sleep(0.02)
    assert len(wire.broken) == 1


async def test_nothing_is_sent_after_the_end(wire: Wire) -> None:
    wire.outlet.send([b"never"])
    wire.outlet.close()
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        wire.far.recv(1)
