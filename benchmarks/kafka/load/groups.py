"""Members that rebalance, and offsets that are committed."""

import asyncio
import time
from typing import Any, Final

from benchmarks.common.measure import percentile
from benchmarks.kafka.load.asking import Asking, checked, coordinated
from benchmarks.kafka.load.tasks import Commit, Rebalance, Told
from lakestream.protocol.kafka import codec

COMMIT, JOIN, HEARTBEAT, SYNC = 8, 11, 12, 14
COMMIT_VERSION, JOIN_VERSION, HEARTBEAT_VERSION, SYNC_VERSION = 8, 3, 3, 3
"""Of JoinGroup the last one that gives a new member its id at once."""
HEARTBEAT_S: Final = 0.02
MARK: Final = 0x1234_5678_9ABC_DEF0
"""In the place of the offset."""


class Committing:
    """Each connection commits for a group of its own, one request after the other."""

    def __init__(self, task: Commit) -> None:
        self._task = task
        self._runner = asyncio.Runner()
        self._all = self._runner.run(self._connect())
        self._took_s: list[float] = []

    async def _connect(self) -> list[Asking]:
        made = [await Asking.open(self._task.bootstrap) for _ in range(self._task.groups)]
        for number, asking in enumerate(made):
            await coordinated(asking, self._name(number))
        return made

    def _name(self, number: int) -> str:
        return f"{self._task.prefix}-{number}"

    def work(self) -> Told:
        self._runner.run(self._work())
        took = sorted(self._took_s)
        return Told(p50_ms=1000 * percentile(took, 0.5), p99_ms=1000 * percentile(took, 0.99))

    async def _work(self) -> None:
        each = self._task.commits // self._task.groups
        async with asyncio.TaskGroup() as group:
            for number, asking in enumerate(self._all):
                group.create_task(self._commit(asking, self._name(number), each))

    async def _commit(self, asking: Asking, name: str, count: int) -> None:
        """The same request again and again, with another offset in it."""
        request = codec.write_request(COMMIT, COMMIT_VERSION, 1, "bench", self._body(name))
        mark = MARK.to_bytes(8, "big")
        good = b""
        for offset in range(count):
            start_s = time.perf_counter()
            answer = await asking.exchange(request.replace(mark, offset.to_bytes(8, "big")))
            self._took_s.append(time.perf_counter() - start_s)
            if answer != good:  # the first one is looked into, the others are like it
                for topic in codec.parse_response(COMMIT, COMMIT_VERSION, answer).body.topics:
                    for one in topic.partitions:
                        checked(one.error_code, "OffsetCommit")
                good = answer

    def _body(self, name: str) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": number,
                "committed_offset": MARK,
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


class Rebalancing:
    """All members of one group join again and again: the leader first, the others when it has."""

    def __init__(self, task: Rebalance) -> None:
        self._task = task
        self._runner = asyncio.Runner()
        self._members = self._runner.run(self._connect())

    async def _connect(self) -> list["_Member"]:
        members = [_Member(await Asking.open(self._task.bootstrap), self._task) for _ in range(self._task.members)]
        await coordinated(members[0].asking, self._task.group)
        await asyncio.gather(*(member.settle(members) for member in members))
        return members

    def work(self) -> Told:
        took = sorted(self._runner.run(self._work()))
        return Told(p50_ms=1000 * percentile(took, 0.5), p99_ms=1000 * percentile(took, 0.99), worst_ms=1000 * took[-1])

    async def _work(self) -> list[float]:
        took_s = []
        for _ in range(self._task.rounds):
            start_s = time.perf_counter()
            await _balance(self._members)
            took_s.append(time.perf_counter() - start_s)
        return took_s


async def _balance(members: list["_Member"]) -> None:
    """From the first that joins to the last that knows its share. A leader that joins makes all others do so."""
    leader_first = sorted(members, key=lambda member: not member.leads)
    await asyncio.gather(*(member.join_next() for member in leader_first))
    await asyncio.gather(*(member.sync() for member in members))


class _Member:
    def __init__(self, asking: Asking, task: Rebalance) -> None:
        self.asking = asking
        self._group = task.group
        topic = task.topic.encode()
        self._wish = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic + b"\xff\xff\xff\xff"
        self._others: list[str] = []
        self._id = ""
        self.leads = False
        self.generation = -1
        self._has_share = False

    async def settle(self, members: list["_Member"]) -> None:
        """Joins, and joins again when others come, until all have shares in one generation."""
        while not all(one._has_share and one.generation == self.generation for one in members):
            if not self._has_share:
                await self.join()
                self._has_share = await self._sync() == 0
            else:
                await asyncio.sleep(HEARTBEAT_S)
                self._has_share = (await self.asking.ask(HEARTBEAT, HEARTBEAT_VERSION, self._who)).error_code == 0

    async def join_next(self) -> None:
        """Whoever is faster than its leader is given the old generation."""
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
            "protocols": [{"name": "range", "metadata": self._wish}],
        }
        answer = await self.asking.ask(JOIN, JOIN_VERSION, body)
        checked(answer.error_code, "JoinGroup")
        self._id, self.generation = answer.member_id, answer.generation_id
        self.leads = answer.leader == answer.member_id
        self._others = [member.member_id for member in answer.members]

    async def sync(self) -> None:
        checked(await self._sync(), "SyncGroup")

    async def _sync(self) -> int:
        given = [{"member_id": name, "assignment": b"share of " + name.encode()} for name in self._others]
        body = {**self._who, "assignments": given if self.leads else []}
        return int((await self.asking.ask(SYNC, SYNC_VERSION, body)).error_code)

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "generation_id": self.generation,
            "member_id": self._id,
            "group_instance_id": None,
        }
