"""LruCache: least recently used, bounded in bytes."""

import random

from lakestream.aio.cache import LruCache


def test_least_recently_used_entry_is_evicted_first() -> None:
    cache: LruCache[object, bytes] = LruCache(30)
    for key in "abc":
        cache.put(key, bytes(10), 10)
    assert cache.get("a") is not None
    cache.put("d", bytes(10), 10)
    assert cache.get("b") is None
    assert all(cache.get(key) is not None for key in "acd")
    assert cache.weight == 30


def test_large_entry_evicts_several() -> None:
    cache: LruCache[object, bytes] = LruCache(30)
    for key in "abc":
        cache.put(key, bytes(10), 10)
    cache.put("large", bytes(25), 25)
    assert (len(cache), cache.weight) == (1, 25)


def test_entry_above_the_limit_is_not_kept_and_evicts_nothing() -> None:
    cache: LruCache[object, bytes] = LruCache(30)
    cache.put("a", bytes(10), 10)
    cache.put("huge", bytes(31), 31)
    assert cache.get("huge") is None
    assert cache.get("a") == bytes(10)
    cache.put("a", bytes(31), 31)
    assert (cache.get("a"), cache.weight) == (None, 0)


def test_put_replaces_an_entry() -> None:
    cache: LruCache[object, bytes] = LruCache(30)
    cache.put("a", b"first", 5)
    cache.put("a", b"2nd", 3)
    assert (cache.get("a"), cache.weight, len(cache)) == (b"2nd", 3, 1)


def test_evict_removes_an_entry() -> None:
    cache: LruCache[object, bytes] = LruCache(30)
    cache.put("a", bytes(10), 10)
    cache.evict("a")
    cache.evict("a")
    assert (cache.get("a"), cache.weight) == (None, 0)


def test_hits_and_misses_are_counted_and_an_empty_value_is_a_hit() -> None:
    cache: LruCache[object, bytes] = LruCache(0)
    cache.put("empty", b"", 0)
    assert cache.get("empty") == b""
    assert cache.get("none") is None
    assert (cache.hits, cache.misses) == (1, 1)


def test_weight_is_always_the_sum_of_the_entries() -> None:
    cache: LruCache[int, bytes] = LruCache(500)
    luck = random.Random(7)
    for _ in range(3000):
        key = luck.randrange(40)
        if luck.random() < 0.2:
            cache.evict(key)
        else:
            block = bytes(luck.randrange(120))
            cache.put(key, block, len(block))
        assert cache.weight == sum(size for _, size in cache._entries.values()) <= 500
