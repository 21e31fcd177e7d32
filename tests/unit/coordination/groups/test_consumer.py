"""The new protocol's groups, step by step, as one member after the other is heard."""

from dataclasses import replace

import msgspec
import pytest

from lakestream.coordination.groups.consumer import beat, delayed, resumed, settled, tick, without
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import (
    LEAVE,
    LEAVE_FOR_A_WHILE,
    Beat,
    Beaten,
    ConsumerGroup,
    Instant,
    Rules,
    Step,
)
from lakestream.metadata.group_records import Partitions, Progress, TopicShape
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

REBALANCE_MS = 60_000


def parts(topic_id: str, *numbers: int) -> Partitions:
    return frozenset(PartitionId(topic_id, number) for number in numbers)


def told_to(member_id: str, epoch: int, assigned: Partitions | None = None) -> Beaten:
    return Beaten(None, member_id, epoch, assigned)


class Told:
    """A group, and what its members were told."""

    def __init__(self) -> None:
        self.group = ConsumerGroup()
        self.landscape = Landscape({"a": Topic("A", 4), "b": Topic("B", 2)})
        self.now_ms = 0
        self.stored = 0
        self.rules = Rules()

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, 1_000_000 + self.now_ms)

    def hear(self, said: Beat) -> Beaten:
        told = self.take(beat(self.group, said, self.landscape, self.now, self.rules))
        return told[0] if told else self.take(settled(self.group, self.landscape, self.now))[0]

    def take(self, step: Step[ConsumerGroup]) -> list[Beaten]:
        self.group = step.group
        self.stored += step.to_store
        return [answer for _, answer in step.told if isinstance(answer, Beaten)]

    def join(self, member_id: str, *names: str, instance_id: str | None = None, pattern: str | None = None) -> Beaten:
        said = Beat(member_id, 0, instance_id, None, "", "", REBALANCE_MS, names, pattern, owned=frozenset())
        return self.hear(said)

    def tell(self, member_id: str, epoch: int, owned: Partitions | None = None) -> Beaten:
        return self.hear(Beat(member_id, epoch, owned=owned))

    def refused(self, said: Beat) -> Refusal:
        before = self.group
        with pytest.raises(Refused) as caught:
            self.hear(said)
        assert self.group is before
        return caught.value.refusal

    def topic(self, name: str, topic: Topic | None) -> None:
        topics = {**self.landscape.topics, **({name: topic} if topic else {})}
        if topic is None:
            del topics[name]
        self.landscape = Landscape(topics)


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_first_member_gets_all(told: Told) -> None:
    assert told.join("m", "a") == told_to("m", 1, parts("A", 0, 1, 2, 3))
    assert told.tell("m", 1) == told_to("m", 1), "nothing is new"


def test_nobody_gets_what_another_still_has(told: Told) -> None:
    told.join("m", "a")
    assert told.join("n", "a") == told_to("n", 2, frozenset())
    asked = told.tell("m", 1)
    assert (asked.epoch, len(asked.assigned or ())) == (1, 2), "give back first, then the next epoch"
    assert told.group.record.members["m"].progress is Progress.REVOKING
    assert told.tell("n", 2) == told_to("n", 2)
    kept = asked.assigned
    assert kept is not None
    assert told.tell("m", 1, owned=kept) == told_to("m", 2)
    assert told.tell("n", 2) == told_to("n", 2, parts("A", 0, 1, 2, 3) - kept)
    assert {member.progress for member in told.group.record.members.values()} == {Progress.STABLE}


