"""Scenarios of the consumer protocol at every version, for test_handlers.py, and a member for tests."""

from typing import Any, Final
from uuid import UUID

from tests.harness.kafka.group_scenarios import Scenario
from tests.harness.kafka.kafka_handlers import Serving

BEAT, DESCRIBE = 68, 69
INVALID_REQUEST, UNKNOWN_MEMBER, NOT_FOUND = 42, 25, 69
FENCED_EPOCH, UNRELEASED, NO_ASSIGNOR, STALE_EPOCH, NO_PATTERN = 110, 111, 112, 113, 128
JOIN_FIELDS: Final = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
UNCHANGED: Final = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}


class ConsumerMember:
    """A member of the consumer protocol."""

    def __init__(self, serving: Serving, group: str = "g", id_: str = "m", instance: str | None = None) -> None:
        self.serving = serving
        self.group = group
        self.id = id_
        self.instance = instance
        self.epoch = 0
        self.owned: dict[UUID, list[int]] = {}

    async def join(self, version: int = 1, **more: Any) -> Any:
        self.epoch = 0
        return await self.heartbeat(version, **{**JOIN_FIELDS, **more})

    async def heartbeat(self, version: int = 1, **more: Any) -> Any:
        body = {
            **UNCHANGED,
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rack_id": None,
            "server_assignor": None,
            "subscribed_topic_regex": None,
            **more,
        }
        response = await self.serving.request(BEAT, version, body)
        if response.error_code == 0:
            self.id, self.epoch = response.member_id, response.member_epoch
            if response.assignment is not None:
                self.owned = {one.topic_id: sorted(one.partitions) for one in response.assignment.topic_partitions}
        return response

    async def leave(self, epoch: int = -1) -> Any:
        self.epoch = epoch
        return await self.heartbeat()


async def consumer_group_heartbeat(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic(partitions=3))
    member = ConsumerMember(serving, id_="" if version == 0 else "m")
    joined = await member.join(version)
    assert (joined.error_code, joined.error_message, joined.member_epoch) == (0, None, 1)
    assert joined.member_id, "in version 0 the broker may generate the member id"
    assert joined.heartbeat_interval.total_seconds() * 1000 >= 500
    assert member.owned == {topic_id: [0, 1, 2]}
    unchanged = await member.heartbeat(version)
    assert (unchanged.error_code, unchanged.member_epoch, unchanged.assignment) == (0, 1, None)
    if version >= 1:
        await serving.topic("other")
        changed = await member.heartbeat(version, subscribed_topic_names=[], subscribed_topic_regex="ot.*")
        assert (changed.error_code, changed.assignment.topic_partitions) == (0, ()), "it revokes first"
    rejected = await ConsumerMember(serving, id_="x").heartbeat(version, member_epoch=5)
    assert (rejected.error_code, rejected.assignment) == (UNKNOWN_MEMBER, None)
    assert "x" in rejected.error_message
    left = await member.leave()
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert (await member.heartbeat(version, member_epoch=1)).error_code == UNKNOWN_MEMBER
    assert (await ConsumerMember(serving, "missing").heartbeat(version, member_epoch=1)).error_code == NOT_FOUND


async def consumer_group_describe(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    await ConsumerMember(serving, instance="one").join()
    body = {"group_ids": ["g", "missing", ""], "include_authorized_operations": True}
    group, missing, without_id = (await serving.request(DESCRIBE, version, body)).groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 1, 1)
    assert group.assignor_name == "uniform"
    assert group.authorized_operations > 0
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.member_epoch, member.client_id) == ("m", "one", 1, "tester")
    assert member.subscribed_topic_names == ("t",)
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_id, assigned.topic_name, assigned.partitions) == (topic_id, "t", (0, 1))
    assert member.target_assignment == member.assignment
    if version >= 1:
        assert member.member_type == 1
    assert (missing.error_code, without_id.error_code) == (NOT_FOUND, 24)


SCENARIOS: Final[dict[int, Scenario]] = {BEAT: consumer_group_heartbeat, DESCRIBE: consumer_group_describe}
