"""Many small topics, and many idle connections."""

import socket
import struct

from benchmarks.kafka.load.client import WAIT_S_MAX, LoadProducer
from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import Connect, LoadResult, Touch
from benchmarks.kafka.wire import API_VERSIONS, framed


class TouchLoad:
    def __init__(self, task: Touch) -> None:
        self._task = task
        self._producer = LoadProducer(task.bootstrap, "", {})

    def work(self) -> LoadResult:
        value = records()[0]
        for number in range(self._task.topics):
            self._producer.send(value, 0, topic=f"{self._task.prefix}{number}")
        self._producer.finish()
        return LoadResult(size=self._task.topics * SIZE)


class ConnectLoad:
    """Opens raw connections, because a client library uses threads and buffers for each."""

    def __init__(self, task: Connect) -> None:
        self._task = task
        self._open: list[socket.socket] = []

    def work(self) -> LoadResult:
        for _ in range(self._task.connections):
            connection = socket.create_connection(("127.0.0.1", self._task.port), timeout=WAIT_S_MAX)
            connection.sendall(framed(API_VERSIONS))
            (size,) = struct.unpack(">i", _received(connection, 4))
            _received(connection, size)
            self._open.append(connection)
        return LoadResult()


def _received(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) != size:
        raise ConnectionError("the server closed the connection after the ApiVersions request")
    return data
