"""Writes of one shard: joined into one request, sent to its leader, tried again where that is safe, doubts resolved.

Above: store.py.  Below: grouping.py, shards.py, node.py.

A request whose answer was lost may have taken effect, now or a little later. What happens then:

- A conditional put (create, or a version expected) is sent again as it was: at most one of the two can take effect. If
  the second is refused, the record is read on the node that refused it. Every put carries an identity of its own, which
  Oxia keeps with the record, so a put recognises its own first try. The log's creates need no more look than this.
- A put that expects nothing is never sent twice: the record is read instead. If it is not ours, that is Uncertain.
- A delete with a version is sent again (versions are never reused); one without is Uncertain.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata.oxia.errors import CallFailed, Effect, for_caller
from lakestream.metadata.oxia.grouping import Grouper
from lakestream.metadata.oxia.node import Nodes
from lakestream.metadata.oxia.paths import PROBE_PATH
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.store import ABSENT, ANY, Stored


class Acked(NamedTuple):
    """A put took effect, and `address` said so: reads there are not those of a leader deposed before."""

    stored: Stored
    modified_ms: int
    address: str
    repeated: bool = False
    """It was tried more than once."""


class Deleted(NamedTuple):
    was_there: bool


Refusal: TypeAlias = Conflict | Missing | Unavailable
Answer: TypeAlias = Acked | Deleted | Refusal


@dataclass(slots=True, eq=False)
class PutOp:
    request: pb.PutRequest
    deadline_s: float
    in_doubt: bool = False

    @property
    def repeatable(self) -> bool:
        return self.request.HasField("expected_version_id") or self.request.key == PROBE_PATH


@dataclass(slots=True, eq=False)
class DeleteOp:
    request: pb.DeleteRequest
    deadline_s: float
    in_doubt: bool = False

    @property
    def repeatable(self) -> bool:
        return self.request.HasField("expected_version_id")


WriteOp: TypeAlias = PutOp | DeleteOp


# Pure decisions


def put_answer(op: PutOp, response: pb.PutResponse, address: str) -> Answer | None:
    """None: refused, but perhaps only because an earlier try of ours was there already. Look."""
    path = op.request.key
    match response.status:
        case pb.OK:
            return acked(response.version, address)._replace(repeated=op.in_doubt)
        case pb.SESSION_DOES_NOT_EXIST:
            return Missing(f"{path}: its session is gone; open another")
        case _:
            return None if op.in_doubt else _conflict(path)


def resolved(op: WriteOp, there: pb.GetResponse, address: str) -> Answer:
    """What became of it, by the record that is there now."""
    return resolved_put(op, there, address) if isinstance(op, PutOp) else resolved_delete(op, there)


def resolved_put(op: PutOp, there: pb.GetResponse, address: str) -> Answer:
    path, version = op.request.key, there.version
    if there.status == pb.OK and version.client_identity == op.request.client_identity:
        return acked(version, address)._replace(repeated=True)
    untouched = there.status == pb.OK and version.modifications_count == 0
    if op.repeatable and op.request.expected_version_id == ABSENT and untouched:
        # Nobody put anything over the record since its creation, so it was another's creation that refused ours.
        return _conflict(path)
    return uncertain(path)


def delete_answer(response: pb.DeleteResponse) -> Answer | None:
    """None: refused, which Oxia also says of a versioned delete of what is not there. Look."""
    return None if response.status == pb.UNEXPECTED_VERSION_ID else Deleted(response.status == pb.OK)


def resolved_delete(op: DeleteOp, there: pb.GetResponse) -> Answer:
    if there.status == pb.OK:
        return _conflict(op.request.key)
    # In doubt, the very version that we were to delete is gone: most likely by our own first try.
    return Deleted(op.in_doubt)


def acked(version: pb.Version, address: str) -> Acked:
    return Acked(Stored(version.version_id, version.created_timestamp), version.modified_timestamp, address)


def uncertain(path: str, why: CallFailed | None = None) -> Uncertain:
    cause = f" ({why})" if why else ""
    return Uncertain(f"{path}: the answer was lost and it may have taken effect{cause}: look before you try again")


def _conflict(path: str) -> Conflict:
    return Conflict(f"{path}: is not at the expected version; read it again")


# The way to the leader


class Writer:
    """All writes of one shard by this client: one request on its way at a time."""

    def __init__(self, shard: int, nodes: Nodes, shards: Shards, settings: OxiaSettings, identity: str) -> None:
        self._shard = shard
        self._nodes = nodes
        self._shards = shards
        self._settings = settings
        self._where = f"metadata store {settings}, shard {shard}"
        self._identities = (f"{identity}-{number:x}" for number in itertools.count())
        self._writes: Grouper[WriteOp, Answer] = Grouper(
            self._send,
            size_of=lambda op: op.request.ByteSize(),
            count_max=settings.group_count_max,
            bytes_max=settings.group_bytes_max,
            waiting_max=settings.waiting_count_max,
        )
        self._probes: Grouper[None, Acked] = Grouper(
            self._send_probe,
            size_of=lambda _: 1,
            count_max=settings.waiting_count_max,
            bytes_max=settings.waiting_count_max,
            waiting_max=settings.waiting_count_max,
        )

    async def ask(self, ops: Sequence[WriteOp]) -> list[Answer]:
        return await self._writes.ask(ops)

    async def probe(self) -> Acked:
        """A write that changes nothing, begun after this call: whoever acknowledges it leads the shard.

        Those who ask while one is on its way share the next.
        """
        (ack,) = await self._probes.ask([None])
        return ack

    def put_op(self, path: str, home: str, value: bytes, expected: int | None, session_id: int | None = None) -> PutOp:
        request = pb.PutRequest(
            key=path,
            value=value,
            expected_version_id=expected,
            session_id=session_id,
            client_identity=next(self._identities),
            partition_key=home,
        )
        return PutOp(request, self._deadline_s())

    def delete_op(self, path: str, expected: int | None) -> DeleteOp:
        return DeleteOp(pb.DeleteRequest(key=path, expected_version_id=expected), self._deadline_s())

    def _deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + self._settings.retry_budget_ms / 1000

    async def close(self, reason: Unavailable) -> None:
        await self._probes.close(reason)
        await self._writes.close(reason)

    async def _send_probe(self, askers: list[None]) -> list[Acked]:
        (ack,) = await self.ask([self.put_op(PROBE_PATH, PROBE_PATH, b"", ANY)])
        if isinstance(ack, Acked):
            return [ack] * len(askers)
        assert isinstance(ack, Unavailable), "a probe expects nothing"
        raise ack

    async def _send(self, ops: list[WriteOp]) -> list[Answer]:
        """Tries until every operation has its answer, or its time is up."""
        answers: dict[WriteOp, Answer] = {}
        failure = CallFailed(Effect.NONE, "it waited too long for its turn")
        while left := [op for op in ops if op not in answers]:
            if late := self._late(left, failure):
                answers.update(late)
                continue
            try:
                answers.update(await self._try(left))
            except CallFailed as error:
                failure = error
                answers.update(self._after(left, failure))
                await self._shards.settle()
        return [answers[op] for op in ops]

    def _late(self, ops: list[WriteOp], failure: CallFailed) -> dict[WriteOp, Answer]:
        now = asyncio.get_running_loop().time()
        return {op: self._given_up(op, failure) for op in ops if op.deadline_s <= now}

    def _given_up(self, op: WriteOp, failure: CallFailed) -> Answer:
        if op.in_doubt:
            return uncertain(op.request.key, failure)
        error = for_caller(self._where, failure)
        return error if isinstance(error, Unavailable) else Unavailable(str(error))

    def _after(self, ops: list[WriteOp], failure: CallFailed) -> dict[WriteOp, Answer]:
        """Who gets no other try: all if the node refuses for good; in doubt, what must not be done twice."""
        if failure.effect is Effect.REFUSED:
            return {op: self._given_up(op, failure) for op in ops}
        if failure.effect is Effect.NONE:
            return {}
        for op in ops:
            op.in_doubt = True
        return {op: uncertain(op.request.key, failure) for op in ops if isinstance(op, DeleteOp) and not op.repeatable}

    async def _try(self, ops: list[WriteOp]) -> dict[WriteOp, Answer]:
        timeout_s = self._timeout_s(ops)
        address = await self._shards.leader_of(self._shard, timeout_s)
        sent = [op for op in ops if op.repeatable or not op.in_doubt]
        not_sent = len(sent) < len(ops)
        response = await self._nodes[address].write(self._request(sent, probe=not_sent), timeout_s)
        answers = _answers(sent, response, address)
        unclear = [op for op in ops if op not in answers]
        return answers | await self._look(unclear, address)

    async def _look(self, ops: Sequence[WriteOp], address: str) -> dict[WriteOp, Answer]:
        """Reads what is unclear on the node that has just acknowledged a write."""
        if not ops:
            return {}
        gets = [pb.GetRequest(key=op.request.key) for op in ops]
        try:
            there = await self._nodes[address].read(self._shard, gets, self._settings.request_timeout_ms / 1000)
        except CallFailed as failure:
            return {op: uncertain(op.request.key, failure) for op in ops}
        return {op: resolved(op, record, address) for op, record in zip(ops, there, strict=True)}

    def _request(self, ops: list[WriteOp], *, probe: bool) -> pb.WriteRequest:
        puts = [op.request for op in ops if isinstance(op, PutOp)]
        if probe:
            puts.append(pb.PutRequest(key=PROBE_PATH, partition_key=PROBE_PATH))
        deletes = [op.request for op in ops if isinstance(op, DeleteOp)]
        return pb.WriteRequest(shard=self._shard, puts=puts, deletes=deletes)

    def _timeout_s(self, ops: list[WriteOp]) -> float:
        left_s = max(op.deadline_s for op in ops) - asyncio.get_running_loop().time()
        return max(0.05, min(left_s, self._settings.request_timeout_ms / 1000))


def _answers(ops: list[WriteOp], response: pb.WriteResponse, address: str) -> dict[WriteOp, Answer]:
    """Those that need no look. A probe at the end of the puts has no operation and no answer."""
    answers: dict[WriteOp, Answer] = {}
    for put, put_response in zip((op for op in ops if isinstance(op, PutOp)), response.puts, strict=False):
        if (answer := put_answer(put, put_response, address)) is not None:
            answers[put] = answer
    for delete, delete_response in zip((op for op in ops if isinstance(op, DeleteOp)), response.deletes, strict=True):
        if (answer := delete_answer(delete_response)) is not None:
            answers[delete] = answer
    return answers
