"""What is kept of earlier results, by what it weighs."""

from lakestream.aio.cache import LruCache, weighted_cache


def test_newest_entry_is_kept_above_the_limit() -> None:
    kept: LruCache[str, int] = LruCache(10, keep_newest=True)
    for number, key in enumerate("abc"):
        kept.put(key, number, 4)
    assert [kept.get(key) for key in "abc"] == [None, 1, 2]
    kept.get("b")
    kept.put("d", 3, 4)
    assert [kept.get(key) for key in "bcd"] == [1, None, 3]
    kept.put("large", 4, 100)
    assert [kept.get(key) for key in ("b", "d", "large")] == [None, None, 4]
    kept.put("small", 5, 1)
    assert [kept.get(key) for key in ("large", "small")] == [None, 5]


def test_cached_results_are_evicted_by_weight() -> None:
    calls: list[str] = []

    @weighted_cache(10, lambda text, more="": len(text) + len(more))
    def doubled(text: str, more: str = "") -> str:
        calls.append(text + more)
        return text * 2

    assert [doubled("a"), doubled("a"), doubled("a", "b"), doubled("a", more="b")] == ["aa"] * 4
    assert calls == ["a", "ab", "ab"]
    doubled("x" * 10)
    doubled("a")
    assert calls[3:] == ["x" * 10, "a"]
    doubled.cache_clear()
    doubled("a")
    assert calls[5:] == ["a"]
