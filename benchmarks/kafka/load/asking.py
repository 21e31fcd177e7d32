"""Requests by hand over many connections of one process: for what a client library would spread over time.

A consumer of librdkafka hears of a rebalance with its next heartbeat, seconds later; here members come at once.
"""

import asyncio
import itertools
from typing import Any

from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed
from lakestream.protocol.kafka import codec

SIZE_BYTES = 4
OFFSET_FETCH, FIND_COORDINATOR = 9, 10


class Asking:
    """One connection with one request under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)

    @classmethod
    async def open(cls, address: str) -> "Asking":
        host, _, port = address.partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, key: int, version: int, body: dict[str, Any]) -> Any:
        answer = await self.exchange(codec.write_request(key, version, next(self._numbers), "bench", body))
        return codec.parse_response(key, version, answer).body

    async def exchange(self, request: bytes) -> bytes:
        """The answer with its correlation id."""
        self._writer.write(request)
        async with asyncio.timeout(WAIT_S_MAX):
            size = int.from_bytes(await self._reader.readexactly(SIZE_BYTES), "big")
            return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


async def coordinated(asking: Asking, group: str) -> None:
    """Until this server coordinates the group. Kafka makes a topic for that at first, and loads it."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            found = await asking.ask(FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
            if found.error_code == 0:
                fetched = await asking.ask(OFFSET_FETCH, 5, {"group_id": group, "topics": []})
                if fetched.error_code == 0:
                    return
            await asyncio.sleep(0.05)


def checked(code: int, what: str) -> None:
    if code:
        raise LoadFailed(f"{what} was answered with error {int(code)}")
