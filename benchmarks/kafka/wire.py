"""Two requests by hand, for what no client should be needed for: is it ready, and a connection that has said hello."""

import asyncio
import struct
from contextlib import suppress
from typing import Final

_METADATA_NO_TOPICS: Final = struct.pack(">hhih5si", 3, 1, 1, 5, b"bench", 0)
API_VERSIONS: Final = struct.pack(">hhih5s", 18, 0, 1, 5, b"bench")


async def answered(port: int) -> bool:
    """Does it name a broker to clients? Kafka listens for a while before it does."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        answer = await asyncio.wait_for(asked(reader, writer, _METADATA_NO_TOPICS), 5.0)
    except (OSError, EOFError, TimeoutError):
        return False
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    (brokers,) = struct.unpack_from(">i", answer, 4)
    return bool(brokers > 0)


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """The answer with its correlation id."""
    writer.write(framed(request))
    await writer.drain()
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)
