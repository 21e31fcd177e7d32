"""Clients of all load generators: confluent-kafka with librdkafka's defaults, apart from the settings here."""

import json
import statistics
import time
from array import array
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

WAIT_S_MAX = 120.0
"""Time limit of any operation: a load that takes longer has failed."""
_ERRORS = 3
"""Log level of librdkafka, which would otherwise warn that a restarted Kafka has no leaders for a moment."""


class LoadFailed(Exception):
    """The server rejected or lost a request, or did not respond."""


class LoadProducer:
    """Producer that records failed deliveries, batch sizes and, optionally, latencies of acks."""

    def __init__(
        self, bootstrap: str, topic: str, options: Mapping[str, str | int], *, times_acks: bool = False
    ) -> None:
        self.acks_s: list[float] = []
        self.acks_at: array[int] | None = None
        """Partition, offset and time of each ack, in order. The caller enables it by setting an empty array."""
        self._batch_sizes: list[float] = []
        self._failure = ""
        self._topic = topic
        self.client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": _ERRORS,
                "acks": "all",
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 262_144,
                "delivery.report.only.error": not times_acks,
                "on_delivery": self._on_delivery,
                "statistics.interval.ms": 250,
                "stats_cb": self._on_statistics,
                **options,
            }
        )
        self.client.list_topics(timeout=WAIT_S_MAX)  # connects

    def send(self, value: bytes, partition: int, topic: str = "") -> None:
        while True:
            try:
                self.client.produce(topic or self._topic, value, partition=partition)
                return
            except BufferError:
                self.client.poll(0.005)

    def finish(self) -> None:
        left = self.client.flush(WAIT_S_MAX)
        if left or self._failure:
            raise LoadFailed(self._failure or f"{left} records were not acknowledged in {WAIT_S_MAX:.0f} s")

    @property
    def batch_bytes(self) -> float:
        return statistics.median(self._batch_sizes) if self._batch_sizes else 0.0

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = f"a record was not delivered: {error}"
        elif (took_s := message.latency()) is not None:
            self.acks_s.append(took_s)
            if self.acks_at is not None:
                self.acks_at.extend((message.partition() or 0, message.offset() or 0, time.time_ns()))

    def _on_statistics(self, text: str) -> None:
        topic = json.loads(text)["topics"].get(self._topic)
        if topic and topic["batchsize"]["cnt"]:
            self._batch_sizes.append(topic["batchsize"]["avg"])


def create_consumer(bootstrap: str) -> Consumer:
    """Creates a consumer for assigned partitions, which joins no group."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": _ERRORS,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,  # the default is a pause of a second when the queue is full
        }
    )
    client.list_topics(timeout=WAIT_S_MAX)  # connects
    return client


def from_start(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number, 0) for number in range(partitions)]


def checked(messages: Sequence[Message]) -> Sequence[Message]:
    for message in messages:
        if (error := message.error()) is not None:
            raise LoadFailed(f"a fetch failed: {error}")
    return messages
