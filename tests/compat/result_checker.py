"""Compares the outcomes of tests with the lists (pure)."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tests.compat.lists import Expected
from tests.compat.model import Case, Outcome, State


class Verdict(StrEnum):
    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "FAILED"
    PASSES_NOW = "passes now"
    OTHER_FAILURE = "OTHER FAILURE"
    UNLISTED = "UNLISTED"

    @property
    def is_bad(self) -> bool:
        return self.isupper()


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    verdict: Verdict
    reason: str
    took_s: float = 0.0


def check(outcome: Outcome, lists: Expected) -> Result:
    verdict, text = _verdict(outcome, lists)
    return Result(outcome.case, verdict, text, outcome.took_s)


def _verdict(outcome: Outcome, lists: Expected) -> tuple[Verdict, str]:
    reason = lists.skipped.get(outcome.case)
    if reason is None:
        return (Verdict.PASSED, "") if outcome.state is State.PASSED else (Verdict.FAILED, outcome.reason)
    if outcome.state is State.PASSED:
        return Verdict.PASSES_NOW, f"was skipped because it {reason.text}: move it to guarded in {lists.suite}.toml"
    if not reason.evidence.search(f"{outcome.output}\n{outcome.reason}"):
        return Verdict.OTHER_FAILURE, f"no match of {reason.evidence.pattern!r} ({reason.text}), but: {outcome.reason}"
    return Verdict.SKIPPED, reason.text


def unlisted(tests: Iterable[str], lists: Expected) -> list[Result]:
    """Returns tests of the suite that are in no list. A part or a mode of a test in a list is enough."""
    listed = {case.name.partition(" @")[0].partition("/")[0] for case in lists.cases}
    return [
        Result(Case(lists.suite, test), Verdict.UNLISTED, f"neither guarded nor skipped in {lists.suite}.toml")
        for test in tests
        if test not in listed
    ]
