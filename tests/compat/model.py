"""Types of this folder: a case of another project's suite, its outcome, and the cluster.

lists.py           expected outcomes                 librdkafka.py, kafka_python.py   runs of cases
result_checker.py  compares outcomes with the lists  report.py                        the output, and the page in docs/
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """Test of a suite, or a part of it: `0081_admin/do_test_ListOffsets @idempotent`."""

    suite: str
    name: str

    def __str__(self) -> str:
        return f"{self.suite} {self.name}"


class State(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED_BY_SUITE = "skipped by the suite"  # with a reason of the suite
    EMPTY = "empty"  # reported as passed, but nothing ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    state: State
    reason: str = ""
    output: str = ""
    """The whole output of the test, in which the evidence of reasons is searched."""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Brokers that a suite runs against."""

    bootstrap: str
    bootstrap_without_auto_create: str
    folder: Path
    """Folder for the files of the tests."""
