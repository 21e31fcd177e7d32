"""Time without acknowledgements for stock producers with default settings, after their leader is killed or stopped.

No broker owns a partition. So this is the time until the metadata no longer name the dead broker, plus that of the
client.
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
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.programs import SOAK, require_program

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcess, BrokerProcesses, brokers

pytestmark = pytest.mark.alone

VERIFIABLE: Final = "org.apache.kafka.tools.VerifiableProducer"
SETTLE_S: Final = 3.0
IN_METADATA_S_MAX: Final = 5.0
GAP_S_MAX: Final = IN_METADATA_S_MAX + 3
"""Three seconds, and a client refreshes its metadata within one more; the rest is for a busy machine."""
STOPPED_GAP_S_MAX: Final = 4.0
"""A stopped broker deregisters immediately. But librdkafka without a second connection selects the next broker only
once a second."""
LOAD_S: Final = 60.0 if SOAK else 10.0
STORES: Final = [SQLITE_AND_DISK, OXIA_AND_S3] if SOAK else [SQLITE_AND_DISK]


def leader_of(cluster: BrokerProcesses, source: BrokerProcess | None = None) -> BrokerProcess | None:
    """Returns the leader of the only partition in the metadata, of any running broker or of `source`."""
    bootstrap = cluster.bootstrap if source is None else source.address
    metadata = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap}).list_topics("events", timeout=10)
    leader = metadata.brokers.get(metadata.topics["events"].partitions[0].leader)
    return next((broker for broker in cluster if leader is not None and broker.port == leader.port), None)


async def kill_leader(cluster: BrokerProcesses) -> float:
    """Kills the leader; returns the seconds for which the metadata of another broker still contain it."""
    victim = await asyncio.to_thread(leader_of, cluster)
    assert victim is not None
    survivor = next(broker for broker in cluster if broker is not victim)
    start_s = time.monotonic()
    victim.kill()
    is_leader = True
    while is_leader:
        await asyncio.sleep(0.05)
        is_leader = await asyncio.to_thread(leader_of, cluster, survivor) is victim
    return time.monotonic() - start_s


@dataclass
class ContinuousProducer:
    """Stock producer that sends without pause, and records the times of its acknowledgements."""

    bootstrap: str
    acked: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while not self.ended.is_set():
            producer.produce("events", b"x", on_delivery=self._on_delivery)
            producer.poll(0.01)
        assert producer.flush(30) == 0

    def _on_delivery(self, error: object, message: confluent_kafka.Message) -> None:
        self.acked.append(time.monotonic())
        if error is not None:
            self.errors.append(str(error))

    @property
    def gap_s(self) -> float:
        return max(later - earlier for earlier, later in pairwise(self.acked))


@asynccontextmanager
async def continuous_producer(cluster: BrokerProcesses) -> AsyncIterator[ContinuousProducer]:
    await asyncio.to_thread(Confluent(cluster.bootstrap).create_topic, "events")
    producer = ContinuousProducer(cluster.bootstrap)
    running = asyncio.create_task(asyncio.to_thread(producer.run))
    try:
        await asyncio.sleep(SETTLE_S)
        yield producer
        await asyncio.sleep(SETTLE_S)
    finally:
        producer.ended.set()
        await running


@pytest.mark.parametrize("stores", STORES)
async def test_librdkafka_continues_when_the_leader_is_killed(stores: str, tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, stores) as cluster, continuous_producer(cluster) as producer:
        in_metadata_s = await kill_leader(cluster)
    print(f"\nlibrdkafka on {stores}: in the metadata for {in_metadata_s:.1f} s, {producer.gap_s:.1f} s without ack")
    assert producer.errors == []
    assert in_metadata_s < IN_METADATA_S_MAX
    assert producer.gap_s < GAP_S_MAX


@pytest.mark.parametrize("stores", STORES)
async def test_librdkafka_continues_when_brokers_are_restarted_one_after_another(stores: str, tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, stores) as cluster, continuous_producer(cluster) as producer:
        for broker in cluster:
            assert await asyncio.to_thread(broker.stop) == 0
            await asyncio.sleep(1)
            await broker.start()
            await asyncio.sleep(1)
    print(f"\nlibrdkafka on {stores}: {producer.gap_s:.1f} s without acknowledgement")
    assert producer.errors == []
    assert producer.gap_s < STOPPED_GAP_S_MAX


@pytest.mark.parametrize("stores", STORES)
async def test_java_producer_continues_when_the_leader_is_killed(stores: str, tmp_path: Path) -> None:
    program = require_program("kafka-class")
    async with brokers(tmp_path, 3, stores) as cluster:
        await asyncio.to_thread(Confluent(cluster.bootstrap).create_topic, "events")
        settings = tmp_path / "producer.properties"
        settings.write_text("retries=2147483647\n")  # the default of a producer; this tool sets 0
        arguments = ["--bootstrap-server", cluster.bootstrap, "--topic", "events", "--throughput", "100"]
        java = await asyncio.create_subprocess_exec(
            program, VERIFIABLE, *arguments, "--command-config", str(settings), stdout=asyncio.subprocess.PIPE
        )
        try:
            output_task = asyncio.create_task(java.communicate())
            await asyncio.sleep(2 * SETTLE_S)
            in_metadata_s = await kill_leader(cluster)
            await asyncio.sleep(SETTLE_S)
            java.terminate()
            async with asyncio.timeout(30):
                output = (await output_task)[0].decode()
        finally:
            if java.returncode is None:
                java.kill()
                await java.wait()
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    acked = [event["timestamp"] for event in events if event["name"] == "producer_send_success"]
    assert len(acked) > 100, output[:1000]
    assert "producer_send_error" not in output
    gap_s = max(later - earlier for earlier, later in pairwise(acked)) / 1000
    print(f"\nJava on {stores}: in the metadata for {in_metadata_s:.1f} s, {gap_s:.1f} s without acknowledgement")
    assert in_metadata_s < IN_METADATA_S_MAX
    assert gap_s < GAP_S_MAX


@pytest.mark.parametrize("stores", STORES)
async def test_broker_keeps_its_session_under_load(stores: str, tmp_path: Path) -> None:
    """Neither bulk load on every broker nor a topic with very many partitions delays the heartbeats of the session."""

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
        output = cluster.logs()
    print(f"\n{sum(sent)} records in {LOAD_S:.0f} s")
    assert "session_lost" not in output, output
