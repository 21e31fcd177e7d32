"""Who gets what."""

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups.assignors import Assigned, Subscriber, range_, uniform
from lakestream.model import PartitionId

topic_ids = st.sampled_from("abcd")
counts = st.dictionaries(topic_ids, st.integers(1, 9), max_size=4)
subscriptions = st.dictionaries(st.sampled_from([f"m{n}" for n in range(8)]), st.frozensets(topic_ids), max_size=8)


def given_out(assigned: Assigned) -> list[PartitionId]:
    return sorted(partition for partitions in assigned.values() for partition in partitions)


def check(members: dict[str, Subscriber], counts: dict[str, int], assigned: Assigned) -> None:
    """Everything that somebody wants has one owner, who wants it."""
    wanted = {topic_id for member in members.values() for topic_id in member.topic_ids}
    there = [PartitionId(topic_id, n) for topic_id, count in counts.items() if topic_id in wanted for n in range(count)]
    assert given_out(assigned) == sorted(there)
    for member_id, partitions in assigned.items():
        assert {partition.topic_id for partition in partitions} <= members[member_id].topic_ids


@given(subscriptions, counts, counts)
def test_uniform(wanted: dict[str, frozenset[str]], counts: dict[str, int], later: dict[str, int]) -> None:
    members = {member_id: Subscriber(topics) for member_id, topics in wanted.items()}
    first = uniform(members, counts)
    check(members, counts, first)
    for member_id, has in first.items():
        for other, more in first.items():
            movable = any(partition.topic_id in wanted[member_id] for partition in more)
            assert not movable or len(more) <= len(has) + 1, f"{other} has more than {member_id}"
    again = {member_id: member._replace(before=first[member_id]) for member_id, member in members.items()}
    assert uniform(again, counts) == first, "nobody loses anything without need"
    check(again, later, uniform(again, later))


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 11))
def test_uniform_moves_no_more_than_it_must(member_count: int, partition_count: int, gone: int) -> None:
    members = {f"m{n:02}": Subscriber(frozenset("a")) for n in range(member_count)}
    first = uniform(members, {"a": partition_count})
    rest = {who: one._replace(before=first[who]) for who, one in members.items() if who != f"m{gone:02}"}
    if not rest:
        return
    second = uniform(rest, {"a": partition_count})
    assert all(first[who] <= second[who] for who in rest), "what the others had they keep"
    sizes = {len(partitions) for partitions in second.values()}
    assert max(sizes) - min(sizes) <= 1


@given(subscriptions, counts)
def test_range(wanted: dict[str, frozenset[str]], counts: dict[str, int]) -> None:
    members = {member_id: Subscriber(topics) for member_id, topics in wanted.items()}
    assigned = range_(members, counts)
    check(members, counts, assigned)
    for partitions in assigned.values():
        for topic_id in {partition.topic_id for partition in partitions}:
            numbers = sorted(partition.number for partition in partitions if partition.topic_id == topic_id)
            assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_range_gives_static_members_their_place_again() -> None:
    def with_id(member_id: str) -> Assigned:
        members = {member_id: Subscriber(frozenset("a"), "x"), "other": Subscriber(frozenset("a"), "y")}
        return range_(members, {"a": 4})

    assert with_id("zzz")["zzz"] == with_id("aaa")["aaa"]
