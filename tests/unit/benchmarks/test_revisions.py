import pytest
from benchmarks.revisions import interval


def test_interval_contains_the_mean_of_the_ratios() -> None:
    mean, low, high = interval([0.9, 1.1] * 6)
    assert (low, mean, high) == pytest.approx((0.931, 0.995, 1.064), abs=1e-3)


def test_interval_is_a_point_when_all_ratios_are_equal() -> None:
    assert interval([1.25] * 10) == pytest.approx((1.25, 1.25, 1.25))
