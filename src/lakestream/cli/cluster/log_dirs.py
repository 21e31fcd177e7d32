"""Requests the sizes of topics from brokers (DescribeLogDirs): librdkafka's client has no call for it."""

import socket
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Final

from lakestream.cli.output.kafka_client import RESPONSE_S_MAX
from lakestream.errors import Corrupt, LakestreamError
from lakestream.model import MiB
from lakestream.protocol.kafka.wire.codec import parse_response, write_request

DESCRIBE_LOG_DIRS: Final = 35
VERSION: Final = 2
RESPONSE_BYTES_MAX: Final = 64 * MiB


def topic_bytes(brokers: Iterable[tuple[str, int]]) -> Counter[str] | None:
    """Returns the bytes of each topic: each broker counts the partitions that it leads. None if a broker does not
    respond."""
    sizes: Counter[str] = Counter()
    for address in brokers:
        try:
            frame = _response(address, write_request(DESCRIBE_LOG_DIRS, VERSION, 1, "lakestream-cli", {"topics": None}))
            results = parse_response(DESCRIBE_LOG_DIRS, VERSION, frame).body.results
        except (OSError, LakestreamError):
            return None
        for folder in results:
            for topic in folder.topics:
                sizes[topic.name] += sum(one.partition_size for one in topic.partitions)
    return sizes


def _response(address: tuple[str, int], request: bytes) -> bytes:
    """Returns the response without its size."""
    with socket.create_connection(address, timeout=RESPONSE_S_MAX) as connection:
        connection.sendall(request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        if not 0 < size <= RESPONSE_BYTES_MAX:
            raise Corrupt(f"the response has {size} bytes")
        return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)
