"""Requests of one record, one in flight per producer, built by librdkafka at no cost in Python per request."""

from benchmarks.kafka.load.client import LoadProducer
from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import LoadResult, Single

_OPTIONS = {"batch.num.messages": 1, "linger.ms": 0, "max.in.flight.requests.per.connection": 1}


class SingleLoad:
    def __init__(self, task: Single) -> None:
        self._task = task
        self._values = records()
        self._producers = [LoadProducer(task.bootstrap, task.topic, _OPTIONS) for _ in range(task.producers)]

    def work(self) -> LoadResult:
        task = self._task
        for number in range(task.records):
            producer = self._producers[number % task.producers]
            producer.send(self._values[number % len(self._values)], number // task.producers % task.partitions)
        for producer in self._producers:
            producer.finish()
        return LoadResult(size=task.records * SIZE)
