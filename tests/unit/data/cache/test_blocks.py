"""BlockCache: least recently used, bounded in bytes."""

import random

from lakestream.data.cache.blocks import BlockCache


def test_the_one_unused_for_longest_goes_first() -> None:
    cache: BlockCache[object, bytes] = BlockCache(30)
    for key in "abc":
        cache.put(key, bytes(10), 10)
    assert cache.get("a") is not None
    cache.put("d", bytes(10), 10)
    assert cache.get("b") is None
    assert all(cache.get(key) is not None for key in "acd")
    assert cache.bytes_used == 30


def test_one_large_block_pushes_out_several() -> None:
    cache: BlockCache[object, bytes] = BlockCache(30)
    for key in "abc":
        cache.put(key, bytes(10), 10)
    cache.put("large", bytes(25), 25)
    assert (len(cache), cache.bytes_used) == (1, 25)


def test_a_block_beyond_the_bound_is_not_kept_and_disturbs_nobody() -> None:
    cache: BlockCache[object, bytes] = BlockCache(30)
    cache.put("a", bytes(10), 10)
    cache.put("huge", bytes(31), 31)
    assert cache.get("huge") is None
    assert cache.get("a") == bytes(10)
    cache.put("a", bytes(31), 31)
    assert (cache.get("a"), cache.bytes_used) == (None, 0)


def test_a_block_put_again_replaces_the_old_one() -> None:
    cache: BlockCache[object, bytes] = BlockCache(30)
    cache.put("a", b"first", 5)
    cache.put("a", b"2nd", 3)
    assert (cache.get("a"), cache.bytes_used, len(cache)) == (b"2nd", 3, 1)


def test_evict() -> None:
    cache: BlockCache[object, bytes] = BlockCache(30)
    cache.put("a", bytes(10), 10)
    cache.evict("a")
    cache.evict("a")
    assert (cache.get("a"), cache.bytes_used) == (None, 0)


def test_hits_and_misses_are_counted_and_an_empty_block_is_a_hit() -> None:
    cache: BlockCache[object, bytes] = BlockCache(0)
    cache.put("empty", b"", 0)
    assert cache.get("empty") == b""
    assert cache.get("none") is None
    assert (cache.hits, cache.misses) == (1, 1)


def test_bytes_used_is_always_the_sum() -> None:
    cache: BlockCache[int, bytes] = BlockCache(500)
    luck = random.Random(7)
    for _ in range(3000):
        key = luck.randrange(40)
        if luck.random() < 0.2:
            cache.evict(key)
        else:
            block = bytes(luck.randrange(120))
            cache.put(key, block, len(block))
        assert cache.bytes_used == sum(size for _, size in cache._blocks.values()) <= 500
