"""What was expected against what came: pure."""

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
    FAILS_OTHERWISE = "FAILS OTHERWISE"
    UNLISTED = "UNLISTED"

    @property
    def is_bad(self) -> bool:
        return self.isupper()


@dataclass(frozen=True, slots=True)
class Judged:
    case: Case
    verdict: Verdict
    why: str
    took_s: float = 0.0


def judge(outcome: Outcome, lists: Expected) -> Judged:
    verdict, why = _verdict(outcome, lists)
    return Judged(outcome.case, verdict, why, outcome.took_s)


def _verdict(outcome: Outcome, lists: Expected) -> tuple[Verdict, str]:
    reason = lists.skipped.get(outcome.case)
    if reason is None:
        return (Verdict.PASSED, "") if outcome.state is State.PASSED else (Verdict.FAILED, outcome.why)
    if outcome.state is State.PASSED:
        return Verdict.PASSES_NOW, f"was skipped: {reason.text}; move it to guarded in {lists.suite}.toml"
    if not reason.evidence.search(f"{outcome.said}\n{outcome.why}"):
        return Verdict.FAILS_OTHERWISE, f"not a word of {reason.evidence.pattern!r} ({reason.text}), but: {outcome.why}"
    return Verdict.SKIPPED, reason.text


def unlisted(tests: Iterable[str], lists: Expected) -> list[Judged]:
    """Tests of the suite that no list names. A part of a test, or a mode, names the test too."""
    named = {case.name.partition(" @")[0].partition("/")[0] for case in lists.cases}
    return [
        Judged(Case(lists.suite, test), Verdict.UNLISTED, f"neither guarded nor skipped in {lists.suite}.toml")
        for test in tests
        if test not in named
    ]
