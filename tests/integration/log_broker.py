"""A broker in a process of its own, for test_killed_brokers.py: a log behind a Unix socket, one msgpack frame per call.

python log_broker.py SOCKET DATA_DIR METADATA STORAGE PROFILE
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from lakestream.batch import RecordBatch
from lakestream.errors import LakestreamError
from lakestream.model import PartitionId
from lakestream.node import Node, open_node
from lakestream.settings import Profile, Settings


class Append(msgspec.Struct, array_like=True):
    number: int
    topic_id: str
    partition: int
    batch: bytes


class Answer(msgspec.Struct, array_like=True):
    number: int
    offset_start: int
    offset_end: int
    error: str


async def serve(socket: str, settings: Settings) -> None:
    async with open_node(settings) as node, asyncio.TaskGroup() as tasks:

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.read(4):
                body = await reader.readexactly(int.from_bytes(head, "big"))
                tasks.create_task(answer(node, msgspec.msgpack.decode(body, type=Append), writer))

        server = await asyncio.start_unix_server(connected, socket + ".new")
        Path(socket + ".new").rename(socket)  # whoever finds it can connect
        await server.serve_forever()


async def answer(node: Node, request: Append, writer: asyncio.StreamWriter) -> None:
    try:
        appended = await node.log.append(
            PartitionId(request.topic_id, request.partition), RecordBatch.parse(request.batch)
        )
        said = Answer(request.number, appended.offset_start, appended.offset_end, "")
    except LakestreamError as error:
        said = Answer(request.number, -1, -1, f"{type(error).__name__}: {error}")
    body = msgspec.msgpack.encode(said)
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
