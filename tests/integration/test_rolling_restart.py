"""Brokers are restarted one after another under a consumer group whose members are clients of all kinds."""

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
from tests.integration.group_clusters import PARTITIONS, committed, fill, make, values_of
from tests.integration.group_members import AioKafka, Confluent, Java, KafkaPython, running, shared, wait_until
from tests.integration.programs import java_sources_run

from lakestream.testing.brokers import SQLITE_AND_DISK, running_brokers

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _clients_are_gone() -> Iterator[None]:
    """kafka-python does not close its connections to a broker that is gone: that is said here, and not later. What it
    logs holds them, too."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka"):
            logging.getLogger(name).disabled = True
    yield
    gc.collect()


def test_nothing_is_lost_and_no_commit_goes_back(tmp_path: Path) -> None:
    java_sources_run()
    topic, group = f"topic-{uuid.uuid4().hex[:12]}", f"group-{uuid.uuid4().hex[:12]}"
    with running_brokers(tmp_path, 2, SQLITE_AND_DISK) as cluster:
        make(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 40)
        members = [kind(cluster.bootstrap, group, topic) for kind in (Java, Confluent, KafkaPython, AioKafka)]
        with running(members), offsets_watched(cluster.bootstrap, group, topic) as seen:
            wait_until("each has one", lambda: shared(members, PARTITIONS), members)
            for number, broker in enumerate(cluster, start=1):
                assert broker.stop() == 0
                values.update(fill(cluster.bootstrap, topic, 40, start=1_000 * number))
                asyncio.run(broker.start())
                values.update(fill(cluster.bootstrap, topic, 40, start=1_000 * number + 500))
                wait_until("all is read", lambda: values <= set(values_of(*members)), members)
            ends = [len(values) // PARTITIONS] * PARTITIONS
            wait_until("all is committed", lambda: committed(cluster.bootstrap, group, topic) == ends, members)
        assert len(seen) > 10
        for before, after in itertools.pairwise(seen):
            assert all(one <= other for one, other in zip(before, after, strict=True)), (before, after)


@contextmanager
def offsets_watched(bootstrap: str, group: str, topic: str) -> Iterator[list[list[int]]]:
    """What was committed, again and again, whenever a broker answers."""
    seen: list[list[int]] = []
    end = threading.Event()
    where = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def watch() -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        while not end.wait(0.1):
            with suppress(KafkaException):
                seen.append([one.offset for one in consumer.committed(where, 2)])
        consumer.close()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        end.set()
        watching.join()
