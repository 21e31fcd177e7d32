"""Broker in its own process, for test_log_kill.py: a log behind a Unix socket, with one msgpack frame per call.

python log_broker.py SOCKET DATA_DIR METADATA STORAGE PROFILE
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from lakestream.config.settings import Profile, Settings
from lakestream.errors import LakestreamError
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch
from lakestream.server.node import Node, open_node


class Append(msgspec.Struct, array_like=True):
    number: int
    topic_id: str
    partition: int
    batch: bytes


class Response(msgspec.Struct, array_like=True):
    number: int
    offset_start: int
    offset_end: int
    error: str


async def serve(socket: str, settings: Settings) -> None:
    async with open_node(settings) as node, asyncio.TaskGroup() as tasks:

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.read(4):
                body = await reader.readexactly(int.from_bytes(head, "big"))
                tasks.create_task(respond(node, msgspec.msgpack.decode(body, type=Append), writer))

        server = await asyncio.start_unix_server(connected, socket + ".new")
        Path(socket + ".new").rename(socket)  # after the rename clients can connect
        await server.serve_forever()


async def respond(node: Node, request: Append, writer: asyncio.StreamWriter) -> None:
    try:
        appended = await node.log.append(
            PartitionId(request.topic_id, request.partition), RecordBatch.parse(request.batch)
        )
        response = Response(request.number, appended.offset_start, appended.offset_end, "")
    except LakestreamError as error:
        response = Response(request.number, -1, -1, f"{type(error).__name__}: {error}")
    body = msgspec.msgpack.encode(response)
    writer.write(len(body).to_bytes(4, "big") + body)


if __name__ == "__main__":
    socket, data_dir, metadata, storage, profile = sys.argv[1:]
    asyncio.run(
        serve(
            socket,
            Settings(
                data_dir=Path(data_dir),
                metadata=metadata,
                storage=storage,
                wal_dir=Path(data_dir) / "wal",
                profile=Profile(profile),
            ),
        )
    )
