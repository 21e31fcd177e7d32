import pytest

from lakestream.config.suggestions import did_you_mean, edit_distance, suggest

FLAGS = ["--data-dir", "--metadata", "--kafka", "--workers", "--profile", "--partitions", "--bootstrap"]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("--data", ["--data-dir"]),
        ("--part", ["--partitions"]),
        ("--kakfa", ["--kafka"]),
        ("--wrokers", ["--workers"]),
        ("--port", []),
        ("--fast", []),
        ("--x", []),
        ("--replication-factor", []),
    ],
)
def test_prefix_is_preferred_to_a_small_edit_distance(word: str, names: list[str]) -> None:
    assert suggest(word, FLAGS) == names


def test_all_names_are_listed_when_none_is_near() -> None:
    assert did_you_mean("retention", ["retention.ms", "retention.bytes"]) == (
        "did you mean 'retention.ms' or 'retention.bytes'?"
    )
    assert did_you_mean("zzz", ["serve", "topic"]) == "use one of serve, topic"


def test_edit_distance_counts_a_swap_as_one() -> None:
    assert [edit_distance(*pair) for pair in (("abc", "abc"), ("abc", "acb"), ("abc", "ab"), ("", "ab"))] == [
        *(0, 1),
        *(1, 2),
    ]
