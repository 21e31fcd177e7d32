"""Transitions of groups of the consumer protocol."""

from dataclasses import replace

import msgspec
import pytest

from lakestream.coordination.groups.consumer_group import (
    extend_deadlines,
    heartbeat,
    reconcile,
    resumed,
    tick,
    without_members,
)
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    LEAVE,
    LEAVE_STATIC,
    ConsumerGroup,
    GroupLimits,
    HeartbeatRequest,
    HeartbeatResult,
    Instant,
    Transition,
)
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.group_records import Partitions, Progress, TopicShape
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

REBALANCE_MS = 60_000


def parts(topic_id: str, *numbers: int) -> Partitions:
    return frozenset(PartitionId(topic_id, number) for number in numbers)


def assigned_result(member_id: str, epoch: int, assigned: Partitions | None = None) -> HeartbeatResult:
    return HeartbeatResult(None, member_id, epoch, assigned)


class ConsumerGroupDriver:
    """A group, and the results of its members' heartbeats."""

    def __init__(self) -> None:
        self.group = ConsumerGroup()
        self.image = TopicsImage({"a": Topic("A", 4), "b": Topic("B", 2)})
        self.now_ms = 0
        self.stored = 0
        self.limits = GroupLimits()

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, 1_000_000 + self.now_ms)

    def send(self, request: HeartbeatRequest) -> HeartbeatResult:
        results = self.apply(heartbeat(self.group, request, self.image, self.now, self.limits))
        return results[0] if results else self.apply(reconcile(self.group, self.image, self.now))[0]

    def apply(self, step: Transition[ConsumerGroup]) -> list[HeartbeatResult]:
        self.group = step.group
        self.stored += step.to_store
        return [result for _, result in step.replies if isinstance(result, HeartbeatResult)]

    def join(
        self, member_id: str, *names: str, instance_id: str | None = None, pattern: str | None = None
    ) -> HeartbeatResult:
        request = HeartbeatRequest(
            member_id, 0, instance_id, None, "", "", REBALANCE_MS, names, pattern, owned=frozenset()
        )
        return self.send(request)

    def beat(self, member_id: str, epoch: int, owned: Partitions | None = None) -> HeartbeatResult:
        return self.send(HeartbeatRequest(member_id, epoch, owned=owned))

    def error_of(self, request: HeartbeatRequest) -> GroupError:
        before = self.group
        with pytest.raises(GroupRequestFailed) as caught:
            self.send(request)
        assert self.group is before
        return caught.value.error

    def topic(self, name: str, topic: Topic | None) -> None:
        topics = {**self.image.topics, **({name: topic} if topic else {})}
        if topic is None:
            del topics[name]
        self.image = TopicsImage(topics)


@pytest.fixture
def driver() -> ConsumerGroupDriver:
    return ConsumerGroupDriver()


def test_first_member_gets_all_partitions(driver: ConsumerGroupDriver) -> None:
    assert driver.join("m", "a") == assigned_result("m", 1, parts("A", 0, 1, 2, 3))
    assert driver.beat("m", 1) == assigned_result("m", 1), "nothing is new"


