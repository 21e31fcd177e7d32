"""The broker that clients are sent to is killed or stopped: how long stock producers with their default settings wait
for the next acknowledgement. No broker owns anything, so it is the time until the dead one is no longer named, and the
client's own.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import confluent_kafka
import confluent_kafka.admin
import pytest
from tests.integration.kafka_clients import Confluent
from tests.integration.programs import SOAK, need

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcess, Brokers, brokers

VERIFIABLE: Final = "org.apache.kafka.tools.VerifiableProducer"
SETTLE_S: Final = 3.0
NAMED_S_MAX: Final = 5.0
GAP_S_MAX: Final = NAMED_S_MAX + 3
"""Three seconds, and a client looks again within one more; the rest is for a busy machine."""
STOPPED_GAP_S_MAX: Final = 4.0
"""It goes at once, but librdkafka, when it has no second connection yet, looks for the next one only once a second."""
LOAD_S: Final = 60.0 if SOAK else 10.0
STORES: Final = [SQLITE_AND_DISK, OXIA_AND_S3] if SOAK else [SQLITE_AND_DISK]


def leader_of(cluster: Brokers, asked: BrokerProcess | None = None) -> BrokerProcess | None:
    """The broker that clients are sent to for the one partition, by those who live or by a certain one."""
    bootstrap = cluster.bootstrap if asked is None else asked.address
    listed = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap}).list_topics("events", timeout=10)
    leader = listed.brokers.get(listed.topics["events"].partitions[0].leader)
    return next((broker for broker in cluster if leader is not None and broker.port == leader.port), None)


async def killed(cluster: Brokers) -> float:
    """Kill the leader; returns for how many seconds another broker goes on naming it."""
    victim = await asyncio.to_thread(leader_of, cluster)
    assert victim is not None
    survivor = next(broker for broker in cluster if broker is not victim)
    begun = time.monotonic()
    victim.kill()
    named = True
    while named:
        await asyncio.sleep(0.05)
        named = await asyncio.to_thread(leader_of, cluster, survivor) is victim
    return time.monotonic() - begun


@dataclass
class Producing:
    """A stock producer that sends without pause, and when it was answered."""

    bootstrap: str
    acked: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while not self.ended.is_set():
            producer.produce("events", b"x", on_delivery=self._told)
            producer.poll(0.01)
        assert producer.flush(30) == 0

    def _told(self, error: object, message: confluent_kafka.Message) -> None:
        self.acked.append(time.monotonic())
        if error is not None:
            self.failed.append(str(error))

    @property
    def gap_s(self) -> float:
        return max(later - earlier for earlier, later in pairwise(self.acked))


@asynccontextmanager
async def producing(cluster: Brokers) -> AsyncIterator[Producing]:
    await asyncio.to_thread(Confluent(cluster.bootstrap).create_topic, "events")
    producer = Producing(cluster.bootstrap)
    running = asyncio.create_task(asyncio.to_thread(producer.run))
    try:
        await asyncio.sleep(SETTLE_S)
        yield producer
        await asyncio.sleep(SETTLE_S)
    finally:
        producer.ended.set()
        await running


@pytest.mark.parametrize("stores", STORES)
async def test_librdkafka_goes_on_when_the_leader_is_killed(stores: str, tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, stores) as cluster, producing(cluster) as producer:
        named_s = await killed(cluster)
    print(f"\nlibrdkafka on {stores}: named for {named_s:.1f} s more, {producer.gap_s:.1f} s without an answer")
    assert producer.failed == []
    assert named_s < NAMED_S_MAX
    assert producer.gap_s < GAP_S_MAX


@pytest.mark.parametrize("stores", STORES)
async def test_librdkafka_goes_on_when_brokers_are_stopped_one_after_another(stores: str, tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, stores) as cluster, producing(cluster) as producer:
        for broker in cluster:
            assert await asyncio.to_thread(broker.stop) == 0
            await asyncio.sleep(1)
            await broker.start()
            await asyncio.sleep(1)
    print(f"\nlibrdkafka on {stores}: {producer.gap_s:.1f} s without an answer")
    assert producer.failed == []
    assert producer.gap_s < STOPPED_GAP_S_MAX


@pytest.mark.parametrize("stores", STORES)
async def test_the_java_client_goes_on_when_the_leader_is_killed(stores: str, tmp_path: Path) -> None:
    program = need("kafka-class")
    async with brokers(tmp_path, 3, stores) as cluster:
        await asyncio.to_thread(Confluent(cluster.bootstrap).create_topic, "events")
        settings = tmp_path / "producer.properties"
        settings.write_text("retries=2147483647\n")  # as a producer has by default; this tool takes none
        arguments = ["--bootstrap-server", cluster.bootstrap, "--topic", "events", "--throughput", "100"]
        java = await asyncio.create_subprocess_exec(
            program, VERIFIABLE, *arguments, "--command-config", str(settings), stdout=asyncio.subprocess.PIPE
        )
        try:
            saying = asyncio.create_task(java.communicate())
            await asyncio.sleep(2 * SETTLE_S)
            named_s = await killed(cluster)
            await asyncio.sleep(SETTLE_S)
            java.terminate()
            async with asyncio.timeout(30):
                said = (await saying)[0].decode()
        finally:
            if java.returncode is None:
                java.kill()
                await java.wait()
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    acked = [event["timestamp"] for event in events if event["name"] == "producer_send_success"]
    assert len(acked) > 100, said[:1000]
    assert "producer_send_error" not in said
    gap_s = max(later - earlier for earlier, later in pairwise(acked)) / 1000
    print(f"\nJava on {stores}: named for {named_s:.1f} s more, {gap_s:.1f} s without an answer")
    assert named_s < NAMED_S_MAX
    assert gap_s < GAP_S_MAX


@pytest.mark.parametrize("stores", STORES)
async def test_a_broker_under_load_stays_known(stores: str, tmp_path: Path) -> None:
    """Signs of life are not starved: not by bulk on every broker, nor by a topic with very many partitions."""

    def flood(broker: BrokerProcess, until: float) -> int:
        settings = {"bootstrap.servers": broker.address, "client.id": f"load,zone_id={broker.zone}", "linger.ms": 5}
        producer = confluent_kafka.Producer(settings)
        sent = 0
        while time.monotonic() < until:
            try:
                producer.produce("events", bytes(1_000))
                sent += 1
            except BufferError:
                producer.poll(0.1)
        assert producer.flush(60) == 0
        return sent

    async with brokers(tmp_path, 3, stores) as cluster:
        client = Confluent(cluster.bootstrap)
        await asyncio.to_thread(client.create_topic, "events", 8)
        until = time.monotonic() + LOAD_S
        large = asyncio.create_task(asyncio.to_thread(client.create_topic, "large", 20_000))
        sent = await asyncio.gather(*(asyncio.to_thread(flood, broker, until) for broker in cluster))
        await large
        said = cluster.logs()
    print(f"\n{sum(sent)} records in {LOAD_S:.0f} s")
    assert "session_lost" not in said, said
