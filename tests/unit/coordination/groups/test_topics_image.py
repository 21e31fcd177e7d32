"""The image of topics keeps which topics match a pattern."""

from collections.abc import Iterable

import pytest

from lakestream.coordination.groups import regex_subscription, topics_image
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.topics import Topic


def test_only_new_names_are_matched_when_topics_change(monkeypatch: pytest.MonkeyPatch) -> None:
    matched: list[str] = []
    matching = regex_subscription.matching

    def recorded(pattern: str, names: Iterable[str]) -> list[str]:
        listed = list(names)
        matched.extend(listed)
        return matching(pattern, listed)

    monkeypatch.setattr(regex_subscription, "matching", recorded)
    first = TopicsImage({"a1": Topic("1", 1), "a2": Topic("2", 1), "b": Topic("3", 1)})
    assert first.matching("a.*") == ("a1", "a2")
    matched.clear()
    renewed = first.renewed({"a2": Topic("2", 1), "b": Topic("3", 1), "a3": Topic("4", 1), "c": Topic("5", 1)})
    assert renewed.matching("a.*") == ("a2", "a3")
    assert matched == ["a3", "c"]
    assert first.matching("a.*") == ("a1", "a2")


def test_patterns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_image, "PATTERNS_MAX", 2)
    image = TopicsImage({"a": Topic("1", 1)})
    for pattern in ("a", "b", "c"):
        image.matching(pattern)
    assert [image.knows(pattern) for pattern in ("a", "b", "c")] == [False, True, True]
