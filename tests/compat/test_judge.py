"""What is expected against what came."""

import re

import pytest
from tests.compat.judge import Verdict, judge, unlisted
from tests.compat.lists import Expected, Reason
from tests.compat.model import Case, Outcome, State

GUARDED, SKIPPED = Case("s", "0001_good"), Case("s", "0002_groups/part @quick")
LISTS = Expected("s", (GUARDED,), (), frozenset(), {SKIPPED: Reason("needs groups", re.compile("coordinator"))})


@pytest.mark.parametrize(
    ("case", "state", "said", "verdict"),
    [
        (GUARDED, State.PASSED, "", Verdict.PASSED),
        (GUARDED, State.FAILED, "", Verdict.FAILED),
        (GUARDED, State.LEFT_OUT, "", Verdict.FAILED),
        (GUARDED, State.EMPTY, "", Verdict.FAILED),
        (SKIPPED, State.PASSED, "", Verdict.PASSES_NOW),
        (SKIPPED, State.FAILED, "no coordinator", Verdict.SKIPPED),
        (SKIPPED, State.FAILED, "wrong offset", Verdict.FAILS_OTHERWISE),
        (SKIPPED, State.EMPTY, "", Verdict.FAILS_OTHERWISE),
    ],
)
def test_verdicts(case: Case, state: State, said: str, verdict: Verdict) -> None:
    assert judge(Outcome(case=case, state=state, said=said), LISTS).verdict is verdict


def test_which_verdicts_fail_the_run() -> None:
    assert [verdict for verdict in Verdict if verdict.is_bad] == [
        Verdict.FAILED,
        Verdict.FAILS_OTHERWISE,
        Verdict.UNLISTED,
    ]


def test_a_part_of_a_test_names_the_test() -> None:
    assert [one.case.name for one in unlisted(["0001_good", "0002_groups", "0003_new"], LISTS)] == ["0003_new"]
