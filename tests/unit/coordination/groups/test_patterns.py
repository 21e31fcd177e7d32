"""Patterns that clients send."""

import pytest

from lakestream.coordination.groups.patterns import check, matching
from lakestream.coordination.groups.refusals import Refusal, Refused

NAMES = ["orders", "orders-eu", "payments", "a" * 200 + "b"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("orders.*", ["orders", "orders-eu"]), ("orders", ["orders"]), ("order", []), (".*s", ["orders", "payments"])],
)
def test_the_whole_name_has_to_fit(pattern: str, found: list[str]) -> None:
    assert matching(pattern, NAMES) == found


def test_no_pattern_takes_forever() -> None:
    assert matching("(a+)+$", NAMES) == []


@pytest.mark.parametrize("pattern", ["(", "a{1000000}", "(?<!x)y", "x" * 10_000])
def test_what_cannot_be_read_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused) as caught:
        check(pattern)
    assert caught.value.refusal is Refusal.INVALID_REGULAR_EXPRESSION
    assert capfd.readouterr() == ("", "")
