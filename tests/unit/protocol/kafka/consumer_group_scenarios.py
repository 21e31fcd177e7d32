"""The requests of the new protocol at every version, for test_handlers.py; and a member for other tests."""

from typing import Any, Final
from uuid import UUID

from tests.unit.protocol.kafka.group_scenarios import Scenario
from tests.unit.protocol.kafka.serving import Serving

BEAT, DESCRIBE = 68, 69
INVALID_REQUEST, UNKNOWN_MEMBER, NOT_FOUND = 42, 25, 69
FENCED_EPOCH, UNRELEASED, NO_ASSIGNOR, STALE_EPOCH, NO_PATTERN = 110, 111, 112, 113, 128
JOINING: Final = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
LIVING: Final = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}


class NewMember:
    """Speaks to a broker as a consumer of the new protocol does."""

    def __init__(self, serving: Serving, group: str = "g", id_: str = "m", instance: str | None = None) -> None:
        self.serving = serving
        self.group = group
        self.id = id_
        self.instance = instance
        self.epoch = 0
        self.owned: dict[UUID, list[int]] = {}

    async def join(self, version: int = 1, **more: Any) -> Any:
        self.epoch = 0
        return await self.say(version, **{**JOINING, **more})

    async def say(self, version: int = 1, **more: Any) -> Any:
        body = {
            **LIVING,
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rack_id": None,
            "server_assignor": None,
            "subscribed_topic_regex": None,
            **more,
        }
        answer = await self.serving.ask(BEAT, version, body)
        if answer.error_code == 0:
            self.id, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                self.owned = {one.topic_id: sorted(one.partitions) for one in answer.assignment.topic_partitions}
        return answer

    async def tell(self) -> Any:
        """What it has."""
        owned = [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in self.owned.items()]
        return await self.say(topic_partitions=owned)

    async def leave(self, epoch: int = -1) -> Any:
        self.epoch = epoch
        return await self.say()


async def consumer_group_heartbeat(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic(partitions=3))
    member = NewMember(serving, id_="" if version == 0 else "m")
    joined = await member.join(version)
    assert (joined.error_code, joined.error_message, joined.member_epoch) == (0, None, 1)
    assert joined.member_id, "of version 0 it may be the broker's to make one"
    assert joined.heartbeat_interval.total_seconds() * 1000 >= 500
    assert member.owned == {topic_id: [0, 1, 2]}
    quiet = await member.say(version)
    assert (quiet.error_code, quiet.member_epoch, quiet.assignment) == (0, 1, None)
    if version >= 1:
        await serving.topic("other")
        wide = await member.say(version, subscribed_topic_names=[], subscribed_topic_regex="ot.*")
        assert (wide.error_code, wide.assignment.topic_partitions) == (0, ()), "it gives back first"
    refused = await NewMember(serving, id_="x").say(version, member_epoch=5)
    assert (refused.error_code, refused.assignment) == (UNKNOWN_MEMBER, None)
    assert "x" in refused.error_message
    left = await member.leave()
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert (await member.say(version, member_epoch=1)).error_code == UNKNOWN_MEMBER
    assert (await NewMember(serving, "nothing").say(version, member_epoch=1)).error_code == NOT_FOUND


async def consumer_group_describe(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    await NewMember(serving, instance="one").join()
    body = {"group_ids": ["g", "nothing", ""], "include_authorized_operations": True}
    group, missing, nameless = (await serving.ask(DESCRIBE, version, body)).groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 1, 1)
    assert group.assignor_name == "uniform"
    assert group.authorized_operations > 0
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.member_epoch, member.client_id) == ("m", "one", 1, "tester")
    assert member.subscribed_topic_names == ("t",)
    (given,) = member.assignment.topic_partitions
    assert (given.topic_id, given.topic_name, given.partitions) == (topic_id, "t", (0, 1))
    assert member.target_assignment == member.assignment
    if version >= 1:
        assert member.member_type == 1
    assert (missing.error_code, nameless.error_code) == (NOT_FOUND, 24)


SCENARIOS: Final[dict[int, Scenario]] = {BEAT: consumer_group_heartbeat, DESCRIBE: consumer_group_describe}
