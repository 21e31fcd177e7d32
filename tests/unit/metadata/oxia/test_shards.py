"""Routing: the hash, which must equal the server's, and the shard map that the server sends."""

import pytest

from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.shards import Shard, ShardMap, hash_of, shard_map


@pytest.mark.parametrize(("home", "code"), [("foo", 125730186), ("bar", 2687685474), ("baz", 862947621)])
def test_hash_equals_that_of_oxia(home: str, code: int) -> None:
    assert hash_of(home) == code


def test_home_belongs_to_the_shard_whose_range_contains_its_hash() -> None:
    half = 1 << 31
    two = ShardMap((Shard(7, "a:1", 0, half - 1), Shard(9, "b:1", half, 2 * half - 1)))
    assert [two.number_of(home) for home in ("foo", "bar", "baz")] == [7, 9, 7]
    assert two.leader_of(9) == "b:1"


def test_first_and_last_hash_of_a_range_belong_to_it() -> None:
    code = hash_of("foo")
    exact = ShardMap((Shard(0, "", 0, code - 1), Shard(1, "", code, code), Shard(2, "", code + 1, (1 << 32) - 1)))
    assert exact.number_of("foo") == 1


def test_shard_without_a_leader_has_an_empty_leader() -> None:
    message = pb.ShardAssignments()
    shard = message.namespaces["default"].assignments.add(shard=3)
    shard.int32_hash_range.max_hash_inclusive = (1 << 32) - 1
    shards = shard_map(message, "default")
    assert shards == ShardMap((Shard(3, "", 0, (1 << 32) - 1),))
    assert shards.leader_of(3) == ""
    assert list(shards.leaders()) == []


def test_shards_of_another_namespace_are_ignored() -> None:
    message = pb.ShardAssignments()
    message.namespaces["other"].assignments.add(shard=3)
    assert shard_map(message, "default") == ShardMap()
