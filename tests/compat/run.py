"""Starts brokers and runs cases of both suites against them, for `python -m tests.compat` and `make test`."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.compat import kafka_python, librdkafka
from tests.compat.lists import Expected
from tests.compat.model import Case, Cluster, Outcome
from tests.compat.result_checker import Result, check

from lakestream.testing.brokers import SQLITE_AND_DISK, running_brokers

GUARDED_S_MAX = 60.0
SKIPPED_S_MAX = 25.0
"""Skipped tests are expected to fail; they run to check whether they still fail for the same reason."""
SKIPPED_JOBS_FACTOR = 4
"""More skipped tests than guarded tests are run concurrently: most of them only wait for a timeout."""


@dataclass(frozen=True, slots=True)
class Split:
    guarded: Sequence[Case]
    skipped: Sequence[Case]


@contextmanager
def cluster(folder: Path, count: int = 1, stores: str = SQLITE_AND_DISK) -> Iterator[Cluster]:
    """Starts two clusters with stores of their own; the second does not create topics automatically."""
    with (
        running_brokers(folder / "brokers", count, stores) as brokers,
        running_brokers(folder / "strict", count, stores, ["--auto-create-topics", "no"]) as strict,
    ):
        tests = folder / "tests"
        tests.mkdir()
        yield Cluster(bootstrap=brokers.bootstrap, bootstrap_without_auto_create=strict.bootstrap, folder=tests)


def run(
    cases: Sequence[Case], lists: Expected, brokers: Cluster, *, patience: float = 1.0, jobs: int = 0
) -> Iterator[Result]:
    """Runs the cases; yields the results in the order in which the cases end."""
    split = Split(
        guarded=[case for case in cases if case not in lists.skipped],
        skipped=[case for case in cases if case in lists.skipped],
    )
    run_suite = _librdkafka if lists.suite == librdkafka.SUITE else _kafka_python
    for outcome in run_suite(split, brokers, patience, jobs or os.cpu_count() or 1):
        yield check(outcome, lists)


def _kafka_python(cases: Split, brokers: Cluster, patience: float, jobs: int) -> Iterator[Outcome]:
    yield from kafka_python.run(cases.guarded, brokers, test_s_max=GUARDED_S_MAX * patience)
    yield from kafka_python.run(cases.skipped, brokers, test_s_max=SKIPPED_S_MAX)


def _librdkafka(cases: Split, brokers: Cluster, patience: float, jobs: int) -> Iterator[Outcome]:
    yield from _concurrently(jobs, partial(librdkafka.run, cluster=brokers, patience=patience), cases.guarded)
    yield from _concurrently(
        jobs * SKIPPED_JOBS_FACTOR, partial(librdkafka.run, cluster=brokers, debug=True), cases.skipped
    )


def _concurrently(
    jobs: int, run_cases: Callable[[Sequence[Case]], list[Outcome]], cases: Sequence[Case]
) -> Iterator[Outcome]:
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(_run_queue, run_cases, queue) for queue in librdkafka.queues(cases)]
        try:
            for future in as_completed(running):
                yield from future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_queue(run_cases: Callable[[Sequence[Case]], list[Outcome]], queue: Sequence[Sequence[Case]]) -> list[Outcome]:
    return [outcome for cases in queue for outcome in run_cases(cases)]


def all_tests(suite: str) -> list[str]:
    return librdkafka.all_tests() if suite == librdkafka.SUITE else kafka_python.all_tests()
