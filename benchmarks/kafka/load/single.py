"""Requests of one record, one in flight for each producer. librdkafka does that by itself: Python is not in the way."""

from benchmarks.kafka.load.client import Sending
from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import Single, Told

_OPTIONS = {"batch.num.messages": 1, "linger.ms": 0, "max.in.flight.requests.per.connection": 1}


class Requesting:
    def __init__(self, task: Single) -> None:
        self._task = task
        self._values = records()
        self._all = [Sending(task.bootstrap, task.topic, _OPTIONS) for _ in range(task.producers)]

    def work(self) -> Told:
        task = self._task
        for number in range(task.records):
            sending = self._all[number % task.producers]
            sending.send(self._values[number % len(self._values)], number // task.producers % task.partitions)
        for sending in self._all:
            sending.finish()
        return Told(size=task.records * SIZE)
