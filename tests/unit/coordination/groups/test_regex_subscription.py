"""Subscriptions to patterns of topic names."""

import pytest

from lakestream.coordination.groups import regex_subscription
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.regex_subscription import check, matching, matching_in_time

NAMES = ["orders", "orders-eu", "payments", "a" * 200 + "b"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("orders.*", ["orders", "orders-eu"]), ("orders", ["orders"]), ("order", []), (".*s", ["orders", "payments"])],
)
def test_pattern_matches_the_whole_name(pattern: str, names: list[str]) -> None:
    assert matching(pattern, NAMES) == names


def test_matching_time_is_bounded_for_any_pattern() -> None:
    assert matching("(a+)+$", NAMES) == []


def test_pattern_is_rejected_when_its_program_is_too_large() -> None:
    """Ten of these took a quarter of a second for each long name."""
    with pytest.raises(GroupRequestFailed, match="40004 instructions in RE2: the limit is 5000") as raised:
        check("(a?){1000}" * 10)
    assert raised.value.error is GroupError.INVALID_REGULAR_EXPRESSION
    check("|".join(f"topic-{number}-.*" for number in range(400)))


def test_pattern_is_rejected_when_matching_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert matching_in_time("orders.*", NAMES) == ["orders", "orders-eu"]
    monkeypatch.setattr(regex_subscription, "MATCH_S_MAX", 0.0)
    with pytest.raises(GroupRequestFailed, match="matching the pattern with 4 names takes more than 0 s") as raised:
        matching_in_time("orders.*", NAMES)
    assert raised.value.error is GroupError.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["(", "a{1000000}", "(?<!x)y", "x" * 10_000])
def test_invalid_pattern_is_rejected(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GroupRequestFailed) as raised:
        check(pattern)
    assert raised.value.error is GroupError.INVALID_REGULAR_EXPRESSION
    assert capfd.readouterr() == ("", "")
