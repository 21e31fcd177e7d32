"""Records at a steady rate with their send time, and a consumer that computes end-to-end latencies."""

import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.common.measure import percentile
from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed, LoadProducer, checked, create_consumer, from_start
from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import LoadResult, Stamp, Watch

_TICK_S: Final = 0.001
_STAMP_SIZE: Final = 8
"""Size of the time at the start of a value: nanoseconds of the machine's monotonic clock."""


class StampLoad:
    def __init__(self, task: Stamp) -> None:
        self._task = task
        self._values = [value[_STAMP_SIZE:] for value in records(task.values)]
        options = {"linger.ms": task.linger_ms}
        self._producers = [
            LoadProducer(task.bootstrap, task.topic, options, times_acks=True) for _ in range(task.producers)
        ]
        if task.acks_to:
            for producer in self._producers:
                producer.acks_at = array("q")

    def work(self) -> LoadResult:
        task, sent, start_s = self._task, 0, time.monotonic()
        while sent < task.records:
            due = min(task.records, 1 + int((time.monotonic() - start_s) * task.per_s))
            for number in range(sent, due):
                self._send(number)
            sent = due
            for producer in self._producers:
                producer.client.poll(0)
            time.sleep(_TICK_S)
        for producer in self._producers:
            producer.finish()
        if task.acks_to:
            Path(task.acks_to).write_bytes(
                b"".join((producer.acks_at or array("q")).tobytes() for producer in self._producers)
            )
        skip = task.skip // task.producers
        return _latency_result(
            [took_s for producer in self._producers for took_s in producer.acks_s[skip:]], task.records
        )

    def _send(self, number: int) -> None:
        stamp = time.monotonic_ns().to_bytes(_STAMP_SIZE, "big")
        producer = self._producers[number % self._task.producers]
        producer.send(stamp + self._values[number % len(self._values)], number % self._task.partitions)


class WatchLoad:
    def __init__(self, task: Watch) -> None:
        self._task = task
        self._consumer = create_consumer(task.bootstrap)

    def work(self) -> LoadResult:
        task, took_s = self._task, list[float]()
        self._consumer.assign(from_start(task.topic, task.partitions))
        deadline_s = time.monotonic() + WAIT_S_MAX
        while len(took_s) < task.records:
            # One at a time: `consume` waits until it has all requested messages.
            if (message := self._consumer.poll(1.0)) is not None:
                (received,) = checked([message])
                value = received.value()
                assert value is not None, "StampLoad sends no record without a value"
                took_s.append((time.monotonic_ns() - int.from_bytes(value[:_STAMP_SIZE], "big")) / 1e9)
            elif time.monotonic() > deadline_s:
                raise LoadFailed(f"{task.records - len(took_s)} records did not arrive in {WAIT_S_MAX:.0f} s")
        return _latency_result(took_s[task.skip :], task.records)


def _latency_result(took_s: Sequence[float], count: int) -> LoadResult:
    in_order = sorted(took_s)
    return LoadResult(
        size=count * SIZE,
        p50_ms=percentile(in_order, 0.5) * 1e3,
        p99_ms=percentile(in_order, 0.99) * 1e3,
        worst_ms=in_order[-1] * 1e3,
    )
