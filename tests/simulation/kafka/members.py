"""Members of a classic group that behave as clients: they join, assign, read and commit; they crash, leave the
group, and pause for longer than their session timeout.

Static members keep their instance id after a restart. The leader assigns round-robin; assignments are encoded as text.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tests.simulation.kafka import frames
from tests.simulation.kafka.committed_reader import Session
from tests.simulation.kafka.coordinator_checker import Ledger
from tests.simulation.kafka.coordinator_client import CoordinatorClient, Kind, TopicPartition, by_topic
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.response_checker import NONE, ResponseChecker
from tests.simulation.world import World

from lakestream.testing.fault_injection import log_uniform

ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, UNKNOWN_MEMBER, REBALANCING, MEMBER_ID_REQUIRED = 22, 23, 25, 27, 79
FENCED_INSTANCE, UNSTABLE_OFFSET = 82, 88
SESSION_S, REBALANCE_S = 8.0, 6.0
PROTOCOL = "by actions_left"


class Member(CoordinatorClient):
    def __init__(
        self,
        world: World,
        checker: ResponseChecker,
        ledger: Ledger,
        name: str,
        group: str,
        topic: str,
        instance: str | None = None,
    ) -> None:
        super().__init__(world, checker, name)
        self.ledger = ledger
        self.group = group
        self.topic = topic
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.tps: list[TopicPartition] = []
        self.session: Session | None = None
        """Reader of the assigned partitions."""
        self.actions_left = world.scenario.batches * 2
        self.join_attempts_left = 100
        """Attempts left to join."""
        self._late_commits: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        return self.world.oracle.topics[self.topic].topic.partition_count

    async def run(self) -> None:
        await self._run_actions()
        if self._late_commits:
            await asyncio.wait(self._late_commits)
        self.disconnect()

    async def _run_actions(self) -> None:
        rng = self.world.rng
        while self.actions_left > 0 and self.join_attempts_left > 0:
            if self.session is None and not await self._begin():
                self.join_attempts_left -= 1
                continue
            self.actions_left -= 1
            action = rng.random()
            if action < 0.06:
                self._leave_zombie(self.session)
                self._crash()
            elif action < 0.1:
                await self.leave_group()
            elif action < 0.15:
                await asyncio.sleep(log_uniform(rng, SESSION_S, 4 * SESSION_S))  # pauses without heartbeats
                await self._work()
            elif action < 0.35:
                await self._heartbeat()
            else:
                await self._work()
            await self.think(min(self.world.scenario.think_s_max, SESSION_S / 4))
        await self.leave_group()

    # ── membership ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> bool:
        """Joins, and fetches the committed offsets of the assigned partitions."""
        if not await self._join():
            return False
        offsets = await self._offsets()
        if offsets is None:
            return False
        self.session = Session(self, self.ledger, offsets)
        return True

    async def _join(self) -> bool:
        joined = await self._group_request(
            frames.JOIN_GROUP,
            {
                "session_timeout": timedelta(seconds=SESSION_S),
                "rebalance_timeout": timedelta(seconds=REBALANCE_S),
                "protocol_type": "consumer",
                "protocols": [{"name": PROTOCOL, "metadata": self.topic.encode()}],
                "reason": None,
            },
        )
        if joined is LOST:
            return False
        if joined.error_code == MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return False
        if not await self._handle_error(joined.error_code):
            return False
        self.member_id, self.generation = joined.member_id, joined.generation_id
        return await self._sync(self._assign(joined) if joined.leader == self.member_id else {})

    def _assign(self, joined: Any) -> dict[str, bytes]:
        if getattr(joined, "skip_assignment", False):
            return {}
        members = sorted(member.member_id for member in joined.members)
        assignments: dict[str, list[str]] = {member: [] for member in members}
        for number in range(self.count):
            assignments[members[(number + self.generation) % len(members)]].append(str(number))
        return {member: ",".join(numbers).encode() for member, numbers in assignments.items()}

    async def _sync(self, assignments: Mapping[str, bytes]) -> bool:
        synced = await self._group_request(
            frames.SYNC_GROUP,
            {
                "generation_id": self.generation,
                "protocol_type": "consumer",
                "protocol_name": PROTOCOL,
                "assignments": [
                    {"member_id": member, "assignment": assignment} for member, assignment in assignments.items()
                ],
            },
        )
        if synced is LOST or not await self._handle_error(synced.error_code):
            return False
        numbers = [int(number) for number in bytes(synced.assignment).decode().split(",") if number]
        self.tps = [TopicPartition(self.topic, number) for number in numbers]
        self.ledger.assigned(self.group, self.generation, self.instance or self.member_id, self.tps)
        self.ledger.instance_joined(self.group, self.instance, self.member_id)
        return True

    async def _heartbeat(self) -> bool:
        response = await self._group_request(frames.HEARTBEAT, {"generation_id": self.generation})
        return response is not LOST and await self._handle_error(response.error_code)

    async def leave_group(self) -> None:
        if self.member_id:
            identity = {"member_id": self.member_id, "group_instance_id": self.instance, "reason": None}
            await self.request_coordinator(
                Kind.GROUP, self.group, frames.LEAVE_GROUP, {"group_id": self.group, "members": [identity]}
            )
            self.world.tally["group members left"] += 1
        self._crash()

    def _leave_zombie(self, session: Session | None) -> None:
        """Lets the old incarnation commit later, when a new one has replaced it."""
        if session is None or not session.positions or self.world.rng.random() < 0.3:
            return
        self.world.tally["group zombies"] += 1
        self._commit_late(self.member_id, self.generation, dict(session.positions))

    def _commit_late(self, member_id: str, generation: int, offsets: dict[TopicPartition, int]) -> None:
        async def commit() -> None:
            await asyncio.sleep(log_uniform(self.world.rng, 0.05, 3 * SESSION_S))
            await self._send_commit(member_id, generation, offsets)

        self._late_commits.append(asyncio.get_running_loop().create_task(commit()))

    def _crash(self) -> None:
        """Forgets everything but the instance id, as a restarted process does."""
        self.member_id = ""
        self.drop_assignment()
        self.disconnect()

    def drop_assignment(self) -> None:
        """Drops the assignment."""
        self.session = None
        self.tps = []

    async def _handle_error(self, code: int) -> bool:
        """Returns whether there is no error; otherwise reacts as clients do."""
        if code == NONE:
            self.succeeded()
            return True
        self.world.tally[f"group error {int(code)}"] += 1
        if await self.backed_off(Kind.GROUP, self.group, code):
            return False  # keeps its assignment
        self.drop_assignment()
        if code in (UNKNOWN_MEMBER, FENCED_INSTANCE):
            self.member_id = ""
        elif code not in (ILLEGAL_GENERATION, REBALANCING):
            self.world.oracle.report("clients can retry the error", f"{self.name} of {self.group} received {code!r}")
        return False

    async def _group_request(self, key: int, values: Mapping[str, Any]) -> Any:
        identity = {"group_id": self.group, "member_id": self.member_id, "group_instance_id": self.instance}
        return await self.request_coordinator(Kind.GROUP, self.group, key, {**identity, **values})

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _offsets(self) -> dict[TopicPartition, int] | None:
        """Returns the committed offsets of the assigned partitions, or None after an error."""
        acked = {tp: self.ledger.committed_before(self.group, tp) for tp in self.tps}
        if not self.tps:
            return {}
        topics = [{"name": self.topic, "partition_indexes": tuple(tp.number for tp in self.tps)}]
        request = {"group_id": self.group, "topics": topics}
        response = await self.request_coordinator(
            Kind.GROUP,
            self.group,
            frames.OFFSET_FETCH,
            {**request, "groups": [{**request, "member_id": None, "member_epoch": -1}], "require_stable": True},
        )
        if response is LOST:
            return None
        (group,) = getattr(response, "groups", [response])
        if not await self._handle_error(group.error_code):
            return None
        offsets = {}
        for topic in group.topics:
            for part in topic.partitions:
                if part.error_code == UNSTABLE_OFFSET:
                    self.world.tally["group offsets unstable"] += 1
                    await self.back_off()
                    return None
                tp = TopicPartition(topic.name, part.partition_index)
                self.ledger.offset_fetched(self.group, tp, part.committed_offset, acked[tp])
                offsets[tp] = max(part.committed_offset, 0)
        return offsets

    async def _work(self) -> None:
        """Polls, and often commits the positions."""
        if self.session is None:
            return
        await self.session.poll()
        if self.session is not None and self.world.rng.random() < 0.6:
            await self._commit(self.session.positions)

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if offsets:
            code = await self._send_commit(self.member_id, self.generation, dict(offsets))
            if code is not None:
                await self._handle_error(code)

    async def _send_commit(self, member_id: str, generation: int, offsets: dict[TopicPartition, int]) -> int | None:
        newest = self.ledger.generation(self.group)
        current_member = self.ledger.instance_member(self.group, self.instance)
        response = await self._group_request(
            frames.OFFSET_COMMIT,
            {
                "member_id": member_id,
                "generation_id_or_member_epoch": generation,
                "topics": by_topic(committed_values(offsets)),
            },
        )
        if response is LOST:
            return None
        code = int(next(part.error_code for topic in response.topics for part in topic.partitions))
        if code == NONE:
            self.ledger.committed(self.group, generation, newest, offsets)
            if current_member not in (None, member_id):
                self.world.oracle.report(
                    "a zombie commits nothing", f"{member_id} of {self.instance}, which {current_member} has taken over"
                )
        return code


def committed_values(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, dict[str, Any]]:
    return {
        tp: {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
        for tp, offset in offsets.items()
    }
