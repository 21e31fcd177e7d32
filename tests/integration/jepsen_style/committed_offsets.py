"""Reads the committed offsets of a group with raw requests, each on a new connection.

No client retries or caches anything. librdkafka's AdminClient crashes when the coordinator has moved to another broker.
"""

import random
import socket
from typing import Any, Final

from tests.integration.jepsen_style.client_api import PARTITIONS, REQUEST_MS
from tests.integration.jepsen_style.history import Place, Position

from lakestream.protocol.kafka.wire import codec

FIND_COORDINATOR, OFFSET_FETCH = 10, 9
GROUP: Final = 0
SIZE_BYTES: Final = 4


class RequestFailed(OSError):
    """The request failed: retry."""


def read_committed_offsets(bootstrap: str, group: str, topic: str, rng: random.Random) -> tuple[Position, ...]:
    """Returns the offsets of all partitions, 0 if nothing is committed yet. Raises OSError if the caller must retry."""
    coordinator = _request(rng.choice(bootstrap.split(",")), FIND_COORDINATOR, 2, {"key": group, "key_type": GROUP})
    _check(coordinator.error_code)
    topics = [{"name": topic, "partition_indexes": list(range(PARTITIONS))}]
    response = _request(
        f"{coordinator.host}:{coordinator.port}", OFFSET_FETCH, 5, {"group_id": group, "topics": topics}
    )
    _check(response.error_code)
    for partition in response.topics[0].partitions:
        _check(partition.error_code)
    return tuple(
        Position(Place(topic, partition.partition_index), max(0, partition.committed_offset))
        for partition in response.topics[0].partitions
    )


def _check(code: int) -> None:
    if code:
        raise RequestFailed(f"error {int(code)}")


def _request(address: str, key: int, version: int, body: dict[str, Any]) -> Any:
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=REQUEST_MS / 1000) as connection,
        connection.makefile("rb") as response,
    ):
        connection.sendall(codec.write_request(key, version, 1, "looks", body))
        size = int.from_bytes(_read_exactly(response, SIZE_BYTES), "big")
        return codec.parse_response(key, version, _read_exactly(response, size)).body


def _read_exactly(response: Any, size: int) -> bytes:
    data = bytes(response.read(size))
    if len(data) < size:
        raise RequestFailed("the connection was closed")
    return data
