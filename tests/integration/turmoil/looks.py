"""What a group has committed, asked by hand: a fresh connection for each question, and no client that retries or keeps
anything. (librdkafka's AdminClient crashes when the coordinator is another broker than it thought.)"""

import random
import socket
from typing import Any, Final

from tests.integration.turmoil.faces import PARTITIONS, REQUEST_MS
from tests.integration.turmoil.history import Place, Position

from lakestream.protocol.kafka import codec

FIND_COORDINATOR, OFFSET_FETCH = 10, 9
GROUP: Final = 0
SIZE_BYTES: Final = 4


class NotAnswered(OSError):
    """Ask again."""


def committed(bootstrap: str, group: str, topic: str, luck: random.Random) -> tuple[Position, ...]:
    """Of all partitions; 0 where nothing is committed yet. OSError: ask again."""
    found = _ask(luck.choice(bootstrap.split(",")), FIND_COORDINATOR, 2, {"key": group, "key_type": GROUP})
    _check(found.error_code)
    topics = [{"name": topic, "partition_indexes": list(range(PARTITIONS))}]
    answer = _ask(f"{found.host}:{found.port}", OFFSET_FETCH, 5, {"group_id": group, "topics": topics})
    _check(answer.error_code)
    for one in answer.topics[0].partitions:
        _check(one.error_code)
    return tuple(
        Position(Place(topic, one.partition_index), max(0, one.committed_offset)) for one in answer.topics[0].partitions
    )


def _check(code: int) -> None:
    if code:
        raise NotAnswered(f"error {int(code)}")


def _ask(address: str, key: int, version: int, body: dict[str, Any]) -> Any:
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=REQUEST_MS / 1000) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(codec.write_request(key, version, 1, "looks", body))
        size = int.from_bytes(_exactly(answers, SIZE_BYTES), "big")
        return codec.parse_response(key, version, _exactly(answers, size)).body


def _exactly(answers: Any, size: int) -> bytes:
    got = bytes(answers.read(size))
    if len(got) < size:
        raise NotAnswered("the connection was closed")
    return got
