"""Rebalances of groups, and offset commits."""

import asyncio
import time
from typing import Any, Final

from benchmarks.common.measure import percentile
from benchmarks.kafka.load.raw_requests import RawConnection, raise_on_error, wait_for_coordinator
from benchmarks.kafka.load.tasks import Commit, LoadResult, Rebalance
from lakestream.protocol.kafka.wire import codec

COMMIT, JOIN, HEARTBEAT, SYNC = 8, 11, 12, 14
COMMIT_VERSION, JOIN_VERSION, HEARTBEAT_VERSION, SYNC_VERSION = 8, 3, 3, 3
"""Version 3 of JoinGroup is the last that does not require a second request from a new member."""
HEARTBEAT_S: Final = 0.02
OFFSET_PLACEHOLDER: Final = 0x1234_5678_9ABC_DEF0
"""Offset of the encoded request; it is replaced in each copy."""


class CommitLoad:
    """Each connection commits for its own group, one request after the other."""

    def __init__(self, task: Commit) -> None:
        self._task = task
        self._runner = asyncio.Runner()
        self._connections = self._runner.run(self._connect())
        self._took_s: list[float] = []

    async def _connect(self) -> list[RawConnection]:
        connections = [await RawConnection.open(self._task.bootstrap) for _ in range(self._task.groups)]
        for number, connection in enumerate(connections):
            await wait_for_coordinator(connection, self._name(number))
        return connections

    def _name(self, number: int) -> str:
        return f"{self._task.prefix}-{number}"

    def work(self) -> LoadResult:
        self._runner.run(self._work())
        took = sorted(self._took_s)
        return LoadResult(p50_ms=1000 * percentile(took, 0.5), p99_ms=1000 * percentile(took, 0.99))

    async def _work(self) -> None:
        each = self._task.commits // self._task.groups
        async with asyncio.TaskGroup() as group:
            for number, connection in enumerate(self._connections):
                group.create_task(self._commit(connection, self._name(number), each))

    async def _commit(self, connection: RawConnection, name: str, count: int) -> None:
        """Sends the same encoded request `count` times, each with another offset."""
        request = codec.write_request(COMMIT, COMMIT_VERSION, 1, "bench", self._body(name))
        placeholder = OFFSET_PLACEHOLDER.to_bytes(8, "big")
        decoded = b""
        for offset in range(count):
            start_s = time.perf_counter()
            response = await connection.exchange(request.replace(placeholder, offset.to_bytes(8, "big")))
            self._took_s.append(time.perf_counter() - start_s)
            if response != decoded:  # without errors all responses are equal, so only the first one is decoded
                for topic in codec.parse_response(COMMIT, COMMIT_VERSION, response).body.topics:
                    for partition in topic.partitions:
                        raise_on_error(partition.error_code, "OffsetCommit")
                decoded = response

    def _body(self, name: str) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": number,
                "committed_offset": OFFSET_PLACEHOLDER,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
            for number in range(self._task.partitions)
        ]
        return {
            "group_id": name,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": self._task.topic, "partitions": partitions}],
        }


class RebalanceLoad:
    """All members of a group rejoin repeatedly: first the leader, then the others."""

    def __init__(self, task: Rebalance) -> None:
        self._task = task
        self._runner = asyncio.Runner()
        self._members = self._runner.run(self._connect())

    async def _connect(self) -> list["_Member"]:
        members = [
            _Member(await RawConnection.open(self._task.bootstrap), self._task) for _ in range(self._task.members)
        ]
        await wait_for_coordinator(members[0].connection, self._task.group)
        await asyncio.gather(*(member.join_until_stable(members) for member in members))
        return members

    def work(self) -> LoadResult:
        took = sorted(self._runner.run(self._work()))
        return LoadResult(
            p50_ms=1000 * percentile(took, 0.5), p99_ms=1000 * percentile(took, 0.99), worst_ms=1000 * took[-1]
        )

    async def _work(self) -> list[float]:
        took_s = []
        for _ in range(self._task.rounds):
            start_s = time.perf_counter()
            await _rebalance(self._members)
            took_s.append(time.perf_counter() - start_s)
        return took_s


async def _rebalance(members: list["_Member"]) -> None:
    """Joins and syncs all members. The leader joins first, which starts the rebalance."""
    leader_first = sorted(members, key=lambda member: not member.leads)
    await asyncio.gather(*(member.join_next() for member in leader_first))
    await asyncio.gather(*(member.sync() for member in members))


class _Member:
    def __init__(self, connection: RawConnection, task: Rebalance) -> None:
        self.connection = connection
        self._group = task.group
        topic = task.topic.encode()
        self._subscription = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic + b"\xff\xff\xff\xff"
        self._member_ids: list[str] = []
        self._id = ""
        self.leads = False
        self.generation = -1
        self._has_assignment = False

    async def join_until_stable(self, members: list["_Member"]) -> None:
        """Joins until all members have an assignment in one generation."""
        while not all(member._has_assignment and member.generation == self.generation for member in members):
            if not self._has_assignment:
                await self.join()
                self._has_assignment = await self._sync() == 0
            else:
                await asyncio.sleep(HEARTBEAT_S)
                self._has_assignment = (
                    await self.connection.request(HEARTBEAT, HEARTBEAT_VERSION, self._identity)
                ).error_code == 0

    async def join_next(self) -> None:
        """Joins until the generation changes: a member that is faster than its leader joins the old one."""
        before = self.generation
        while self.generation == before:
            await self.join()

    async def join(self) -> None:
        body = {
            "group_id": self._group,
            "session_timeout": 30_000,
            "rebalance_timeout": 60_000,
            "member_id": self._id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": self._subscription}],
        }
        response = await self.connection.request(JOIN, JOIN_VERSION, body)
        raise_on_error(response.error_code, "JoinGroup")
        self._id, self.generation = response.member_id, response.generation_id
        self.leads = response.leader == response.member_id
        self._member_ids = [member.member_id for member in response.members]

    async def sync(self) -> None:
        raise_on_error(await self._sync(), "SyncGroup")

    async def _sync(self) -> int:
        assignments = [
            {"member_id": name, "assignment": b"assignment of " + name.encode()} for name in self._member_ids
        ]
        body = {**self._identity, "assignments": assignments if self.leads else []}
        return int((await self.connection.request(SYNC, SYNC_VERSION, body)).error_code)

    @property
    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "generation_id": self.generation,
            "member_id": self._id,
            "group_instance_id": None,
        }
