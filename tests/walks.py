"""Counts the source files that one operation executes, and how often it changes from one folder to another.

    python -m tests.walks            a line for each of five operations
    python -m tests.walks -v         also the files, in the order of their first call

The operations run over the stores in memory. A function counts once, when it is first called. Functions of the test kit
and of the stores in memory do not count.
"""

import asyncio
import contextlib
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from uuid import UUID

from tests.harness.catalog.iceberg_tables import SCHEMA
from tests.harness.kafka.kafka_handlers import SIZE_BYTES, Serving
from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import PipelineDriver
from tests.unit.protocol.rest.test_iceberg import serving as serving_catalog

import lakestream
from lakestream.data.table.history import TableHistory
from lakestream.model import MiB
from lakestream.protocol.kafka.wire import codec
from lakestream.testing.batches import make_batch

ROOT = Path(lakestream.__file__).parent
LEFT_OUT = ("testing/", "metadata/memory.py", "storage/memory.py")

Operation = Callable[[], Awaitable[object]]


class Walk:
    """Records the modules of Lakestream that are called while it is active, in all threads."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self._functions: set[CodeType] = set()

    def __enter__(self) -> "Walk":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        function = frame.f_code
        if event != "call" or function in self._functions or not function.co_filename.startswith(str(ROOT)):
            return
        self._functions.add(function)
        module = Path(function.co_filename).relative_to(ROOT).as_posix()
        if not module.startswith(LEFT_OUT):
            self.modules.append(module)

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(self.modules))

    @property
    def folder_changes(self) -> int:
        folders = [Path(module).parent for module in self.modules]
        return sum(one != other for one, other in itertools.pairwise(folders))


@contextlib.asynccontextmanager
async def produced() -> AsyncIterator[Operation]:
    async with broker() as serving:
        records = make_batch([b"second"], timestamp_ms=serving.world.clock.now_ms())
        data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
        yield request(serving, 0, 12, {"acks": -1, "timeout": 5000, "topic_data": data})


@contextlib.asynccontextmanager
async def fetched_from_the_tail() -> AsyncIterator[Operation]:
    async with broker() as serving:
        yield await fetch(serving)


@contextlib.asynccontextmanager
async def fetched_from_history() -> AsyncIterator[Operation]:
    async with broker() as serving:
        pipeline = await PipelineDriver.start(serving.world)
        await pipeline.micro_batches.run()
        history = TableHistory(pipeline.catalog, serving.world.objects, 64 * MiB)
        object.__setattr__(serving.services, "log", await serving.world.broker(history=history))
        yield await fetch(serving)
        await history.close()


@contextlib.asynccontextmanager
async def micro_batch() -> AsyncIterator[Operation]:
    async with broker() as serving:
        pipeline = await PipelineDriver.start(serving.world)
        await pipeline.micro_batches.run()
        await serving.produce("t", "second")
        pipeline.changed.requeue([await serving.log_of("t")])
        yield pipeline.micro_batches.run


@contextlib.asynccontextmanager
async def table_created() -> AsyncIterator[Operation]:
    async with serving_catalog() as client:
        body = {"name": "t", "schema": SCHEMA}
        yield lambda: client("POST", "namespaces/default/tables", body)


@contextlib.asynccontextmanager
async def broker() -> AsyncIterator[Serving]:
    """A broker with a topic that has one record."""
    world = World()
    serving = await Serving.open(world)
    await serving.topic("t", partitions=1)
    await serving.produce("t", "first")
    try:
        yield serving
    finally:
        await serving.close()
        await world.close()


async def fetch(serving: Serving) -> Operation:
    topic_id = (await serving.log_of("t")).topic_id
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MiB}
    topics = [{"topic_id": UUID(topic_id), "partitions": [partition]}]
    return request(serving, 1, 13, {"max_wait": 0, "min_bytes": 1, "max_bytes": MiB, "topics": topics})


def request(serving: Serving, key: int, version: int, body: dict[str, Any]) -> Operation:
    """A request as its connection passes it on, without the size in front."""
    frame = codec.write_request(key, version, 7, "tester", body)[SIZE_BYTES:]
    return lambda: serving.dispatcher.handle(serving.connection, frame)


OPERATIONS = {
    "Produce, one batch": produced,
    "Fetch from the tail": fetched_from_the_tail,
    "Fetch from history": fetched_from_history,
    "micro-batch, table exists": micro_batch,
    "CREATE TABLE over REST": table_created,
}


async def walk_through(make: Callable[[], contextlib.AbstractAsyncContextManager[Operation]]) -> Walk:
    async with make() as operation:
        with Walk() as walk:
            await operation()
    return walk


def main() -> None:
    for name, make in OPERATIONS.items():
        walk = asyncio.run(walk_through(make))
        print(f"{name:<28}{len(walk.files):>4} files{walk.folder_changes:>5} changes of folder")
        if "-v" in sys.argv:
            print("\n".join(f"    {module}" for module in walk.files))


if __name__ == "__main__":
    main()
