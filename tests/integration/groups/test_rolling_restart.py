"""Restart of all brokers, one after another, while members of different clients consume as one group."""

import asyncio
import gc
import itertools
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.harness.clients.group_clusters import PARTITIONS, committed_offsets, create_topic, fill, values_of
from tests.harness.clients.group_members import AioKafka, Confluent, Java, KafkaPython, is_balanced, running, wait_until
from tests.harness.clients.programs import require_javac

from lakestream.testing.brokers import SQLITE_AND_DISK, running_brokers

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _clients_are_collected() -> Iterator[None]:
    """Collects the connections that kafka-python does not close when a broker stops, so that warnings come here.

    Log records would hold references to them."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka"):
            logging.getLogger(name).disabled = True
    yield
    gc.collect()


def test_no_record_is_lost_and_no_offset_decreases_when_brokers_are_restarted(tmp_path: Path) -> None:
    require_javac()
    topic, group = f"topic-{uuid.uuid4().hex[:12]}", f"group-{uuid.uuid4().hex[:12]}"
    with running_brokers(tmp_path, 2, SQLITE_AND_DISK) as cluster:
        create_topic(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 40)
        members = [kind(cluster.bootstrap, group, topic) for kind in (Java, Confluent, KafkaPython, AioKafka)]
        with running(members), recorded_offsets(cluster.bootstrap, group, topic) as offsets:
            wait_until("each member has a partition", lambda: is_balanced(members, PARTITIONS), members)
            for number, broker in enumerate(cluster, start=1):
                assert broker.stop() == 0
                values.update(fill(cluster.bootstrap, topic, 40, start=1_000 * number))
                asyncio.run(broker.start())
                values.update(fill(cluster.bootstrap, topic, 40, start=1_000 * number + 500))
                wait_until("all records are read", lambda: values <= set(values_of(*members)), members)
            ends = [len(values) // PARTITIONS] * PARTITIONS
            wait_until(
                "all offsets are committed", lambda: committed_offsets(cluster.bootstrap, group, topic) == ends, members
            )
        assert len(offsets) > 10
        for before, after in itertools.pairwise(offsets):
            assert all(earlier <= later for earlier, later in zip(before, after, strict=True)), (before, after)


@contextmanager
def recorded_offsets(bootstrap: str, group: str, topic: str) -> Iterator[list[list[int]]]:
    """Records the committed offsets repeatedly, as often as a broker responds."""
    offsets: list[list[int]] = []
    end = threading.Event()
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def watch() -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        while not end.wait(0.1):
            with suppress(KafkaException):
                offsets.append([partition.offset for partition in consumer.committed(partitions, 2)])
        consumer.close()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield offsets
    finally:
        end.set()
        thread.join()
