"""confluent-kafka as all generators use it: librdkafka's defaults, apart from what is said here."""

import json
import statistics
import time
from array import array
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

WAIT_S_MAX = 120.0
"""For anything: a load that takes longer has failed."""


_ERRORS = 3
"""What librdkafka says of its own accord; a Kafka that was restarted has no leaders for a moment, and it wonders."""


class LoadFailed(Exception):
    """The server refused, lost or never answered something."""


class Sending:
    """A producer that notices what was not delivered, how large its batches are, and, if asked, how long acks took."""

    def __init__(
        self, bootstrap: str, topic: str, options: Mapping[str, str | int], *, times_acks: bool = False
    ) -> None:
        self.acks_s: list[float] = []
        self.acks_at: array[int] | None = None
        """Partition, offset and time of each ack, one after the other, for whoever sets an empty one."""
        self._batch_sizes: list[float] = []
        self._failed = ""
        self._topic = topic
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": _ERRORS,
                "acks": "all",
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 262_144,
                "delivery.report.only.error": not times_acks,
                "on_delivery": self._delivered,
                "statistics.interval.ms": 250,
                "stats_cb": self._noted,
                **options,
            }
        )
        self.producer.list_topics(timeout=WAIT_S_MAX)  # connects

    def send(self, value: bytes, partition: int, topic: str = "") -> None:
        while True:
            try:
                self.producer.produce(topic or self._topic, value, partition=partition)
                return
            except BufferError:
                self.producer.poll(0.005)

    def finish(self) -> None:
        left = self.producer.flush(WAIT_S_MAX)
        if left or self._failed:
            raise LoadFailed(self._failed or f"{left} records were not acknowledged in {WAIT_S_MAX:.0f} s")

    @property
    def batch_bytes(self) -> float:
        return statistics.median(self._batch_sizes) if self._batch_sizes else 0.0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = f"a record was not delivered: {error}"
        elif (took_s := message.latency()) is not None:
            self.acks_s.append(took_s)
            if self.acks_at is not None:
                self.acks_at.extend((message.partition() or 0, message.offset() or 0, time.time_ns()))

    def _noted(self, text: str) -> None:
        topic = json.loads(text)["topics"].get(self._topic)
        if topic and topic["batchsize"]["cnt"]:
            self._batch_sizes.append(topic["batchsize"]["avg"])


def consumer(bootstrap: str) -> Consumer:
    """It joins no group: partitions are assigned."""
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": _ERRORS,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,  # a full queue would otherwise wait for a second
        }
    )
    made.list_topics(timeout=WAIT_S_MAX)  # connects
    return made


def from_start(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number, 0) for number in range(partitions)]


def checked(messages: Sequence[Message]) -> Sequence[Message]:
    for message in messages:
        if (error := message.error()) is not None:
            raise LoadFailed(f"a fetch failed: {error}")
    return messages
