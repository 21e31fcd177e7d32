"""Produces and consumes as fast as possible."""

import itertools
import time
from pathlib import Path

from confluent_kafka import Consumer

from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed, LoadProducer, checked, create_consumer, from_start
from benchmarks.kafka.load.payload import read_values, records
from benchmarks.kafka.load.tasks import Consume, LoadResult, Produce

MESSAGES_MAX = 5_000


class ProduceLoad:
    def __init__(self, task: Produce) -> None:
        self._task = task
        self._values = read_values(Path(task.values_from)) if task.values_from else records(task.values)
        self._producer = LoadProducer(task.bootstrap, task.topic, {"compression.type": task.codec})

    def work(self) -> LoadResult:
        task, send = self._task, self._producer.send
        values, partitions = itertools.cycle(self._values), itertools.cycle(range(task.partitions))
        size = 0
        for value, partition in zip(itertools.islice(values, task.records), partitions, strict=False):
            send(value, partition)
            size += len(value)
        self._producer.finish()
        return LoadResult(size=size, batch_bytes=self._producer.batch_bytes)


class ConsumeLoad:
    def __init__(self, task: Consume) -> None:
        self._task = task
        self._consumers = [create_consumer(task.bootstrap) for _ in range(task.consumers)]

    def work(self) -> LoadResult:
        return LoadResult(size=sum(self._read(consumer) for consumer in self._consumers))

    def _read(self, consumer: Consumer) -> int:
        consumer.assign(from_start(self._task.topic, self._task.partitions))
        left, size, deadline_s = self._task.records, 0, time.monotonic() + WAIT_S_MAX
        while left:
            messages = checked(consumer.consume(min(left, MESSAGES_MAX), timeout=1.0))
            left -= len(messages)
            size += sum(map(len, messages))
            if time.monotonic() > deadline_s:
                raise LoadFailed(f"{left} records did not arrive in {WAIT_S_MAX:.0f} s")
        consumer.unassign()
        return size
