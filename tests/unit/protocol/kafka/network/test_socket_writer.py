"""Tests of SocketWriter: it sends buffers and files completely and in order, also to slow readers."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakestream.protocol.kafka.network.socket_writer import SocketWriter
from lakestream.records.file_region import FileRegion, SharedFile

LARGE = bytes(range(256)) * 40_000  # ten megabytes: more than a socket accepts in one call


class WriterPair:
    """A writer, and the other end of its socket."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.sends = 0
        self.errors: list[str] = []
        self.writer = SocketWriter(self.near.fileno(), asyncio.get_running_loop(), self._sent, self.errors.append)

    def _sent(self) -> None:
        self.sends += 1

    async def receive(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while len(received) < count:
            received += await asyncio.wait_for(loop.sock_recv(self.far, 1 << 16), 5)
        return bytes(received)

    def close(self) -> None:
        self.writer.close()
        self.near.close()
        self.far.close()


@pytest.fixture
async def wire() -> AsyncIterator[WriterPair]:
    wire = WriterPair()
    yield wire
    wire.close()


def shared_file(folder: Path, data: bytes) -> SharedFile:
    path = folder / "file"
    path.write_bytes(data)
    return SharedFile(os.open(path, os.O_RDONLY), str(path))


async def test_buffers_and_files_are_sent_in_order(wire: WriterPair, tmp_path: Path) -> None:
    file = shared_file(tmp_path, b"0123456789")
    wire.writer.send([b"<", FileRegion(file, 2, 3), b"", b"|", FileRegion(file, 9, 1), memoryview(b">")])
    wire.writer.send([b"!"])
    assert await wire.receive(8) == b"<234|9>!"
    assert wire.writer.size == 0


async def test_all_bytes_are_sent_when_the_reader_is_slow(wire: WriterPair, tmp_path: Path) -> None:
    file = shared_file(tmp_path, LARGE)
    wire.writer.send([b"a", FileRegion(file, 0, len(LARGE)), LARGE, b"z"])
    await asyncio.sleep(0.05)
    assert 0 < wire.writer.size < 2 * len(LARGE)
    assert await wire.receive(2 * len(LARGE) + 2) == b"a" + LARGE + LARGE + b"z"
    assert wire.writer.size == 0
    assert wire.sends > 1


async def test_thousands_of_small_pieces_are_sent_in_order(wire: WriterPair) -> None:
    pieces = [f"{number},".encode() for number in range(5_000)]
    wire.writer.send(pieces)
    assert await wire.receive(sum(map(len, pieces))) == b"".join(pieces)


async def test_file_is_sent_when_it_was_deleted(wire: WriterPair, tmp_path: Path) -> None:
    file = shared_file(tmp_path, b"still here!")
    (tmp_path / "file").unlink()
    wire.writer.send([FileRegion(file, 0, 11)])
    assert await wire.receive(11) == b"still here!"


async def test_error_is_reported_when_the_file_is_truncated(wire: WriterPair, tmp_path: Path) -> None:
    file = shared_file(tmp_path, b"short")
    wire.writer.send([FileRegion(file, 0, 10)])
    await asyncio.sleep(0.02)
    assert len(wire.errors) == 1
    assert "ends before byte" in wire.errors[0]


async def test_error_is_reported_once_when_the_client_disconnects(wire: WriterPair) -> None:
    wire.far.close()
    wire.writer.send([LARGE])
    await asyncio.sleep(0.02)
    assert len(wire.errors) == 1


async def test_nothing_is_sent_when_the_writer_is_closed(wire: WriterPair) -> None:
    wire.writer.send([b"never"])
    wire.writer.close()
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        wire.far.recv(1)
