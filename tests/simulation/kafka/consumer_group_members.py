"""Members of a group of the consumer protocol (KIP-848): they send heartbeats, get partitions assigned and revoke them.

They crash, leave the group (static members also temporarily), and pause for longer than their session timeout. All
their requests name topics by id, so a recreated topic is another topic for them.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.committed_reader import Session
from tests.simulation.kafka.coordinator_checker import Ledger
from tests.simulation.kafka.coordinator_client import Kind, TopicPartition, by_topic
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.members import REBALANCE_S, UNKNOWN_MEMBER, UNSTABLE_OFFSET, Member, committed_values
from tests.simulation.kafka.response_checker import GONE, NONE, ResponseChecker, Topic
from tests.simulation.world import World

JOIN, LEAVE, LEAVE_TEMPORARILY = 0, -1, -2
GROUP_NOT_FOUND, FENCED_EPOCH, UNRELEASED_INSTANCE, STALE_EPOCH, FENCED_INSTANCE = 69, 110, 111, 113, 82
UNCHANGED = timedelta(milliseconds=-1)
CLIENT_ID_FROM = 1


class ConsumerGroupMember(Member):
    def __init__(
        self,
        world: World,
        checker: ResponseChecker,
        ledger: Ledger,
        name: str,
        group: str,
        topics: tuple[str, ...],
        instance: str | None = None,
    ) -> None:
        super().__init__(world, checker, ledger, name, group, topics[0], instance)
        self.topics = topics
        rng = world.rng
        self.versions = {
            frames.CONSUMER_GROUP_HEARTBEAT: rng.choice((0, 1)),
            frames.OFFSET_COMMIT: 10,
            frames.OFFSET_FETCH: 10,
            frames.FETCH: rng.choice((13, 17)),
        }
        self.by_pattern = self.versions[frames.CONSUMER_GROUP_HEARTBEAT] >= 1 and rng.random() < 0.3
        self.assignor = rng.choice((None, "uniform", "range"))
        self.generation = JOIN
        """Its member epoch."""

    # ── membership ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> bool:
        if not await self.heartbeat():
            return False
        if self.session is None:
            self.session = Session(self, self.ledger, {})
        return True

    async def _heartbeat(self) -> bool:
        return await self.heartbeat()

    async def heartbeat(self) -> bool:
        """Reports the owned partitions and applies the new assignment. Returns whether it succeeded."""
        joins = self.generation == JOIN
        if joins and not self.member_id and self.versions[frames.CONSUMER_GROUP_HEARTBEAT] >= CLIENT_ID_FROM:
            self.member_id = f"{self.world.rng.getrandbits(128):032x}"
        requested_s, owned = self.world.loop.now, list(self.tps)
        response = await self._send_heartbeat(joins or self.world.rng.random() < 0.1)
        if response is LOST or not await self._handle_error(response.error_code):
            return False
        self.ledger.check_still_owned(self.group, self.member_id, owned, requested_s)
        self.member_id, self.generation = response.member_id, response.member_epoch
        if self.session is None:
            self.session = Session(self, self.ledger, {})
        self.ledger.instance_joined(self.group, self.instance, self.member_id)
        if response.assignment is not None:
            await self._apply_assignment(self._topic_partitions(response.assignment.topic_partitions), requested_s)
        return True

    async def _send_heartbeat(self, in_full: bool) -> Any:
        owned: dict[TopicPartition, dict[str, Any]] = {tp: {} for tp in self.tps}
        names = None if self.by_pattern else self.topics
        return await self._group_request(
            frames.CONSUMER_GROUP_HEARTBEAT,
            {
                "instance_id": self.instance,
                "member_epoch": self.generation,
                "rack_id": None,
                "rebalance_timeout": timedelta(seconds=REBALANCE_S) if in_full else UNCHANGED,
                "subscribed_topic_names": names if in_full else None,
                "subscribed_topic_regex": "|".join(self.topics) if in_full and self.by_pattern else None,
                "server_assignor": self.assignor if in_full else None,
                "topic_partitions": [
                    {"topic_id": topic["topic_id"], "partitions": tuple(part["number"] for part in topic["partitions"])}
                    for topic in by_topic(owned, "number")
                ],
            },
        )

    def _topic_partitions(self, topics: Any) -> list[TopicPartition]:
        names = {topic_id: name for name in self.topics for topic_id in self.world.oracle.names.get(name, {})}
        return [
            TopicPartition(names[topic.topic_id.hex], number, topic.topic_id.hex)
            for topic in topics
            for number in topic.partitions
        ]

    async def _apply_assignment(self, assigned: list[TopicPartition], requested_s: float) -> None:
        """Revokes partitions that are no longer assigned, then adds the new ones."""
        lost = {tp for tp in self.tps if tp not in assigned}
        if lost and self.world.rng.random() < 0.3:
            return  # still processes a revoked partition; the next heartbeat returns the assignment again
        session = self.session
        assert session is not None
        read = {tp: offset for tp, offset in session.positions.items() if tp in lost}
        if read:
            self._commit_late(self.member_id, self.generation, read)  # sent now, delayed by the network
        if read and self.world.rng.random() < 0.5:
            await self._commit(read)
            if self.session is not session:
                return  # not a member any more
        new = [tp for tp in assigned if tp not in self.tps]
        self.tps = assigned
        session.positions = {tp: offset for tp, offset in session.positions.items() if tp not in lost}
        self.ledger.assigned(self.group, self.generation, self.instance or self.member_id, assigned)
        self.ledger.partitions_assigned(self.group, self.member_id, new, requested_s)

    async def leave_group(self) -> None:
        if self.member_id and self.generation > JOIN:
            temporarily = self.instance is not None and self.world.rng.random() < 0.5
            self.generation, self.tps = LEAVE_TEMPORARILY if temporarily else LEAVE, []
            await self._send_heartbeat(in_full=False)
            self.world.tally["group members left"] += 1
        self._crash()

    def _crash(self) -> None:
        super()._crash()
        self.generation = JOIN

    async def _handle_error(self, code: int) -> bool:
        if code == NONE:
            self.succeeded()
            return True
        self.world.tally[f"group error {int(code)}"] += 1
        if code in (UNRELEASED_INSTANCE, UNSTABLE_OFFSET):
            await self.back_off()
        elif code in (FENCED_EPOCH, UNKNOWN_MEMBER, FENCED_INSTANCE, GROUP_NOT_FOUND):
            member_id = self.member_id
            self._crash()
            self.member_id = member_id if code == FENCED_EPOCH else ""  # a fenced member joins again with its id
        elif code != STALE_EPOCH and not await self.backed_off(Kind.GROUP, self.group, code):
            self.world.oracle.report("clients can retry the error", f"{self.name} of {self.group} received {code!r}")
        return False

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        if await self.heartbeat() and self.session is not None and await self._fetch_offsets(self.session):
            await super()._work()

    async def _fetch_offsets(self, session: Session) -> bool:
        """Fetches the committed offsets of newly assigned partitions. Returns whether it succeeded."""
        new = [tp for tp in self.tps if tp not in session.positions]
        if not new:
            return True
        acked = {tp: self.ledger.committed_before(self.group, tp) for tp in new}
        began_s = self.world.loop.now
        topics = [
            {"topic_id": topic["topic_id"], "partition_indexes": tuple(part["number"] for part in topic["partitions"])}
            for topic in by_topic({tp: {} for tp in new}, "number")
        ]
        member = {"member_id": self.member_id, "member_epoch": self.generation}
        request = {"group_id": self.group, "topics": topics, **member}
        response = await self.request_coordinator(
            Kind.GROUP, self.group, frames.OFFSET_FETCH, {"groups": [request], "require_stable": True}
        )
        if response is LOST or not await self._handle_error(response.groups[0].error_code):
            return False
        if self.session is not session:
            return False
        offsets = {
            (topic.topic_id, part.partition_index): part
            for topic in response.groups[0].topics
            for part in topic.partitions
        }
        for tp in new:
            part = offsets[UUID(hex=tp.topic_id), tp.number]
            if part.error_code == NONE:
                self.ledger.offset_fetched(self.group, tp, part.committed_offset, acked[tp])
                session.positions[tp] = max(part.committed_offset, 0)
            else:
                self._check_topic_deleted(tp, part.error_code, began_s)
        return True

    async def _send_commit(self, member_id: str, generation: int, offsets: dict[TopicPartition, int]) -> int | None:
        requested_s = self.world.loop.now
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
        codes = {
            (topic.topic_id, part.partition_index): int(part.error_code)
            for topic in response.topics
            for part in topic.partitions
        }
        done = {}
        for tp, offset in offsets.items():
            code = codes[UUID(hex=tp.topic_id), tp.number]
            if code == NONE:
                done[tp] = offset
            elif code not in GONE:
                return code
            else:
                self._check_topic_deleted(tp, code, requested_s)
        if done:
            self.ledger.committed_by(self.group, member_id, requested_s, done)
        return NONE

    def _check_topic_deleted(self, tp: TopicPartition, code: int, began_s: float) -> None:
        if code not in GONE or self.checker.exists_since(Topic(tp.topic, tp.topic_id), began_s):
            self.world.oracle.report("existing topics are found", f"{self.name} received {code} for {tp}")
