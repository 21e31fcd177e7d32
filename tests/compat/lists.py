"""The lists beside this file, one per suite: `guarded` must pass, `skipped` has a reason, `subset` is in `make test`.

`alone` passes against one broker only: such a test is written for a cluster of one.

A reason has `evidence`, a pattern: what a test that fails for this reason says. A skipped test that fails without
saying so fails for another reason, which nobody has looked at: `make compat` tells.
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
    alone: frozenset[Case]
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
    lists = Expected(suite, cases(table["guarded"]), cases(table["subset"]), frozenset(cases(table["alone"])), skipped)
    _check(lists)
    return lists


def _check(lists: Expected) -> None:
    guarded = set(lists.guarded)
    assert len(guarded) == len(lists.guarded), f"{lists.suite}: a test is guarded twice"
    assert set(lists.subset) <= guarded, f"{lists.suite}: not guarded: {set(lists.subset) - guarded}"
    assert lists.alone <= guarded, f"{lists.suite}: not guarded: {lists.alone - guarded}"
    assert not guarded & lists.skipped.keys(), f"{lists.suite}: both: {guarded & lists.skipped.keys()}"