def test_what_a_member_still_says_it_has_is_not_free(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    kept = told.tell("m", 1).assigned
    assert told.tell("m", 1, owned=parts("A", 0, 1, 2, 3)) == told_to("m", 1, kept), "told again: it may not have heard"
    assert told.tell("n", 2) == told_to("n", 2)


def test_who_leaves_leaves_everything(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    assert told.tell("m", LEAVE) == told_to("m", LEAVE)
    assert told.tell("n", 2) == told_to("n", 3, parts("A", 0, 1, 2, 3))
    assert told.refused(Beat("m", LEAVE)) is Refusal.UNKNOWN_MEMBER_ID


def test_who_was_removed_has_to_join_again(told: Told) -> None:
    told.join("m", "a")
    told.take(without(told.group, ["m"], told.now))
    assert told.refused(Beat("m", 1)) is Refusal.UNKNOWN_MEMBER_ID
    assert told.join("m", "a") == told_to("m", 3, parts("A", 0, 1, 2, 3))


def test_a_static_member_comes_back_under_another_id(told: Told) -> None:
    mine = told.join("m", "a", instance_id="i").assigned
    told.join("n", "a")
    assert told.refused(Beat("o", 0, "i", names=("a",))) is Refusal.UNRELEASED_INSTANCE_ID
    kept = told.hear(Beat("m", 1, "i")).assigned
    told.hear(Beat("m", 1, "i", owned=kept))
    told.tell("n", 2)
    told.hear(Beat("m", LEAVE_FOR_A_WHILE, "i"))
    assert told.tell("n", 2) == told_to("n", 2), "nobody is given what is waiting for it"
    assert told.hear(Beat("o", 0, "i", names=("a",), owned=frozenset())).assigned == kept
    assert kept is not None
    assert mine is not None
    assert kept < mine
    assert told.refused(Beat("m", 3, "i")) is Refusal.FENCED_INSTANCE_ID


def test_a_lost_answer_is_told_again(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    kept = told.tell("m", 1).assigned
    assert told.tell("m", 1, owned=kept).epoch == 2
    assert told.tell("m", 1, owned=kept).epoch == 2, "one epoch behind, and no more than it was given"
    assert told.refused(Beat("m", 1, owned=parts("A", 0, 1, 2, 3))) is Refusal.FENCED_MEMBER_EPOCH
    assert told.refused(Beat("m", 9)) is Refusal.FENCED_MEMBER_EPOCH


def test_new_subscriptions_topics_and_partitions_are_seen(told: Told) -> None:
    told.join("m", "a", "later")
    assert told.hear(Beat("m", 1, names=("a", "b", "later"))).assigned == parts("A", 0, 1, 2, 3) | parts("B", 0, 1)
    told.topic("later", Topic("L", 1))
    assert told.tell("m", 2).assigned == parts("A", 0, 1, 2, 3) | parts("B", 0, 1) | parts("L", 0)
    told.topic("b", Topic("B", 3))
    told.topic("a", None)
    asked = told.tell("m", 3)
    assert asked.assigned == parts("B", 0, 1) | parts("L", 0)
    assert told.tell("m", 3, owned=asked.assigned).assigned == parts("B", 0, 1, 2) | parts("L", 0)


def test_a_pattern_follows_the_topics(told: Told) -> None:
    assert told.join("m", pattern="b.*").assigned == parts("B", 0, 1)
    told.topic("bb", Topic("BB", 1))
    assert told.tell("m", 1).assigned == parts("B", 0, 1) | parts("BB", 0)
    assert told.hear(Beat("m", 2, pattern="", names=("a",))).assigned == frozenset(), "gives back first"


def test_an_assignor_that_we_do_not_have(told: Told) -> None:
    assert told.refused(Beat("m", 0, names=("a",), assignor="magic")) is Refusal.UNSUPPORTED_ASSIGNOR
    assert told.hear(Beat("m", 0, names=("a",), assignor="range")).assigned == parts("A", 0, 1, 2, 3)


def test_a_pattern_that_cannot_be_read(told: Told) -> None:
    assert told.refused(Beat("m", 0, pattern="(", owned=frozenset())) is Refusal.INVALID_REGULAR_EXPRESSION


def test_a_sign_of_life_changes_nothing(told: Told) -> None:
    told.join("m", "a")
    group, stored = told.group, told.stored
    told.tell("m", 1)
    told.tell("m", 1, owned=parts("A", 0, 1, 2, 3))
    assert told.group is group
    assert told.stored == stored


def test_all_who_come_at_once_share_one_target(told: Told) -> None:
    for name in "klmn":
        step = beat(told.group, Beat(name, 0, names=("a",), owned=frozenset()), told.landscape, told.now, told.rules)
        assert not told.take(step), "nobody is answered before all were heard"
    answers = told.take(settled(told.group, told.landscape, told.now))
    assert [(answer.epoch, len(answer.assigned or ())) for answer in answers] == [(4, 1)] * 4


def test_a_static_member_that_comes_back_disturbs_nobody(told: Told) -> None:
    told.join("m", "a", instance_id="i")
    told.join("n", "a")
    kept = told.hear(Beat("m", 1, "i")).assigned
    told.hear(Beat("m", 1, "i", owned=kept))
    told.tell("n", 2)
    told.hear(Beat("m", LEAVE_FOR_A_WHILE, "i"))
    back = told.join("o", "a", instance_id="i")
    assert (back.epoch, back.assigned) == (2, kept)
    assert told.tell("n", 2) == told_to("n", 2)


def test_who_does_not_give_back_in_time_is_out(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    told.tell("m", 1)
    told.now_ms = REBALANCE_MS - 1
    told.take(tick(told.group, told.now))
    assert "m" in told.group.record.members
    told.group = delayed(told.group, 10)
    told.now_ms += 10
    told.take(tick(told.group, told.now))
    assert "m" in told.group.record.members, "its coordinator slept"
    told.now_ms += 10
    told.take(tick(told.group, told.now))
    assert told.refused(Beat("m", 1, owned=frozenset())) is Refusal.UNKNOWN_MEMBER_ID
    assert told.tell("n", 2).assigned == parts("A", 0, 1, 2, 3)


def test_who_gives_back_in_time_stays(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    kept = told.tell("m", 1).assigned
    told.tell("m", 1, owned=kept)
    assert told.group.next_deadline_ms is None


def test_the_next_coordinator_gives_the_same_time_again(told: Told) -> None:
    told.join("m", "a")
    told.join("n", "a")
    told.tell("m", 1)
    told.now_ms = REBALANCE_MS - 1
    again = resumed(told.group.record, told.now)
    assert again.record is told.group.record
    assert again.next_deadline_ms == told.now_ms + REBALANCE_MS


def test_a_group_that_is_full(told: Told) -> None:
    told.rules = Rules(members_max=1)
    told.join("m", "a")
    assert told.refused(Beat("n", 0, names=("a",), owned=frozenset())) is Refusal.GROUP_MAX_SIZE_REACHED
    assert told.join("m", "a").epoch == 1, "who is there may come again"


def test_members_that_say_too_much(told: Told) -> None:
    told.rules = Rules(bytes_max=100)
    assert told.refused(Beat("m", 0, names=("a" * 101,), owned=frozenset())) is Refusal.GROUP_MAX_SIZE_REACHED
    told.join("m", "a" * 90)
    assert told.refused(Beat("m", 1, names=("b" * 101,))) is Refusal.GROUP_MAX_SIZE_REACHED
    assert told.hear(Beat("m", 1, names=("b" * 50,))).epoch == 2
    long = Beat("n" * 100, 0, names=("a",), owned=frozenset())
    assert told.refused(long) is Refusal.GROUP_MAX_SIZE_REACHED


def test_partitions_take_room_too(told: Told) -> None:
    told.join("m", "a")
    told.rules = Rules(bytes_max=100)
    topics = {"a": TopicShape("A", 40)}
    told.group = replace(told.group, record=msgspec.structs.replace(told.group.record, topics=topics))
    assert told.refused(Beat("n", 0, names=("a",), owned=frozenset())) is Refusal.GROUP_MAX_SIZE_REACHED
