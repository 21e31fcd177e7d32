"""Raw requests without a client: a readiness check, and the request of an idle connection."""

import asyncio
import struct
from contextlib import suppress
from typing import Final

_METADATA_NO_TOPICS: Final = struct.pack(">hhih5si", 3, 1, 1, 5, b"bench", 0)
API_VERSIONS: Final = struct.pack(">hhih5s", 18, 0, 1, 5, b"bench")


async def is_ready(port: int) -> bool:
    """Returns whether the metadata of the server contain a broker. Kafka listens for some time before they do."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        response = await asyncio.wait_for(exchange(reader, writer, _METADATA_NO_TOPICS), 5.0)
    except (OSError, EOFError, TimeoutError):
        return False
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    (brokers,) = struct.unpack_from(">i", response, 4)
    return bool(brokers > 0)


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Returns the response, with its correlation id."""
    writer.write(framed(request))
    await writer.drain()
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)
