"""Tests of the comparison of outcomes with the lists."""

import re

import pytest
from tests.compat.lists import Expected, Reason
from tests.compat.model import Case, Outcome, State
from tests.compat.result_checker import Verdict, check, unlisted

GUARDED, SKIPPED = Case("s", "0001_good"), Case("s", "0002_groups/part @quick")
LISTS = Expected("s", (GUARDED,), (), frozenset(), {SKIPPED: Reason("needs groups", re.compile("coordinator"))})


@pytest.mark.parametrize(
    ("case", "state", "output", "verdict"),
    [
        (GUARDED, State.PASSED, "", Verdict.PASSED),
        (GUARDED, State.FAILED, "", Verdict.FAILED),
        (GUARDED, State.SKIPPED_BY_SUITE, "", Verdict.FAILED),
        (GUARDED, State.EMPTY, "", Verdict.FAILED),
        (SKIPPED, State.PASSED, "", Verdict.PASSES_NOW),
        (SKIPPED, State.FAILED, "no coordinator", Verdict.SKIPPED),
        (SKIPPED, State.FAILED, "wrong offset", Verdict.OTHER_FAILURE),
        (SKIPPED, State.EMPTY, "", Verdict.OTHER_FAILURE),
    ],
)
def test_verdict_follows_from_list_state_and_output(case: Case, state: State, output: str, verdict: Verdict) -> None:
    assert check(Outcome(case=case, state=state, output=output), LISTS).verdict is verdict


def test_run_fails_on_failed_other_failure_and_unlisted() -> None:
    assert [verdict for verdict in Verdict if verdict.is_bad] == [
        Verdict.FAILED,
        Verdict.OTHER_FAILURE,
        Verdict.UNLISTED,
    ]


def test_test_is_listed_when_a_part_of_it_is() -> None:
    assert [result.case.name for result in unlisted(["0001_good", "0002_groups", "0003_new"], LISTS)] == ["0003_new"]
