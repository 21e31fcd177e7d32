"""Lists of tests in the .toml files of this folder, one per suite.

`guarded` tests must pass, `skipped` tests have a reason, and `subset` is in `make test`. Tests of `one_broker_only`
pass only against a single broker, because they are written for such a cluster.

A reason has `evidence`, a pattern that the output of a test matches which fails for this reason. If the output of a
skipped test does not match, the test fails for another reason, and `make compat` fails.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.compat.model import Case

SUITES = ("librdkafka", "kafka-python")


@dataclass(frozen=True, slots=True)
class Reason:
    text: str
    evidence: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Expected:
    suite: str
    guarded: tuple[Case, ...]
    subset: tuple[Case, ...]
    one_broker_only: frozenset[Case]
    skipped: dict[Case, Reason]

    @property
    def cases(self) -> tuple[Case, ...]:
        return (*self.guarded, *self.skipped)


def expected(suite: str) -> Expected:
    table = tomllib.loads((Path(__file__).parent / f"{suite}.toml").read_text())

    def cases(names: list[str]) -> tuple[Case, ...]:
        return tuple(Case(suite, name) for name in names)

    skipped: dict[Case, Reason] = {}
    for text, entry in table["skipped"].items():
        reason = Reason(text, re.compile(entry["evidence"]))
        for case in cases(entry["tests"]):
            assert case not in skipped, f"{case} is skipped twice"
            skipped[case] = reason
    lists = Expected(
        suite, cases(table["guarded"]), cases(table["subset"]), frozenset(cases(table["one_broker_only"])), skipped
    )
    _check(lists)
    return lists


def _check(lists: Expected) -> None:
    guarded = set(lists.guarded)
    assert len(guarded) == len(lists.guarded), f"{lists.suite}: a test is guarded twice"
    assert set(lists.subset) <= guarded, f"{lists.suite}: not guarded: {set(lists.subset) - guarded}"
    assert lists.one_broker_only <= guarded, f"{lists.suite}: not guarded: {lists.one_broker_only - guarded}"
    assert not guarded & lists.skipped.keys(), f"{lists.suite}: guarded and skipped: {guarded & lists.skipped.keys()}"
