"""Four broker processes append to the same partitions and are killed with SIGKILL repeatedly.

No acknowledged batch is lost, duplicated or reordered.
"""

import asyncio
import itertools
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from tests.harness.processes import log_broker
from tests.harness.processes.log_broker import Append, Response

from lakestream.clock import RandomIds
from lakestream.config.settings import Profile, Settings
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.records.file_region import as_bytes
from lakestream.server.node import Node, open_node
from lakestream.testing.batches import make_batch, records_of
from lakestream.testing.servers import oxia_standalone, s3_server

pytestmark = pytest.mark.alone

BROKERS = 4
PARTITIONS = 3
PRODUCERS = 6
RUN_S = float(os.environ.get("KILL_RUN_S", "12"))
KILL_EVERY_S = (0.3, 1.2)


class BrokerProcess:
    """Broker process that is killed and restarted with the same name."""

    def __init__(self, name: str, folder: Path, arguments: list[str]) -> None:
        self._socket = str(folder / f"{name}.sock")
        self._log = folder / f"{name}.log"
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        Path(self._socket).unlink(missing_ok=True)
        program = str(Path(log_broker.__file__))
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, program, self._socket, *self._arguments, stdout=output, stderr=output
            )

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def connect(self) -> "Connection":
        return Connection(*await asyncio.open_unix_connection(self._socket))


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def append(self, partition: PartitionId, batch: bytes) -> Response:
        body = msgspec.msgpack.encode(Append(0, partition.topic_id, partition.number, batch))
        self._writer.write(len(body).to_bytes(4, "big") + body)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return msgspec.msgpack.decode(await self._reader.readexactly(size), type=Response)

    def close(self) -> None:
        self._writer.close()


@dataclass
class Producer:
    """Client that sends one batch after another, each until it is acknowledged, to random brokers."""

    number: int
    partition: PartitionId
    idempotent: bool
    acknowledged: list[tuple[int, list[bytes]]] = field(default_factory=list)
    sent: int = 0
    retries: int = 0

    async def run(self, brokers: list[BrokerProcess], rng: random.Random) -> None:
        sequence = 0
        for count in itertools.count():
            values = [f"{self.number}:{count}:{record}".encode() for record in range(rng.randint(1, 4))]
            batch = make_batch(
                values,
                producer_id=self.number if self.idempotent else -1,
                epoch=0 if self.idempotent else -1,
                sequence=sequence if self.idempotent else -1,
            )
            self.sent += 1
            response = await self._until_acknowledged(batch, brokers, rng)
            assert response.offset_end - response.offset_start == len(values)
            self.acknowledged.append((response.offset_start, values))
            sequence += len(values)

    async def _until_acknowledged(self, batch: bytes, brokers: list[BrokerProcess], rng: random.Random) -> Response:
        while True:
            response = await self._try(batch, rng.choice(brokers))
            if response is not None and not response.error:
                return response
            if response is not None:
                assert response.error.startswith(("Unavailable", "Uncertain")), response.error
            self.retries += 1
            await asyncio.sleep(0.02)

    async def _try(self, batch: bytes, broker: BrokerProcess) -> Response | None:
        try:
            connection = await broker.connect()
        except OSError:
            return None
        try:
            async with asyncio.timeout(20):
                return await connection.append(self.partition, batch)
        except (OSError, EOFError):
            return None
        finally:
            connection.close()


@asynccontextmanager
async def sqlite_and_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    yield Settings(data_dir=folder, metadata="sqlite", storage=(folder / "bucket").as_uri())


@asynccontextmanager
async def oxia_and_s3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    async with oxia_standalone(folder / "oxia", shards=4) as oxia, s3_server(folder) as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
        monkeypatch.setenv("AWS_REGION", s3.region)
        yield Settings(data_dir=folder, metadata=oxia.url, storage=f"s3://{s3.bucket('lake')}")


STORES = {"sqlite": sqlite_and_disk, "oxia": oxia_and_s3}


@pytest.mark.timeout(170 + RUN_S)
@pytest.mark.parametrize(
    ("stores", "profile"),
    [("sqlite", Profile.LATENCY), ("sqlite", Profile.COST), ("oxia", Profile.COST)],
    ids=["sqlite-latency", "sqlite-cost", "oxia-s3-cost"],
)
async def test_acknowledged_batches_are_not_lost_when_brokers_are_killed(
    stores: str, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(tmp_path.name)
    async with AsyncExitStack() as opened:
        settings = await opened.enter_async_context(STORES[stores](tmp_path, monkeypatch))
        async with open_node(settings) as node:
            topic = await node.topics.create("events", Topic(RandomIds().new(), PARTITIONS))
        producers = [
            Producer(number, topic.partitions()[number % PARTITIONS], idempotent=number % 3 != 2)
            for number in range(PRODUCERS)
        ]
        arguments = [str(tmp_path), settings.metadata, settings.storage, profile.value]
        brokers = [BrokerProcess(f"broker-{number}", tmp_path, arguments) for number in range(BROKERS)]
        kills = await run_and_kill(brokers, producers, rng)
        async with open_node(settings) as node:
            for partition in topic.partitions():
                await check(node, partition, [producer for producer in producers if producer.partition == partition])
    acknowledged = sum(len(producer.acknowledged) for producer in producers)
    retries = sum(producer.retries for producer in producers)
    print(f"\n{stores} {profile.value}: {kills} kills, {acknowledged} batches acknowledged, {retries} retries")
    assert kills >= 5
    assert acknowledged >= 50
    assert retries >= kills / 2


async def run_and_kill(brokers: list[BrokerProcess], producers: list[Producer], rng: random.Random) -> int:
    kills = 0
    await asyncio.gather(*(broker.start() for broker in brokers))
    tasks = [asyncio.create_task(producer.run(brokers, rng)) for producer in producers]
    try:
        async with asyncio.timeout(RUN_S):
            while True:
                await asyncio.sleep(rng.uniform(*KILL_EVERY_S))
                victim = rng.choice(brokers)
                await victim.kill()
                await victim.start()
                kills += 1
    except TimeoutError:
        pass
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(broker.kill() for broker in brokers))
    for error in ended:
        if not isinstance(error, asyncio.CancelledError):
            raise AssertionError(f"a producer failed: {error!r}")
    return kills


async def check(node: Node, partition: PartitionId, producers: list[Producer]) -> None:
    log = await read_all(node, partition)
    assert sorted(log) == list(range(len(log))), "offsets are dense"
    offsets_of_value: defaultdict[bytes, list[int]] = defaultdict(list)
    for offset, value in log.items():
        offsets_of_value[value].append(offset)
    for producer in producers:
        for offset_start, values in producer.acknowledged:
            assert [log.get(offset_start + delta) for delta in range(len(values))] == values
            if producer.idempotent:
                assert [offsets_of_value[value] for value in values] == [
                    [offset_start + delta] for delta in range(len(values))
                ]
        starts = [offset_start for offset_start, _ in producer.acknowledged]
        assert starts == sorted(starts), "a producer's batches keep their order"


async def read_all(node: Node, partition: PartitionId) -> dict[int, bytes]:
    values: dict[int, bytes] = {}
    offset, end = 0, (await node.log.bounds(partition)).end
    while offset < end:
        result = await node.log.read(partition, offset, 1 << 20)
        for offset_start, buffers in result.batches:
            for delta, _key, value in records_of(as_bytes(buffers)):
                assert value is not None
                values[offset_start + delta] = value
        offset = result.offset_next
    return values
