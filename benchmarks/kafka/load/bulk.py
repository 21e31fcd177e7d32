"""As much as possible."""

import itertools
import time
from pathlib import Path

from confluent_kafka import Consumer

from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed, Sending, checked, consumer, from_start
from benchmarks.kafka.load.payload import kept, records
from benchmarks.kafka.load.tasks import Consume, Produce, Told

AT_ONCE = 5_000


class Producing:
    def __init__(self, task: Produce) -> None:
        self._task = task
        self._values = kept(Path(task.values_from)) if task.values_from else records(task.values)
        self._sending = Sending(task.bootstrap, task.topic, {"compression.type": task.codec})

    def work(self) -> Told:
        task, send = self._task, self._sending.send
        values, partitions = itertools.cycle(self._values), itertools.cycle(range(task.partitions))
        size = 0
        for value, partition in zip(itertools.islice(values, task.records), partitions, strict=False):
            send(value, partition)
            size += len(value)
        self._sending.finish()
        return Told(size=size, batch_bytes=self._sending.batch_bytes)


class Consuming:
    def __init__(self, task: Consume) -> None:
        self._task = task
        self._consumers = [consumer(task.bootstrap) for _ in range(task.consumers)]

    def work(self) -> Told:
        return Told(size=sum(self._read(one) for one in self._consumers))

    def _read(self, one: Consumer) -> int:
        one.assign(from_start(self._task.topic, self._task.partitions))
        left, size, deadline_s = self._task.records, 0, time.monotonic() + WAIT_S_MAX
        while left:
            found = checked(one.consume(min(left, AT_ONCE), timeout=1.0))
            left -= len(found)
            size += sum(map(len, found))
            if time.monotonic() > deadline_s:
                raise LoadFailed(f"{left} records did not come in {WAIT_S_MAX:.0f} s")
        one.unassign()
        return size
