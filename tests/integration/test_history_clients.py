"""What stock clients see of records that have left the log for the table: nothing. Then what they see of deletes: gaps.

The pipeline runs here, beside the brokers, without Spark: the same steps, one process less.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.engines import pyiceberg_of
from tests.integration.kafka_clients import CLIENTS, Client, Confluent, Record
from tests.integration.programs import cluster_of

from lakestream.moving import open_driver
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.job import LocalJob, WorkSettings
from lakestream.pipeline.rounds import Job
from lakestream.pipeline.tasks import Move, Outcome
from lakestream.pipeline.work import open_work
from lakestream.settings import Settings
from lakestream.testing.brokers import Brokers, running_brokers

NOW_MS = 1_700_000_000_000
SEEN_S = 1.5
"""Until every broker has looked at a table again."""


@pytest.fixture(scope="module", params=["one-sqlite", "three-oxia-s3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of(request.param, tmp_path_factory)


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, cluster: Brokers) -> Client:
    return CLIENTS[request.param](cluster.bootstrap)


class Interrupted:
    """Somebody does something when the files of a round are written and not yet committed."""

    def __init__(self, job: Job, before_commit: Callable[[], None]) -> None:
        self._job = job
        self._before_commit = before_commit

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        outcomes = await self._job.run(moves)
        await asyncio.to_thread(self._before_commit)
        return outcomes


def move(cluster: Brokers, before_commit: Callable[[], None] | None = None) -> None:
    """Everything that is there goes into tables."""
    settings = Settings(data_dir=cluster[0]._log.parent / "data", metadata=cluster.metadata, storage=cluster.storage)

    async def moved() -> None:
        folder = str(settings.segments_dir) if settings.segments_dir else None
        job = LocalJob(open_work(WorkSettings(storage_url=settings.storage_url, segments_dir=folder)))
        work = job if before_commit is None else Interrupted(job, before_commit)
        async with open_driver(settings, PipelineOptions(once=True), work) as driver:
            await driver.run_once()
        await job.close()

    before = dict(os.environ)
    os.environ.update({name: text for name, text in cluster.environment.items() if name.startswith("AWS_")})
    try:
        asyncio.run(moved())
    finally:
        os.environ.clear()
        os.environ.update(before)


def made(start: int, end: int) -> list[Record]:
    return [
        Record(b"value %d" % at, b"k%d" % (at % 3) if at % 5 else None, (("h", b"%d" % at),), NOW_MS + at)
        for at in range(start, end)
    ]


def at_offsets(records: list[Record], start: int = 0) -> list[Record]:
    return [record.at(offset, 0) for offset, record in enumerate(records, start)]


def test_the_border_is_not_seen(cluster: Brokers, client: Client) -> None:
    topic = f"border-{client.name}"
    client.create_topic(topic)
    client.produce(topic, made(0, 500))
    move(cluster)
    client.produce(topic, made(500, 600))
    everything = at_offsets(made(0, 600))
    assert client.read(topic, "earliest", 600) == everything
    assert client.read(topic, 250, 350) == everything[250:]
    assert client.bounds(topic) == (0, 600)
    for number in (0, 123, 499, 500, 550):
        assert client.offset_at(topic, NOW_MS + number) == number
    assert client.offset_at(topic, NOW_MS + 1000) is None
    move(cluster)
    client.produce(topic, made(600, 610))
    assert client.read(topic, 490, 120) == at_offsets(made(490, 610), 490)


def test_deleted_rows_are_gaps(cluster: Brokers, client: Client) -> None:
    """In the middle, at the beginning, and at the end, where nothing follows yet that a consumer could be given."""
    topic = f"gaps-{client.name}"
    client.create_topic(topic)
    client.produce(topic, made(0, 300))
    move(cluster)
    table = pyiceberg_of(cluster).load_table(f"default.{topic}")
    rows = table.scan().to_arrow()
    offsets = rows["_stream"].combine_chunks().field("offset").to_pylist()
    table.overwrite(rows.filter([50 <= offset < 100 or 200 <= offset < 250 for offset in offsets]))
    asyncio.run(asyncio.sleep(SEEN_S))
    left = [*at_offsets(made(50, 100), 50), *at_offsets(made(200, 250), 200)]
    assert client.bounds(topic) == (50, 300)
    assert client.read(topic, "earliest", 100) == left
    assert client.read(topic, 0, 100) == left  # as in a log that was compacted: no error
    assert client.read(topic, 150, 50) == left[50:]
    follower = waiting(client, topic)
    client.produce(topic, made(300, 305))
    assert follower.result(60) == at_offsets(made(300, 305), 300)


@pytest.mark.parametrize("http", ["127.0.0.1:0", "off"])
def test_a_table_that_goes_with_its_topic_is_gone_with_its_files(http: str, tmp_path: Path) -> None:
    """Soon, and also where no broker serves HTTP."""
    with running_brokers(tmp_path, options=["--http", http]) as cluster:
        client = Confluent(cluster.bootstrap)
        client.create_topic("orders", configs={"lakestream.table.on.delete": "drop"})
        client.produce("orders", made(0, 10))
        move(cluster)
        tables = tmp_path / "bucket" / "tables"
        assert list(tables.rglob("*.parquet"))
        client.delete_topic("orders")
        until = time.monotonic() + 20
        while [path for path in tables.rglob("*") if path.is_file()] and time.monotonic() < until:
            time.sleep(0.1)
        assert [path for path in tables.rglob("*") if path.is_file()] == []


def waiting(client: Client, topic: str) -> "Future[list[Record]]":
    """A consumer that was before a gap which is the end of the log."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(client.read, topic, 260, 5)
    finally:
        pool.shutdown(wait=False)
