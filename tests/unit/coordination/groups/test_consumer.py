"""The new protocol's groups, step by step, as one member after the other is heard."""

import pytest

from lakestream.coordination.groups.assignors import Partitions
from lakestream.coordination.groups.consumer import (
    LEAVE,
    LEAVE_FOR_A_WHILE,
    Answer,
    Beat,
    Group,
    Refused,
    State,
    TopicShape,
    Why,
    beat,
    removed,
)
from lakestream.model import PartitionId

TOPICS = {"a": TopicShape("A", 4), "b": TopicShape("B", 2)}


def parts(topic_id: str, *numbers: int) -> Partitions:
    return frozenset(PartitionId(topic_id, number) for number in numbers)


class Told:
    """A group, and what its members were told."""

    def __init__(self) -> None:
        self.group = Group()
        self.topics = dict(TOPICS)

    def hear(self, said: Beat) -> Answer:
        self.group, answer = beat(self.group, said, self.topics, self._matching)
        return answer

    def join(self, member_id: str, *names: str, instance_id: str | None = None, pattern: str | None = None) -> Answer:
        return self.hear(Beat(member_id, 0, instance_id, names=names, pattern=pattern, owned=frozenset()))

    def tell(self, member_id: str, epoch: int, owned: Partitions | None = None) -> Answer:
        return self.hear(Beat(member_id, epoch, owned=owned))

    def refused(self, said: Beat) -> Why:
        before = self.group
        with pytest.raises(Refused) as caught:
            self.hear(said)
        assert self.group is before
        return caught.value.why

    def _matching(self, pattern: str) -> list[str]:
        return [name for name in self.topics if name.startswith(pattern.rstrip(".*"))]


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_first_member_gets_all(told: Told) -> None:
    assert told.join("m", "a") == Answer("m", 1, parts("A", 0, 1, 2, 3))
    assert told.tell("m", 1) == Answer("m", 1), "nothing is new"


def test_nobody_gets_what_another_still_has(told: Told) -> None:
    told.join("m", "a")
    assert told.join("n", "a") == Answer("n", 2, frozenset())
    asked = told.tell("m", 1)
    assert (asked.epoch, len(asked.assigned or ())) == (1, 2), "give back first, then the next epoch"
    assert told.group.members["m"].state is State.REVOKING
    assert told.tell("n", 2) == Answer("n", 2)
    kept = asked.assigned
    assert kept is not None
    assert told.tell("m", 1, owned=kept) == Answer("m", 2)
    assert told.tell("n", 2) == Answer("n", 2, parts("A", 0, 1, 2, 3) - kept)
    assert {member.state for member in told.group.members.values()} == {State.STABLE}


def test_what_a_member_still_says_it_has_is_not_free(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    kept = told.tell("m", 1).assigned
    assert told.tell("m", 1, owned=parts("A", 0, 1, 2, 3)) == Answer("m", 1, kept), "told again: it may not have heard"
    assert told.tell("n", 2) == Answer("n", 2)


def test_who_leaves_leaves_everything(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    assert told.tell("m", LEAVE) == Answer("m", LEAVE)
    assert told.tell("n", 2) == Answer("n", 3, parts("A", 0, 1, 2, 3))
    assert told.refused(Beat("m", LEAVE)) is Why.UNKNOWN_MEMBER


def test_who_was_removed_has_to_join_again(told: Told) -> None:
    told.join("m", "a")
    told.group = removed(told.group, "m")
    assert told.refused(Beat("m", 1)) is Why.UNKNOWN_MEMBER
    assert told.join("m", "a") == Answer("m", 3, parts("A", 0, 1, 2, 3))


def test_a_static_member_comes_back_under_another_id(told: Told) -> None:
    mine = told.join("m", "a", instance_id="i").assigned
    told.join("n", "a")
    assert told.refused(Beat("o", 0, "i", names=("a",))) is Why.UNRELEASED_INSTANCE
    kept = told.hear(Beat("m", 1, "i")).assigned
    told.hear(Beat("m", 1, "i", owned=kept))
    told.tell("n", 2)
    told.hear(Beat("m", LEAVE_FOR_A_WHILE, "i"))
    assert told.tell("n", 2) == Answer("n", 2), "nobody is given what is waiting for it"
    assert told.hear(Beat("o", 0, "i", names=("a",), owned=frozenset())).assigned == kept
    assert kept is not None
    assert mine is not None
    assert kept < mine
    assert told.refused(Beat("m", 3, "i")) is Why.FENCED_INSTANCE


def test_a_lost_answer_is_told_again(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    kept = told.tell("m", 1).assigned
    assert told.tell("m", 1, owned=kept).epoch == 2
    assert told.tell("m", 1, owned=kept).epoch == 2, "one epoch behind, and no more than it was given"
    assert told.refused(Beat("m", 1, owned=parts("A", 0, 1, 2, 3))) is Why.FENCED_EPOCH
    assert told.refused(Beat("m", 9)) is Why.FENCED_EPOCH


def test_new_subscriptions_topics_and_partitions_are_seen(told: Told) -> None:
    told.join("m", "a", "later")
    assert told.hear(Beat("m", 1, names=("a", "b", "later"))).assigned == parts("A", 0, 1, 2, 3) | parts("B", 0, 1)
    told.topics["later"] = TopicShape("L", 1)
    assert told.tell("m", 2).assigned == parts("A", 0, 1, 2, 3) | parts("B", 0, 1) | parts("L", 0)
    told.topics["b"] = TopicShape("B", 3)
    del told.topics["a"]
    asked = told.tell("m", 3)
    assert asked.assigned == parts("B", 0, 1) | parts("L", 0)
    assert told.tell("m", 3, owned=asked.assigned).assigned == parts("B", 0, 1, 2) | parts("L", 0)


def test_a_pattern_follows_the_topics(told: Told) -> None:
    assert told.join("m", pattern="b.*").assigned == parts("B", 0, 1)
    told.topics["bb"] = TopicShape("BB", 1)
    assert told.tell("m", 1).assigned == parts("B", 0, 1) | parts("BB", 0)
    assert told.hear(Beat("m", 2, pattern="", names=("a",))).assigned == frozenset(), "gives back first"


def test_an_assignor_that_we_do_not_have(told: Told) -> None:
    assert told.refused(Beat("m", 0, names=("a",), assignor="magic")) is Why.UNKNOWN_ASSIGNOR
    assert told.hear(Beat("m", 0, names=("a",), assignor="range")).assigned == parts("A", 0, 1, 2, 3)
