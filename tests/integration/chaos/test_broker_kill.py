"""Three brokers are killed with SIGKILL repeatedly while idempotent producers send.

No acknowledged record is lost, duplicated or reordered.
"""

import asyncio
import itertools
import os
import random
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.programs import SOAK

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcess, BrokerProcesses, brokers

pytestmark = pytest.mark.alone

RUN_S = float(os.environ.get("KILL_RUN_S", "15"))
DOWN_S = (0.0, 0.8)
UP_S = (0.1, 0.8)
PRODUCERS = 3
PARTITIONS = 3


@dataclass
class Producer:
    """Stock producer on a thread of its own, with at most some hundred records in flight."""

    number: int
    bootstrap: str
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    acked: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Partition and offset of each value."""
    errors: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": f"producer-{self.number}",
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": 60_000,
                "linger.ms": 2,
                "batch.num.messages": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        for count in itertools.count():
            if self.ended.is_set():
                break
            partition, value = count % PARTITIONS, f"{self.number}:{count}".encode()
            self.sent.append((partition, value))
            producer.produce("events", value, partition=partition, on_delivery=partial(self._on_delivery, value))
            producer.poll(0.002)
            while len(producer) > 200 and not self.ended.is_set():
                producer.poll(0.05)
        assert producer.flush(60) == 0, "all records are acknowledged when all brokers are running"

    def _on_delivery(self, value: bytes, error: object, message: confluent_kafka.Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.errors.append(f"{value!r}: {error}")
        else:
            self.acked[value] = (partition, offset)


@pytest.mark.timeout(225 + RUN_S)
@pytest.mark.parametrize("stores", [SQLITE_AND_DISK, OXIA_AND_S3] if SOAK else [SQLITE_AND_DISK])
async def test_acknowledged_records_are_neither_lost_nor_duplicated_nor_reordered_when_brokers_are_killed(
    stores: str, tmp_path: Path
) -> None:
    rng = random.Random(tmp_path.name)
    async with brokers(tmp_path, 3, stores) as cluster:
        client = Confluent(cluster.bootstrap)
        await asyncio.to_thread(client.create_topic, "events", PARTITIONS)
        producers = [Producer(number, cluster.bootstrap) for number in range(PRODUCERS)]
        running = [asyncio.create_task(asyncio.to_thread(producer.run)) for producer in producers]
        try:
            kills = await kill_repeatedly(cluster, rng)
        finally:
            for producer in producers:
                producer.ended.set()
        await asyncio.gather(*running)
        logs = [await read_all(client, partition) for partition in range(PARTITIONS)]
        assert "Traceback" not in cluster.logs(), cluster.logs()
    acked = sum(len(producer.acked) for producer in producers)
    print(f"\n{kills} kills, {acked} records acknowledged")
    for producer in producers:
        check(producer, logs)
    assert kills >= 5
    assert acked >= 500


async def kill_repeatedly(cluster: BrokerProcesses, rng: random.Random) -> int:
    """Kills and restarts brokers for the duration of the test, and returns the number of kills.

    A broker may be killed while another is still starting, but at least one is always running."""
    loop = asyncio.get_running_loop()
    end, kills = loop.time() + RUN_S, 0
    up = set(cluster)
    async with asyncio.TaskGroup() as restarts:

        async def restart(broker: BrokerProcess) -> None:
            await asyncio.sleep(rng.uniform(*DOWN_S))
            await broker.start()
            up.add(broker)

        while loop.time() < end:
            await asyncio.sleep(rng.uniform(*UP_S))
            if len(up) > 1:
                victim = rng.choice(sorted(up, key=lambda broker: broker.number))
                up.discard(victim)
                victim.kill()
                kills += 1
                restarts.create_task(restart(victim))
    return kills


async def read_all(client: Confluent, partition: int) -> list[bytes]:
    start, end = await asyncio.to_thread(client.bounds, "events", partition)
    assert start == 0
    read = await asyncio.to_thread(client.read, "events", 0, end, partition)
    assert [record.offset for record in read] == list(range(end)), "offsets are dense"
    return [record.value or b"" for record in read]


def check(producer: Producer, logs: list[list[bytes]]) -> None:
    prefix = f"{producer.number}:".encode()
    assert producer.errors == []
    for value, (partition, offset) in producer.acked.items():
        assert logs[partition][offset] == value, "the record has the offset of its acknowledgement"
    for partition, log in enumerate(logs):
        stored = [value for value in log if value.startswith(prefix)]
        assert stored == [value for sent_to, value in producer.sent if sent_to == partition], "each once, in order"
