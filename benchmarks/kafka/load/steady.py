"""A steady rate: records that carry the time at which they were sent, and who looks at it when they arrive."""

import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.common.measure import percentile
from benchmarks.kafka.load.client import WAIT_S_MAX, LoadFailed, Sending, checked, consumer, from_start
from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import Stamp, Told, Watch

_TICK_S: Final = 0.001
_STAMP: Final = 8
"""Bytes at the start of a value: nanoseconds of the clock that all processes of a machine share."""


class Stamping:
    def __init__(self, task: Stamp) -> None:
        self._task = task
        self._values = [value[_STAMP:] for value in records(task.values)]
        options = {"linger.ms": task.linger_ms}
        self._all = [Sending(task.bootstrap, task.topic, options, times_acks=True) for _ in range(task.producers)]
        if task.acks_to:
            for sending in self._all:
                sending.acks_at = array("q")

    def work(self) -> Told:
        task, sent, start_s = self._task, 0, time.monotonic()
        while sent < task.records:
            due = min(task.records, 1 + int((time.monotonic() - start_s) * task.per_s))
            for number in range(sent, due):
                self._send(number)
            sent = due
            for sending in self._all:
                sending.producer.poll(0)
            time.sleep(_TICK_S)
        for sending in self._all:
            sending.finish()
        if task.acks_to:
            Path(task.acks_to).write_bytes(b"".join((sending.acks_at or array("q")).tobytes() for sending in self._all))
        skip = task.skip // task.producers
        return _told([took_s for sending in self._all for took_s in sending.acks_s[skip:]], task.records)

    def _send(self, number: int) -> None:
        stamp = time.monotonic_ns().to_bytes(_STAMP, "big")
        sending = self._all[number % self._task.producers]
        sending.send(stamp + self._values[number % len(self._values)], number % self._task.partitions)


class Watching:
    def __init__(self, task: Watch) -> None:
        self._task = task
        self._consumer = consumer(task.bootstrap)

    def work(self) -> Told:
        task, took_s = self._task, list[float]()
        self._consumer.assign(from_start(task.topic, task.partitions))
        deadline_s = time.monotonic() + WAIT_S_MAX
        while len(took_s) < task.records:
            # One at a time: `consume` waits until it has as many as it was asked for.
            if (message := self._consumer.poll(1.0)) is not None:
                (found,) = checked([message])
                value = found.value()
                assert value is not None, "Stamping sends none without"
                took_s.append((time.monotonic_ns() - int.from_bytes(value[:_STAMP], "big")) / 1e9)
            elif time.monotonic() > deadline_s:
                raise LoadFailed(f"{task.records - len(took_s)} records did not come in {WAIT_S_MAX:.0f} s")
        return _told(took_s[task.skip :], task.records)


def _told(took_s: Sequence[float], count: int) -> Told:
    in_order = sorted(took_s)
    return Told(
        size=count * SIZE,
        p50_ms=percentile(in_order, 0.5) * 1e3,
        p99_ms=percentile(in_order, 0.99) * 1e3,
        worst_ms=in_order[-1] * 1e3,
    )
