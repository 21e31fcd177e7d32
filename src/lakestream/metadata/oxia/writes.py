"""Writes of one shard: batched, sent to its leader, and retried where that is safe. Resolves unknown outcomes.

Above: store.py.  Below: batching.py, shards.py, connection.py.

A request whose response was lost may have taken effect, now or a little later. Then:

- A conditional put (create, or with an expected version) is retried unchanged: at most one attempt can take effect. If
  the retry conflicts, the record is read on the node that rejected it. Every put has its own client identity, which
  Oxia stores with the record, so a put recognizes its own first attempt. Creates of the log need no other check.
- An unconditional put is never retried: the record is read instead. If it has another identity, the put is Uncertain.
- A delete with a version is retried (versions are never reused). A delete without a version is Uncertain.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata.oxia.batching import Batcher
from lakestream.metadata.oxia.connection import OxiaNodes
from lakestream.metadata.oxia.errors import CallFailed, Effect, for_caller
from lakestream.metadata.oxia.key_ranges import PROBE_PATH
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.store import ABSENT, ANY, Stored


class PutAck(NamedTuple):
    """A put took effect, acknowledged by `address`: reads there are not from a leader that was deposed before."""

    stored: Stored
    modified_ms: int
    address: str
    repeated: bool = False
    """It had more than one attempt."""


class DeleteAck(NamedTuple):
    existed: bool


WriteError: TypeAlias = Conflict | Missing | Unavailable
WriteResult: TypeAlias = PutAck | DeleteAck | WriteError


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


def put_result(op: PutOp, response: pb.PutResponse, address: str) -> WriteResult | None:
    """Returns None if the put conflicts, maybe with its own earlier attempt: the record must be read."""
    path = op.request.key
    match response.status:
        case pb.OK:
            return acked(response.version, address)._replace(repeated=op.in_doubt)
        case pb.SESSION_DOES_NOT_EXIST:
            return Missing(f"{path}: its session has ended: open another")
        case _:
            return None if op.in_doubt else _conflict(path)


def resolved(op: WriteOp, record: pb.GetResponse, address: str) -> WriteResult:
    """Returns the result of a write, from the record that is stored now."""
    return resolved_put(op, record, address) if isinstance(op, PutOp) else resolved_delete(op, record)


def resolved_put(op: PutOp, record: pb.GetResponse, address: str) -> WriteResult:
    path, version = op.request.key, record.version
    if record.status == pb.OK and version.client_identity == op.request.client_identity:
        return acked(version, address)._replace(repeated=True)
    unmodified = record.status == pb.OK and version.modifications_count == 0
    if op.repeatable and op.request.expected_version_id == ABSENT and unmodified:
        # The record was not modified since its creation, so another writer's create caused the conflict.
        return _conflict(path)
    return uncertain(path)


def delete_result(response: pb.DeleteResponse) -> WriteResult | None:
    """Returns None for a conflict, which Oxia also returns if the record does not exist: it must be read."""
    return None if response.status == pb.UNEXPECTED_VERSION_ID else DeleteAck(response.status == pb.OK)


def resolved_delete(op: DeleteOp, record: pb.GetResponse) -> WriteResult:
    if record.status == pb.OK:
        return _conflict(op.request.key)
    # If in doubt, the version no longer exists: most likely it was deleted by the first attempt.
    return DeleteAck(op.in_doubt)


def acked(version: pb.Version, address: str) -> PutAck:
    return PutAck(Stored(version.version_id, version.created_timestamp), version.modified_timestamp, address)


def uncertain(path: str, failure: CallFailed | None = None) -> Uncertain:
    cause = f" ({failure})" if failure else ""
    return Uncertain(f"{path}: the response was lost and it may have taken effect{cause}: read it before you retry")


def _conflict(path: str) -> Conflict:
    return Conflict(f"{path}: is not at the expected version: read it again")


# Requests to the leader


class OxiaWriter:
    """All writes of one shard by this client, with one request in flight at a time."""

    def __init__(self, shard: int, nodes: OxiaNodes, shards: Shards, settings: OxiaSettings, identity: str) -> None:
        self._shard = shard
        self._nodes = nodes
        self._shards = shards
        self._settings = settings
        self._where = f"metadata store {settings}, shard {shard}"
        self._identities = (f"{identity}-{number:x}" for number in itertools.count())
        self._writes: Batcher[WriteOp, WriteResult] = Batcher(
            self._send,
            size_of=lambda op: op.request.ByteSize(),
            count_max=settings.group_count_max,
            bytes_max=settings.group_bytes_max,
            waiting_max=settings.waiting_count_max,
        )
        self._probes: Batcher[None, PutAck] = Batcher(
            self._send_probe,
            size_of=lambda _: 1,
            count_max=settings.waiting_count_max,
            bytes_max=settings.waiting_count_max,
            waiting_max=settings.waiting_count_max,
        )

    async def execute(self, ops: Sequence[WriteOp]) -> list[WriteResult]:
        return await self._writes.execute(ops)

    async def probe(self) -> PutAck:
        """Writes the probe key, after this call began: the node that acknowledges it leads the shard.

        Calls during a probe share the next one.
        """
        (ack,) = await self._probes.execute([None])
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

    async def _send_probe(self, calls: list[None]) -> list[PutAck]:
        (ack,) = await self.execute([self.put_op(PROBE_PATH, PROBE_PATH, b"", ANY)])
        if isinstance(ack, PutAck):
            return [ack] * len(calls)
        assert isinstance(ack, Unavailable), "a probe is unconditional"
        raise ack

    async def _send(self, ops: list[WriteOp]) -> list[WriteResult]:
        """Retries until every operation has a result, or its deadline has passed."""
        results: dict[WriteOp, WriteResult] = {}
        failure = CallFailed(Effect.NONE, "it waited too long in the queue")
        while pending := [op for op in ops if op not in results]:
            if expired := self._expired(pending, failure):
                results.update(expired)
                continue
            try:
                results.update(await self._attempt(pending))
            except CallFailed as error:
                failure = error
                results.update(self._not_retried(pending, failure))
                await self._shards.refresh()
        return [results[op] for op in ops]

    def _expired(self, ops: list[WriteOp], failure: CallFailed) -> dict[WriteOp, WriteResult]:
        now = asyncio.get_running_loop().time()
        return {op: self._final_error(op, failure) for op in ops if op.deadline_s <= now}

    def _final_error(self, op: WriteOp, failure: CallFailed) -> WriteResult:
        if op.in_doubt:
            return uncertain(op.request.key, failure)
        error = for_caller(self._where, failure)
        return error if isinstance(error, Unavailable) else Unavailable(str(error))

    def _not_retried(self, ops: list[WriteOp], failure: CallFailed) -> dict[WriteOp, WriteResult]:
        """Returns the results of operations that must not be retried.

        These are all after a permanent rejection, and unconditional deletes after an unknown outcome.
        """
        if failure.effect is Effect.REFUSED:
            return {op: self._final_error(op, failure) for op in ops}
        if failure.effect is Effect.NONE:
            return {}
        for op in ops:
            op.in_doubt = True
        return {op: uncertain(op.request.key, failure) for op in ops if isinstance(op, DeleteOp) and not op.repeatable}

    async def _attempt(self, ops: list[WriteOp]) -> dict[WriteOp, WriteResult]:
        timeout_s = self._timeout_s(ops)
        address = await self._shards.leader_of(self._shard, timeout_s)
        sent = [op for op in ops if op.repeatable or not op.in_doubt]
        not_sent = len(sent) < len(ops)
        response = await self._nodes[address].write(self._request(sent, probe=not_sent), timeout_s)
        results = _results(sent, response, address)
        unresolved = [op for op in ops if op not in results]
        return results | await self._resolve(unresolved, address)

    async def _resolve(self, ops: Sequence[WriteOp], address: str) -> dict[WriteOp, WriteResult]:
        """Reads the records of unresolved operations on the node that has just acknowledged a write."""
        if not ops:
            return {}
        gets = [pb.GetRequest(key=op.request.key) for op in ops]
        try:
            records = await self._nodes[address].read(self._shard, gets, self._settings.request_timeout_ms / 1000)
        except CallFailed as failure:
            return {op: uncertain(op.request.key, failure) for op in ops}
        return {op: resolved(op, record, address) for op, record in zip(ops, records, strict=True)}

    def _request(self, ops: list[WriteOp], *, probe: bool) -> pb.WriteRequest:
        puts = [op.request for op in ops if isinstance(op, PutOp)]
        if probe:
            puts.append(pb.PutRequest(key=PROBE_PATH, partition_key=PROBE_PATH))
        deletes = [op.request for op in ops if isinstance(op, DeleteOp)]
        return pb.WriteRequest(shard=self._shard, puts=puts, deletes=deletes)

    def _timeout_s(self, ops: list[WriteOp]) -> float:
        left_s = max(op.deadline_s for op in ops) - asyncio.get_running_loop().time()
        return max(0.05, min(left_s, self._settings.request_timeout_ms / 1000))


def _results(ops: list[WriteOp], response: pb.WriteResponse, address: str) -> dict[WriteOp, WriteResult]:
    """Returns the results that need no read. A probe at the end of the puts has no operation and no result."""
    results: dict[WriteOp, WriteResult] = {}
    for put, put_response in zip((op for op in ops if isinstance(op, PutOp)), response.puts, strict=False):
        if (result := put_result(put, put_response, address)) is not None:
            results[put] = result
    for delete, delete_response in zip((op for op in ops if isinstance(op, DeleteOp)), response.deletes, strict=True):
        if (result := delete_result(delete_response)) is not None:
            results[delete] = result
    return results
