"""Words of this folder: a case of an outside suite, what came of it, and what we expect.

lists.py   what is expected        librdkafka.py, kafka_python.py   how a case is run
judge.py   expected against real   report.py                        the table, the page in docs/
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One test of a suite, or one part of it: `0081_admin/do_test_ListOffsets @idempotent`."""

    suite: str
    name: str

    def __str__(self) -> str:
        return f"{self.suite} {self.name}"


class State(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"  # by the suite itself, with its own reason
    EMPTY = "empty"  # it said that it passed, and did nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    state: State
    why: str = ""
    said: str = ""
    """All that the test said: reasons for failing are looked for in it."""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the brokers are that a suite is run against."""

    bootstrap: str
    bootstrap_without_auto_create: str
    folder: Path
    """For what tests write."""
