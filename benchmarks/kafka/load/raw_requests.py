"""Raw requests over many connections of one process, for load that a client library would spread over time.

A consumer of librdkafka detects a rebalance at its next heartbeat, seconds later; members here rejoin immediately.
"""

import asyncio
import itertools
from typing import Any

from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed
from lakestream.protocol.kafka.wire import codec

SIZE_BYTES = 4
OFFSET_FETCH, FIND_COORDINATOR = 9, 10


class RawConnection:
    """Connection with one request in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)

    @classmethod
    async def open(cls, address: str) -> "RawConnection":
        host, _, port = address.partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def request(self, key: int, version: int, body: dict[str, Any]) -> Any:
        response = await self.exchange(codec.write_request(key, version, next(self._numbers), "bench", body))
        return codec.parse_response(key, version, response).body

    async def exchange(self, request: bytes) -> bytes:
        """Returns the response, with its correlation id."""
        self._writer.write(request)
        async with asyncio.timeout(WAIT_S_MAX):
            size = int.from_bytes(await self._reader.readexactly(SIZE_BYTES), "big")
            return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


async def wait_for_coordinator(connection: RawConnection, group: str) -> None:
    """Waits until this server coordinates the group. Kafka first creates and loads a topic for its groups."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            coordinator = await connection.request(FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
            if coordinator.error_code == 0:
                offsets = await connection.request(OFFSET_FETCH, 5, {"group_id": group, "topics": []})
                if offsets.error_code == 0:
                    return
            await asyncio.sleep(0.05)


def raise_on_error(code: int, request: str) -> None:
    if code:
        raise LoadFailed(f"{request} failed with error {int(code)}")
