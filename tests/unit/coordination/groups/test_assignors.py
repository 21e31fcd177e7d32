"""Assignments of the uniform and the range assignor."""

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups.assignors import Assigned, Subscriber, range_, uniform
from lakestream.model import PartitionId

topic_ids = st.sampled_from("abcd")
counts = st.dictionaries(topic_ids, st.integers(1, 9), max_size=4)
subscriptions = st.dictionaries(st.sampled_from([f"m{n}" for n in range(8)]), st.frozensets(topic_ids), max_size=8)


def all_assigned(assigned: Assigned) -> list[PartitionId]:
    return sorted(partition for partitions in assigned.values() for partition in partitions)


def check(members: dict[str, Subscriber], counts: dict[str, int], assigned: Assigned) -> None:
    """Checks that each subscribed partition has one owner, which subscribes to it."""
    subscribed = {topic_id for member in members.values() for topic_id in member.topic_ids}
    partitions = [
        PartitionId(topic_id, n) for topic_id, count in counts.items() if topic_id in subscribed for n in range(count)
    ]
    assert all_assigned(assigned) == sorted(partitions)
    for member_id, owned in assigned.items():
        assert {partition.topic_id for partition in owned} <= members[member_id].topic_ids


@given(subscriptions, counts, counts)
def test_uniform_assigns_equal_counts(
    topics_of: dict[str, frozenset[str]], counts: dict[str, int], later: dict[str, int]
) -> None:
    members = {member_id: Subscriber(topics) for member_id, topics in topics_of.items()}
    first = uniform(members, counts)
    check(members, counts, first)
    for member_id, owned in first.items():
        for other, more in first.items():
            movable = any(partition.topic_id in topics_of[member_id] for partition in more)
            assert not movable or len(more) <= len(owned) + 1, f"{other} has more than {member_id}"
    rejoined = {member_id: member._replace(before=first[member_id]) for member_id, member in members.items()}
    assert uniform(rejoined, counts) == first, "no partition moves without need"
    check(rejoined, later, uniform(rejoined, later))


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 11))
def test_uniform_moves_no_partition_of_remaining_members(member_count: int, partition_count: int, leaving: int) -> None:
    members = {f"m{n:02}": Subscriber(frozenset("a")) for n in range(member_count)}
    first = uniform(members, {"a": partition_count})
    rest = {
        member_id: one._replace(before=first[member_id])
        for member_id, one in members.items()
        if member_id != f"m{leaving:02}"
    }
    if not rest:
        return
    second = uniform(rest, {"a": partition_count})
    assert all(first[member_id] <= second[member_id] for member_id in rest), "the other members keep their partitions"
    sizes = {len(partitions) for partitions in second.values()}
    assert max(sizes) - min(sizes) <= 1


@given(subscriptions, counts)
def test_range_assigns_contiguous_partitions_per_topic(
    topics_of: dict[str, frozenset[str]], counts: dict[str, int]
) -> None:
    members = {member_id: Subscriber(topics) for member_id, topics in topics_of.items()}
    assigned = range_(members, counts)
    check(members, counts, assigned)
    for partitions in assigned.values():
        for topic_id in {partition.topic_id for partition in partitions}:
            numbers = sorted(partition.number for partition in partitions if partition.topic_id == topic_id)
            assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_range_keeps_the_rank_of_static_members() -> None:
    def with_id(member_id: str) -> Assigned:
        members = {member_id: Subscriber(frozenset("a"), "x"), "other": Subscriber(frozenset("a"), "y")}
        return range_(members, {"a": 4})

    assert with_id("zzz")["zzz"] == with_id("aaa")["aaa"]
