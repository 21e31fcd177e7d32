"""Scenarios of transaction requests at every version, for test_handlers.py, and a transactional producer for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tests.harness.kafka.kafka_handlers import Serving

from lakestream.records.batch import RecordBatch, is_commit, split
from lakestream.testing.batches import make_batch, records_of

Scenario = Callable[[Serving, int], Awaitable[None]]

INIT, ADD_PARTITIONS, ADD_OFFSETS, END, MARKERS, COMMIT_OFFSETS, DESCRIBE, LIST = 22, 24, 25, 26, 27, 28, 65, 66
PRODUCE, FETCH, OFFSET_FETCH, FIND = 0, 1, 9, 10
UNKNOWN_TOPIC, NOT_AVAILABLE, NOT_COORDINATOR, ILLEGAL_GENERATION, INVALID_REQUEST, POLICY_VIOLATION = (
    3,
    15,
    16,
    22,
    42,
    44,
)
INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, INVALID_TIMEOUT, CONCURRENT = 47, 48, 49, 50, 51
NO_ID, NOT_ATTEMPTED, UNSTABLE, FENCED, ID_NOT_FOUND, ABORTABLE, BAD_PATTERN = 53, 55, 88, 90, 105, 120, 128
WAIT_S = 5


class Producer:
    """A transactional producer of the older protocol, or of the newer one with `implicit`."""

    def __init__(self, serving: Serving, transactional_id: str = "x", *, implicit: bool = False) -> None:
        self.serving = serving
        self.transactional_id = transactional_id
        self.implicit = implicit
        self.id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, version: int = 5, timeout_ms: int = 60_000, *, resumes: bool = False) -> int:
        """Returns the error code. Retries on CONCURRENT_TRANSACTIONS."""
        body = {"transactional_id": self.transactional_id, "transaction_timeout": timeout_ms}
        if resumes:
            body |= {"producer_id": self.id, "producer_epoch": self.epoch}
        async with asyncio.timeout(WAIT_S):
            response = await self.serving.request(INIT, version, body)
            while response.error_code == CONCURRENT:
                await asyncio.sleep(0.01)
                response = await self.serving.request(INIT, version, body)
        if response.error_code == 0:
            self._set_identity(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    def _set_identity(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.id, self.epoch):
            self.id, self.epoch = producer_id, epoch
            self.sequences.clear()

    async def add(self, *numbers: int, topic: str = "t", version: int = 3, verify: bool = False) -> list[int]:
        topics = [{"name": topic, "partitions": list(numbers)}]
        transaction = {
            "transactional_id": self.transactional_id,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "topics": topics,
            "verify_only": verify,
        }
        body = {f"v3_and_below_{name}": value for name, value in transaction.items()} | {"transactions": [transaction]}
        response = await self.serving.request(ADD_PARTITIONS, version, body)
        if version >= 4:
            (response,) = response.results_by_transaction
            results = response.topic_results
        else:
            results = response.results_by_topic_v3_and_below
        return [int(one.partition_error_code) for topic in results for one in topic.results_by_partition]

    async def send(self, *values: str, partition: int = 0, topic: str = "t", version: int | None = None) -> int:
        """Sends one batch, and returns the error code."""
        version = (12 if self.implicit else 11) if version is None else version
        records = self.batch(*values, partition=partition, topic=topic)
        code = await self.send_batch(records, partition, topic, version)
        if code == 0:
            self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + len(values)
        return code

    async def send_batch(self, records: bytes, partition: int = 0, topic: str = "t", version: int = 11) -> int:
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        body = {"transactional_id": self.transactional_id, "acks": -1, "timeout": 5000, "topic_data": data}
        response = await self.serving.request(PRODUCE, version, body)
        return int(response.responses[0].partition_responses[0].error_code)

    def batch(self, *values: str, partition: int = 0, topic: str = "t") -> bytes:
        return make_batch(
            [value.encode() for value in values],
            timestamp_ms=self.serving.world.clock.now_ms(),
            producer_id=self.id,
            epoch=self.epoch,
            sequence=self.sequences.get((topic, partition), 0),
            transactional=True,
        )

    async def end(self, commit: bool = True, version: int | None = None) -> int:
        version = (5 if self.implicit else 4) if version is None else version
        response = await self.serving.request(END, version, self.identity() | {"committed": commit})
        if response.error_code == 0 and version >= 5:
            self._set_identity(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    async def add_group(self, group: str = "g", version: int = 4) -> int:
        return int((await self.serving.request(ADD_OFFSETS, version, self.identity() | {"group_id": group})).error_code)

    async def commit_offset(
        self, offset: int, number: int = 0, group: str = "g", version: int | None = None, **member: Any
    ) -> int:
        version = (5 if self.implicit else 4) if version is None else version
        parts = [{"partition_index": number, "committed_offset": offset, "committed_metadata": "m"}]
        body = self.identity() | {"group_id": group, "topics": [{"name": "t", "partitions": parts}]} | member
        response = await self.serving.request(COMMIT_OFFSETS, version, body)
        return int(response.topics[0].partitions[0].error_code)

    def identity(self) -> dict[str, Any]:
        return {"transactional_id": self.transactional_id, "producer_id": self.id, "producer_epoch": self.epoch}


async def ready(serving: Serving, transactional_id: str = "x", *, implicit: bool = False) -> Producer:
    producer = Producer(serving, transactional_id, implicit=implicit)
    assert await producer.init() == 0
    return producer


async def read(serving: Serving, partition: int = 0, *, committed: bool = True, topic: str = "t") -> list[str]:
    """Fetches all records as a consumer does. Removes aborted records if `committed`."""
    batches: list[RecordBatch] = []
    aborted: list[Any] = []
    while True:
        offset = batches[-1].base_offset + batches[-1].record_count if batches else 0
        partitions = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
        body: dict[str, Any] = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
        body |= {"isolation_level": int(committed), "topics": [{"topic": topic, "partitions": partitions}]}
        response = await serving.request(FETCH, 11, body)
        (fetched,) = response.responses[0].partitions
        assert fetched.error_code == 0
        if not fetched.records:
            return [value.decode() for value in visible(batches, aborted if committed else ())]
        batches += [RecordBatch.parse(data) for data in split(fetched.records, "response")]
        aborted += fetched.aborted_transactions or ()


def visible(batches: Iterable[RecordBatch], aborted: Iterable[Any]) -> list[bytes]:
    aborted_starts = {(one.producer_id, one.first_offset) for one in aborted}
    hidden: set[int] = set()
    values = []
    for batch in batches:
        if batch.is_control:
            if not is_commit(batch):
                hidden.discard(batch.producer_id)
            continue
        if batch.is_transactional and (batch.producer_id, batch.base_offset) in aborted_starts:
            hidden.add(batch.producer_id)
        if batch.producer_id not in hidden or not batch.is_transactional:
            values += [record.value or b"" for record in records_of(batch)]
    return values


async def until_read(serving: Serving, *values: str, partition: int = 0) -> None:
    """Waits until exactly these records are visible: markers are written after the response to EndTxn."""
    records: list[str] = []
    async with asyncio.timeout(WAIT_S):
        while (records := await read(serving, partition)) != list(values):
            assert len(records) <= len(values), records
            await asyncio.sleep(0.005)


async def until_stable(serving: Serving, number: int, offset: int) -> None:
    partition = await serving.log_of("t", number)
    stable = -1
    async with asyncio.timeout(WAIT_S):
        while stable != offset:
            await asyncio.sleep(0.005)
            stable = (await serving.services.log.bounds(partition)).stable


async def init_producer_id(serving: Serving, version: int) -> None:
    idempotent = await serving.request(INIT, version, {"transactional_id": None, "transaction_timeout": 1000})
    assert (idempotent.error_code, idempotent.producer_epoch) == (0, 0)
    other = await serving.request(INIT, version, {"transactional_id": None, "transaction_timeout": 1000})
    assert 0 <= idempotent.producer_id != other.producer_id
    producer = Producer(serving)
    assert await producer.init(version) == 0
    assert (producer.id not in (idempotent.producer_id, other.producer_id), producer.epoch) == (True, 0)
    assert await producer.init(version) == 0
    assert producer.epoch == 1
    for timeout_ms in (0, -1, 15 * 60 * 1000 + 1):
        assert await producer.init(version, timeout_ms) == INVALID_TIMEOUT
    for name in ("", "x" * 1001):
        assert await Producer(serving, name).init(version) == INVALID_REQUEST
    if version >= 3:
        assert await producer.init(version, resumes=True) == 0
        assert producer.epoch == 2
        producer.epoch = 0
        assert await producer.init(version, resumes=True) == (FENCED if version >= 4 else INVALID_EPOCH)


async def add_partitions(serving: Serving, version: int) -> None:
    await serving.topic()
    producer = await ready(serving)
    assert await producer.add(0, 1, version=version) == [0, 0]
    assert await producer.add(1, version=version) == [0]
    assert await producer.add(0, 7, version=version) == [NOT_ATTEMPTED, UNKNOWN_TOPIC]
    if version >= 4:
        assert await producer.add(0, 1, version=version, verify=True) == [0, 0]
        assert await producer.end() == 0
        assert await producer.add(0, version=version, verify=True) == [ABORTABLE]
    producer.epoch += 1
    assert await producer.add(0, version=version) == [FENCED if version >= 2 else INVALID_EPOCH]
    producer.id += 1
    assert await producer.add(0, version=version) == [INVALID_MAPPING]
    assert await Producer(serving, "unknown").add(0, version=version) == [INVALID_MAPPING]
    assert await Producer(serving, "").add(0, version=version) == [INVALID_REQUEST]


async def add_offsets(serving: Serving, version: int) -> None:
    producer = await ready(serving)
    assert await producer.add_group(version=version) == 0
    assert await producer.add_group(version=version) == 0
    assert await producer.add_group("", version=version) == 24
    producer.epoch += 1
    assert await producer.add_group(version=version) == (FENCED if version >= 2 else INVALID_EPOCH)


async def end(serving: Serving, version: int) -> None:
    await serving.topic()
    producer = await ready(serving, implicit=version >= 5)
    if not producer.implicit:
        await producer.add(0)
    assert await producer.send("a") == 0
    before = producer.epoch
    assert await producer.end(version=version) == 0
    assert producer.epoch == before + (version >= 5)
    await until_read(serving, "a")
    if version < 5:
        assert await producer.end(version=version) == 0
        assert await producer.end(False, version) == INVALID_STATE
    else:
        assert await producer.end(False, version) == 0, "an abort without a transaction succeeds"
        assert await producer.end(True, version) == INVALID_STATE
    producer.epoch += 1
    assert await producer.end(version=version) == (FENCED if version >= 2 else INVALID_EPOCH)
    producer.id += 1
    assert await producer.end(version=version) == INVALID_MAPPING


async def write_markers(serving: Serving, version: int) -> None:
    """WriteTxnMarkers for one partition aborts the whole transaction."""
    await serving.topic()
    producer = await ready(serving)
    await producer.add(0, 1)
    assert await producer.send("a") == await producer.send("b", partition=1) == 0
    marker: dict[str, Any] = {"producer_id": producer.id, "producer_epoch": producer.epoch, "transaction_result": True}
    marker |= {"topics": [{"name": "t", "partition_indexes": [0, 9]}], "coordinator_epoch": 0, "transaction_version": 0}

    async def send(**changes: Any) -> list[int]:
        response = await serving.request(MARKERS, version, {"markers": [marker | changes]})
        (one,) = response.markers
        return [int(part.error_code) for topic in one.topics for part in topic.partitions]

    assert await send() == [INVALID_STATE, UNKNOWN_TOPIC]
    assert await send(producer_id=12345, transaction_result=False) == [0, UNKNOWN_TOPIC]
    assert await send(transaction_result=False) == [0, UNKNOWN_TOPIC]
    for number in (0, 1):
        await until_stable(serving, number, 2)
        assert await read(serving, number) == []
    assert await producer.end() == FENCED


async def commit_offsets(serving: Serving, version: int) -> None:
    await serving.topic()
    producer = await ready(serving, implicit=version >= 5)
    if not producer.implicit:
        assert await producer.commit_offset(5, version=version) == (ABORTABLE if version >= 4 else INVALID_STATE)
        assert await producer.add_group() == 0
    assert await producer.commit_offset(5, version=version) == 0
    assert await producer.commit_offset(5, 9, version=version) == UNKNOWN_TOPIC
    assert await producer.commit_offset(5, group="x" * 1001, version=version) == 24
    if version >= 3:
        assert await producer.commit_offset(6, version=version, member_id="me", generation_id=3) in (25, 22)
    assert await offset(serving) == (-1, 0)
    assert await offset(serving, stable=True) == (-1, UNSTABLE)
    producer.epoch += 1
    assert await producer.commit_offset(7, version=version) == INVALID_EPOCH
    producer.epoch -= 1
    assert await producer.end() == 0
    await until_offset(serving, 5)


async def offset(serving: Serving, *, stable: bool = False, group: str = "g", number: int = 0) -> tuple[int, int]:
    """Returns the committed offset and the error code."""
    topics = [{"name": "t", "partition_indexes": [number]}]
    body = {"group_id": group, "topics": topics, "require_stable": stable}
    response = await serving.request(OFFSET_FETCH, 7, body)
    assert response.error_code == 0
    (part,) = response.topics[0].partitions
    return int(part.committed_offset), int(part.error_code)


async def until_offset(serving: Serving, expected: int, **partition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while (current := await offset(serving, stable=True, **partition)) != (expected, 0):
            assert current[1] == UNSTABLE or current[0] == -1, current
            await asyncio.sleep(0.005)


async def describe(serving: Serving, version: int) -> None:
    await serving.topic()
    producer = await ready(serving)
    await producer.add(1)
    response = await serving.request(DESCRIBE, version, {"transactional_ids": ["x", ""]})
    ongoing, invalid = response.transaction_states
    assert (ongoing.error_code, ongoing.transaction_state, ongoing.producer_id) == (0, "Ongoing", producer.id)
    assert [(topic.topic, topic.partitions) for topic in ongoing.topics] == [("t", (1,))]
    assert invalid.error_code == INVALID_REQUEST


async def list_all(serving: Serving, version: int) -> None:
    await serving.topic()
    first, second = await ready(serving), await ready(serving, "other")
    await first.add(0)

    async def listed(**filters: Any) -> dict[str, str]:
        response = await serving.request(LIST, version, {"state_filters": [], "producer_id_filters": [], **filters})
        assert response.error_code == 0
        assert response.unknown_state_filters == tuple(s for s in filters.get("state_filters", ()) if s == "Nothing")
        return {one.transactional_id: one.transaction_state for one in response.transaction_states}

    all_ids = {"x": "Ongoing", "other": "Empty"}
    assert await listed() == all_ids
    assert await listed(state_filters=["Ongoing", "Nothing"]) == {"x": "Ongoing"}
    assert await listed(producer_id_filters=[second.id]) == {"other": "Empty"}
    serving.world.clock.ms += 1000
    assert await listed(duration_filter=500) == ({"x": "Ongoing"} if version >= 1 else all_ids)
    assert await listed(transactional_id_pattern="o.*") == ({"other": "Empty"} if version >= 2 else all_ids)
    if version >= 2:
        bad = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": "["}
        assert (await serving.request(LIST, version, bad)).error_code == BAD_PATTERN


SCENARIOS: dict[int, Scenario] = {
    INIT: init_producer_id,
    ADD_PARTITIONS: add_partitions,
    ADD_OFFSETS: add_offsets,
    END: end,
    MARKERS: write_markers,
    COMMIT_OFFSETS: commit_offsets,
    DESCRIBE: describe,
    LIST: list_all,
}
