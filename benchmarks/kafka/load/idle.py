"""Many topics that hold little, many connections that say nothing."""

import socket
import struct

from benchmarks.kafka.load.client import WAIT_S_MAX, Sending
from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import Connect, Told, Touch
from benchmarks.kafka.wire import API_VERSIONS, framed


class Touching:
    def __init__(self, task: Touch) -> None:
        self._task = task
        self._sending = Sending(task.bootstrap, "", {})

    def work(self) -> Told:
        value = records()[0]
        for number in range(self._task.topics):
            self._sending.send(value, 0, topic=f"{self._task.prefix}{number}")
        self._sending.finish()
        return Told(size=self._task.topics * SIZE)


class Connecting:
    """By hand: a client library has threads and buffers for each."""

    def __init__(self, task: Connect) -> None:
        self._task = task
        self._open: list[socket.socket] = []

    def work(self) -> Told:
        for _ in range(self._task.connections):
            made = socket.create_connection(("127.0.0.1", self._task.port), timeout=WAIT_S_MAX)
            made.sendall(framed(API_VERSIONS))
            (size,) = struct.unpack(">i", _received(made, 4))
            _received(made, size)
            self._open.append(made)
        return Told()


def _received(connection: socket.socket, size: int) -> bytes:
    found = connection.recv(size, socket.MSG_WAITALL)
    if len(found) != size:
        raise ConnectionError("the server closed a connection that had just said hello")
    return found
