"""Starts brokers and runs cases of both suites against them: for `python -m tests.compat` and for `make test`."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.compat import kafka_python, librdkafka
from tests.compat.judge import Judged, judge
from tests.compat.lists import Expected
from tests.compat.model import Case, Cluster, Outcome

from lakestream.testing.brokers import SQLITE_AND_DISK, running_brokers

GUARDED_S_MAX = 60.0
SKIPPED_S_MAX = 25.0
"""What is expected to fail should do so soon: it is run to see whether it still does, and says why."""
WAITING = 4
"""So many times more of those at once: most of them only wait for what does not come."""


@dataclass(frozen=True, slots=True)
class Split:
    guarded: Sequence[Case]
    skipped: Sequence[Case]


@contextmanager
def cluster(folder: Path, count: int = 1, stores: str = SQLITE_AND_DISK) -> Iterator[Cluster]:
    """Two sets of brokers with stores of their own: the second makes no topics by itself."""
    with (
        running_brokers(folder / "brokers", count, stores) as brokers,
        running_brokers(folder / "strict", count, stores, ["--auto-create-topics", "no"]) as strict,
    ):
        written = folder / "tests"
        written.mkdir()
        yield Cluster(bootstrap=brokers.bootstrap, bootstrap_without_auto_create=strict.bootstrap, folder=written)


def run(
    cases: Sequence[Case], lists: Expected, where: Cluster, *, patience: float = 1.0, jobs: int = 0
) -> Iterator[Judged]:
    """In the order in which they end."""
    split = Split(
        guarded=[case for case in cases if case not in lists.skipped],
        skipped=[case for case in cases if case in lists.skipped],
    )
    run_suite = _librdkafka if lists.suite == librdkafka.SUITE else _kafka_python
    for outcome in run_suite(split, where, patience, jobs or os.cpu_count() or 1):
        yield judge(outcome, lists)


def _kafka_python(cases: Split, where: Cluster, patience: float, jobs: int) -> Iterator[Outcome]:
    yield from kafka_python.run(cases.guarded, where, test_s_max=GUARDED_S_MAX * patience)
    yield from kafka_python.run(cases.skipped, where, test_s_max=SKIPPED_S_MAX)


def _librdkafka(cases: Split, where: Cluster, patience: float, jobs: int) -> Iterator[Outcome]:
    yield from _at_once(jobs, partial(librdkafka.run, cluster=where, patience=patience), cases.guarded)
    yield from _at_once(jobs * WAITING, partial(librdkafka.run, cluster=where, debug=True), cases.skipped)


def _at_once(
    jobs: int, run_some: Callable[[Sequence[Case]], list[Outcome]], cases: Sequence[Case]
) -> Iterator[Outcome]:
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(_in_turn, run_some, queue) for queue in librdkafka.queues(cases)]
        try:
            for done in as_completed(running):
                yield from done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _in_turn(run_some: Callable[[Sequence[Case]], list[Outcome]], queue: Sequence[Sequence[Case]]) -> list[Outcome]:
    return [outcome for some in queue for outcome in run_some(some)]


def all_tests(suite: str) -> list[str]:
    return librdkafka.all_tests() if suite == librdkafka.SUITE else kafka_python.all_tests()