def test_partition_is_not_assigned_until_its_owner_revokes_it(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    assert driver.join("n", "a") == assigned_result("n", 2, frozenset())
    first_result = driver.beat("m", 1)
    assert (first_result.epoch, len(first_result.assigned or ())) == (1, 2), (
        "a member revokes first, and gets the next epoch then"
    )
    assert driver.group.record.members["m"].progress is Progress.REVOKING
    assert driver.beat("n", 2) == assigned_result("n", 2)
    kept = first_result.assigned
    assert kept is not None
    assert driver.beat("m", 1, owned=kept) == assigned_result("m", 2)
    assert driver.beat("n", 2) == assigned_result("n", 2, parts("A", 0, 1, 2, 3) - kept)
    assert {member.progress for member in driver.group.record.members.values()} == {Progress.STABLE}


def test_partition_is_not_free_while_a_member_reports_it(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.join("n", "a")
    kept = driver.beat("m", 1).assigned
    assert driver.beat("m", 1, owned=parts("A", 0, 1, 2, 3)) == assigned_result("m", 1, kept), (
        "the response may have been lost: it is repeated"
    )
    assert driver.beat("n", 2) == assigned_result("n", 2)


def test_partitions_are_free_when_their_member_leaves(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.join("n", "a")
    assert driver.beat("m", LEAVE) == assigned_result("m", LEAVE)
    assert driver.beat("n", 2) == assigned_result("n", 3, parts("A", 0, 1, 2, 3))
    assert driver.error_of(HeartbeatRequest("m", LEAVE)) is GroupError.UNKNOWN_MEMBER_ID


def test_heartbeat_of_a_removed_member_is_rejected(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.apply(without_members(driver.group, ["m"], driver.now))
    assert driver.error_of(HeartbeatRequest("m", 1)) is GroupError.UNKNOWN_MEMBER_ID
    assert driver.join("m", "a") == assigned_result("m", 3, parts("A", 0, 1, 2, 3))


def test_static_member_gets_its_partitions_when_it_rejoins_with_another_id(driver: ConsumerGroupDriver) -> None:
    assigned = driver.join("m", "a", instance_id="i").assigned
    driver.join("n", "a")
    assert driver.error_of(HeartbeatRequest("o", 0, "i", names=("a",))) is GroupError.UNRELEASED_INSTANCE_ID
    kept = driver.send(HeartbeatRequest("m", 1, "i")).assigned
    driver.send(HeartbeatRequest("m", 1, "i", owned=kept))
    driver.beat("n", 2)
    driver.send(HeartbeatRequest("m", LEAVE_STATIC, "i"))
    assert driver.beat("n", 2) == assigned_result("n", 2), "its partitions are reserved for it"
    assert driver.send(HeartbeatRequest("o", 0, "i", names=("a",), owned=frozenset())).assigned == kept
    assert kept is not None
    assert assigned is not None
    assert kept < assigned
    assert driver.error_of(HeartbeatRequest("m", 3, "i")) is GroupError.FENCED_INSTANCE_ID


def test_previous_epoch_is_accepted_when_a_response_was_lost(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.join("n", "a")
    kept = driver.beat("m", 1).assigned
    assert driver.beat("m", 1, owned=kept).epoch == 2
    assert driver.beat("m", 1, owned=kept).epoch == 2, "one epoch behind, and it owns no more than was assigned"
    assert driver.error_of(HeartbeatRequest("m", 1, owned=parts("A", 0, 1, 2, 3))) is GroupError.FENCED_MEMBER_EPOCH
    assert driver.error_of(HeartbeatRequest("m", 9)) is GroupError.FENCED_MEMBER_EPOCH


def test_epoch_grows_when_subscriptions_topics_or_partitions_change(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a", "later")
    assert driver.send(HeartbeatRequest("m", 1, names=("a", "b", "later"))).assigned == parts("A", 0, 1, 2, 3) | parts(
        "B", 0, 1
    )
    driver.topic("later", Topic("L", 1))
    assert driver.beat("m", 2).assigned == parts("A", 0, 1, 2, 3) | parts("B", 0, 1) | parts("L", 0)
    driver.topic("b", Topic("B", 3))
    driver.topic("a", None)
    first_result = driver.beat("m", 3)
    assert first_result.assigned == parts("B", 0, 1) | parts("L", 0)
    assert driver.beat("m", 3, owned=first_result.assigned).assigned == parts("B", 0, 1, 2) | parts("L", 0)


def test_pattern_subscription_follows_the_topics(driver: ConsumerGroupDriver) -> None:
    assert driver.join("m", pattern="b.*").assigned == parts("B", 0, 1)
    driver.topic("bb", Topic("BB", 1))
    assert driver.beat("m", 1).assigned == parts("B", 0, 1) | parts("BB", 0)
    assert driver.send(HeartbeatRequest("m", 2, pattern="", names=("a",))).assigned == frozenset(), "it revokes first"


def test_unknown_assignor_is_rejected(driver: ConsumerGroupDriver) -> None:
    assert driver.error_of(HeartbeatRequest("m", 0, names=("a",), assignor="magic")) is GroupError.UNSUPPORTED_ASSIGNOR
    assert driver.send(HeartbeatRequest("m", 0, names=("a",), assignor="range")).assigned == parts("A", 0, 1, 2, 3)


def test_invalid_pattern_is_rejected(driver: ConsumerGroupDriver) -> None:
    assert (
        driver.error_of(HeartbeatRequest("m", 0, pattern="(", owned=frozenset()))
        is GroupError.INVALID_REGULAR_EXPRESSION
    )


def test_heartbeat_at_the_target_changes_nothing(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    group, stored = driver.group, driver.stored
    driver.beat("m", 1)
    driver.beat("m", 1, owned=parts("A", 0, 1, 2, 3))
    assert driver.group is group
    assert driver.stored == stored


def test_one_target_is_computed_for_members_that_join_together(driver: ConsumerGroupDriver) -> None:
    for name in "klmn":
        step = heartbeat(
            driver.group,
            HeartbeatRequest(name, 0, names=("a",), owned=frozenset()),
            driver.image,
            driver.now,
            driver.limits,
        )
        assert not driver.apply(step), "no heartbeat is answered before the reconciliation"
    answers = driver.apply(reconcile(driver.group, driver.image, driver.now))
    assert [(answer.epoch, len(answer.assigned or ())) for answer in answers] == [(4, 1)] * 4


def test_epoch_stays_when_a_static_member_rejoins(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a", instance_id="i")
    driver.join("n", "a")
    kept = driver.send(HeartbeatRequest("m", 1, "i")).assigned
    driver.send(HeartbeatRequest("m", 1, "i", owned=kept))
    driver.beat("n", 2)
    driver.send(HeartbeatRequest("m", LEAVE_STATIC, "i"))
    rejoined = driver.join("o", "a", instance_id="i")
    assert (rejoined.epoch, rejoined.assigned) == (2, kept)
    assert driver.beat("n", 2) == assigned_result("n", 2)


def test_member_is_removed_when_it_does_not_revoke_in_time(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.join("n", "a")
    driver.beat("m", 1)
    driver.now_ms = REBALANCE_MS - 1
    driver.apply(tick(driver.group, driver.now))
    assert "m" in driver.group.record.members
    driver.group = extend_deadlines(driver.group, 10)
    driver.now_ms += 10
    driver.apply(tick(driver.group, driver.now))
    assert "m" in driver.group.record.members, "its coordinator was suspended"
    driver.now_ms += 10
    driver.apply(tick(driver.group, driver.now))
    assert driver.error_of(HeartbeatRequest("m", 1, owned=frozenset())) is GroupError.UNKNOWN_MEMBER_ID
    assert driver.beat("n", 2).assigned == parts("A", 0, 1, 2, 3)


def test_member_stays_when_it_revokes_in_time(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.join("n", "a")
    kept = driver.beat("m", 1).assigned
    driver.beat("m", 1, owned=kept)
    assert driver.group.next_deadline_ms is None


def test_revocation_deadline_restarts_on_the_next_coordinator(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.join("n", "a")
    driver.beat("m", 1)
    driver.now_ms = REBALANCE_MS - 1
    group = resumed(driver.group.record, driver.now)
    assert group.record is driver.group.record
    assert group.next_deadline_ms == driver.now_ms + REBALANCE_MS


def test_join_is_rejected_when_the_group_is_full(driver: ConsumerGroupDriver) -> None:
    driver.limits = GroupLimits(members_max=1)
    driver.join("m", "a")
    assert (
        driver.error_of(HeartbeatRequest("n", 0, names=("a",), owned=frozenset())) is GroupError.GROUP_MAX_SIZE_REACHED
    )
    assert driver.join("m", "a").epoch == 1, "a current member may join again"


def test_join_is_rejected_when_member_metadata_is_too_large(driver: ConsumerGroupDriver) -> None:
    driver.limits = GroupLimits(bytes_max=100)
    assert (
        driver.error_of(HeartbeatRequest("m", 0, names=("a" * 101,), owned=frozenset()))
        is GroupError.GROUP_MAX_SIZE_REACHED
    )
    driver.join("m", "a" * 90)
    assert driver.error_of(HeartbeatRequest("m", 1, names=("b" * 101,))) is GroupError.GROUP_MAX_SIZE_REACHED
    assert driver.send(HeartbeatRequest("m", 1, names=("b" * 50,))).epoch == 2
    long = HeartbeatRequest("n" * 100, 0, names=("a",), owned=frozenset())
    assert driver.error_of(long) is GroupError.GROUP_MAX_SIZE_REACHED


def test_partitions_count_towards_the_size_limit(driver: ConsumerGroupDriver) -> None:
    driver.join("m", "a")
    driver.limits = GroupLimits(bytes_max=100)
    topics = {"a": TopicShape("A", 40)}
    driver.group = replace(driver.group, record=msgspec.structs.replace(driver.group.record, topics=topics))
    assert (
        driver.error_of(HeartbeatRequest("n", 0, names=("a",), owned=frozenset())) is GroupError.GROUP_MAX_SIZE_REACHED
    )
