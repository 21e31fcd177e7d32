"""Transactions of several producers, each in a thread that waits outside of the interpreter lock."""

import threading
import time

from confluent_kafka import KafkaException, Producer

from benchmarks.common.measure import percentile
from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed
from benchmarks.kafka.load.payload import records
from benchmarks.kafka.load.tasks import LoadResult, Transact

_ERRORS = 3


class TransactLoad:
    def __init__(self, task: Transact) -> None:
        self._task = task
        self._value = records()[0]
        self._failures: list[str] = []
        self._took_s: list[float] = []
        self._producers = [self._producer(number) for number in range(task.producers)]
        for producer in self._producers:
            self._transaction(producer)  # partitions and coordinators are cached from here on
        self._took_s.clear()

    def _producer(self, number: int) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._task.bootstrap,
                "log_level": _ERRORS,
                "transactional.id": f"{self._task.prefix}-{number}",
                "linger.ms": 0,
            }
        )
        producer.init_transactions(WAIT_S_MAX)
        return producer

    def work(self) -> LoadResult:
        each = self._task.transactions // self._task.producers
        threads = [threading.Thread(target=self._run, args=(producer, each)) for producer in self._producers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise LoadFailed(self._failures[0])
        took = sorted(self._took_s)
        return LoadResult(
            p50_ms=1000 * percentile(took, 0.5), p99_ms=1000 * percentile(took, 0.99), worst_ms=1000 * took[-1]
        )

    def _run(self, producer: Producer, count: int) -> None:
        try:
            for _ in range(count):
                self._transaction(producer)
        except KafkaException as error:
            self._failures.append(f"a transaction failed: {error}")

    def _transaction(self, producer: Producer) -> None:
        start_s = time.perf_counter()
        producer.begin_transaction()
        for partition in range(self._task.partitions):
            producer.produce(self._task.topic, self._value, partition=partition)
        producer.commit_transaction(WAIT_S_MAX)
        self._took_s.append(time.perf_counter() - start_s)
