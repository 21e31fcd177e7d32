"""Tests of Produce: every record of a batch is validated before the log receives the batch."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import NOW, World
from tests.harness.table.reference_codec import CODECS, Record, batch_of, framed

from lakestream.coordination.validation import record_validator
from lakestream.coordination.validation.record_validator import RecordValidator
from lakestream.model import MiB
from lakestream.protocol.kafka.network.limits import ServerSettings
from lakestream.protocol.kafka.network.server import KafkaServer
from lakestream.protocol.kafka.wire import codec as wire
from lakestream.records.compression import compressed

INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP = 87, 2, 10, 32
ONE = batch_of([Record(0, NOW, 0, b"k", b"v")])
THREE = batch_of([Record(n, NOW, 0, b"k", b"v") for n in range(3)])


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    yield serving
    await serving.close()
    await world.close()


def good(count: int = 1, codec: str = "none", time: int = NOW) -> bytes:
    return batch_of([Record(n, time, 0, b"k", b"v") for n in range(count)], codec)


INVALID: dict[str, tuple[bytes, int, str]] = {
    "three records of 0xff": (framed(b"\xff" * 50, 3), INVALID_RECORD, "record 0 of the batch is invalid"),
    "count 3, one record": (framed(ONE[61:], 3), INVALID_RECORD, "declares more records than its bytes can hold"),
    "count 1, three records": (framed(THREE[61:], 1), INVALID_RECORD, "bytes are left after the last record"),
    "count 2^30, one record": (framed(ONE[61:], 2**30), INVALID_RECORD, "declares more records"),
    "not zstd": (framed(b"not zstd", 1, attributes=4), INVALID_RECORD, "announces zstd, but its records cannot be"),
    "decompression bomb": (
        framed(compressed(bytes(300 * MiB), "zstd"), 1, attributes=4),
        MESSAGE_TOO_LARGE,
        "more than 268435456 bytes of records after decompression",
    ),
    "damaged": (ONE[:-1] + b"?", CORRUPT_MESSAGE, "has checksum"),
}


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("policy", ["delete", "compact"])
async def test_batch_is_rejected_and_uses_no_offset_when_it_is_invalid(
    serving: Serving, name: str, policy: str
) -> None:
    await serving.topic(cleanup_policy=policy)
    data, code, reason = INVALID[name]
    assert (await serving.send("t", good())).base_offset == 0
    rejected = await serving.send("t", data)
    assert (rejected.error_code, rejected.base_offset) == (code, -1)
    assert reason in rejected.error_message
    assert (await serving.send("t", good())).base_offset == 1
    assert await serving.offset("t", -1) == 2


@pytest.mark.parametrize("codec", CODECS)
async def test_response_lists_each_invalid_record(serving: Serving, codec: str) -> None:
    await serving.topic(cleanup_policy="compact")
    keys = [b"a", b"b", None, b"d", None]
    rejected = await serving.send("t", batch_of([Record(n, NOW, 0, key, b"v") for n, key in enumerate(keys)], codec))
    assert (rejected.error_code, rejected.base_offset) == (INVALID_RECORD, -1)
    assert rejected.error_message.startswith("Compacted topic cannot accept message without key: record 2 of the batch")
    assert [error.batch_index for error in rejected.record_errors] == [2, 4]
    assert await serving.offset("t", -1) == 0


async def test_other_batches_of_a_request_are_stored_when_one_batch_is_invalid(serving: Serving) -> None:
    await serving.topic(partitions=3)
    batches = [good(2, "zstd"), framed(b"not zstd", 1, attributes=4), good(3, "gzip")]
    body: dict[str, Any] = {
        "acks": -1,
        "timeout": 5000,
        "topic_data": [
            {"name": "t", "partition_data": [{"index": n, "records": data} for n, data in enumerate(batches)]}
        ],
    }
    response = await serving.request(0, 12, body)
    parts = response.responses[0].partition_responses
    assert [(part.index, part.error_code, part.base_offset) for part in parts] == [
        (0, 0, 0),
        (1, INVALID_RECORD, -1),
        (2, 0, 0),
    ]
    assert [await serving.offset("t", -1, partition=n) for n in range(3)] == [2, 0, 3]


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_batch_is_rejected_when_any_record_is_too_far_in_the_future(serving: Serving, codec: str) -> None:
    """The header of this batch contains only the timestamp of its first record."""
    await serving.topic(message_timestamp_after_max_ms="1000")
    late = NOW + 3_600_000
    body = batch_of([Record(0, NOW, 0, b"k", b"v"), Record(1, late, 0, b"k", b"v")])[61:]
    data = framed(compressed(body, codec), 2, attributes=CODECS.index(codec), base_timestamp=NOW, max_timestamp=NOW)
    rejected = await serving.send("t", data)
    assert (rejected.error_code, rejected.error_message) == (
        INVALID_TIMESTAMP,
        f"timestamp {late} is too far in the future",
    )


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_newest_timestamp_in_the_header_is_corrected_when_it_is_wrong(serving: Serving, codec: str) -> None:
    await serving.topic()
    body = batch_of([Record(0, NOW, 0, b"k", b"v"), Record(1, NOW + 7, 0, b"k", b"v")])[61:]
    for wrong in (NOW, NOW + 500):
        data = framed(
            compressed(body, codec), 2, attributes=CODECS.index(codec), base_timestamp=NOW, max_timestamp=wrong
        )
        assert (await serving.send("t", data)).error_code == 0
    assert await serving.offset("t", NOW + 7) == 1
    assert await serving.offset("t", NOW + 8) == -1


def log_append_time_batch(codec: str, newest: int) -> bytes:
    """Returns a batch of a client with timestamp type LogAppendTime, which only brokers set."""
    body = batch_of([Record(0, NOW, 0, b"k", b"v"), Record(1, NOW + 7, 0, b"k", b"v")], codec)[61:]
    return framed(body, 2, attributes=CODECS.index(codec) | 8, base_timestamp=NOW, max_timestamp=newest)


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_timestamp_type_of_a_client_is_rejected_when_the_broker_sets_timestamps(
    serving: Serving, codec: str
) -> None:
    await serving.topic(message_timestamp_type="LogAppendTime")
    rejected = await serving.send("t", log_append_time_batch(codec, NOW + 7))
    assert rejected.error_code == INVALID_TIMESTAMP
    assert "timestamp type LogAppendTime" in rejected.error_message
    assert (await serving.send("t", good(1, codec))).error_code == 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_timestamp_type_of_a_client_is_corrected_when_clients_set_timestamps(
    serving: Serving, codec: str
) -> None:
    await serving.topic()
    assert (await serving.send("t", log_append_time_batch(codec, NOW + 500))).error_code == 0
    assert await serving.offset("t", NOW + 7) == 1
    assert await serving.offset("t", NOW + 8) == -1
    assert (await serving.send("t", log_append_time_batch(codec, -1))).error_code == INVALID_TIMESTAMP


async def test_requests_keep_their_order_when_some_are_validated_in_a_thread(serving: Serving) -> None:
    await serving.topic()
    codecs = ["zstd", "none", "gzip", "none", "none", "lz4"] * 5
    sent = [serving.send("t", good(1, codec)) for codec in codecs]
    assert [one.base_offset for one in await asyncio.gather(*sent)] == list(range(len(codecs)))


@pytest.mark.parametrize("codec", CODECS)
async def test_requests_with_acks_0_are_appended_when_the_client_closes_the_connection(
    serving: Serving, codec: str
) -> None:
    """A producer with acks=0 waits for no response, so it closes its connection as soon as everything is sent."""
    await serving.topic(partitions=1)
    server = KafkaServer(ServerSettings())
    _, port = await server.bind("127.0.0.1", 0)
    await server.serve(serving.dispatcher.handle)
    topic = {"name": "t", "partition_data": [{"index": 0, "records": good(100, codec)}]}
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(3):
            writer.write(wire.write_request(0, 12, number, "t", {"acks": 0, "timeout": 5000, "topic_data": [topic]}))
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.1)
    await server.stop()
    assert await serving.offset("t", -1) == 5 * 3 * 100
    assert server.bytes_in_flight == 0


@pytest.mark.parametrize("settings", [{}, {"message_timestamp_type": "LogAppendTime"}])
async def test_only_large_and_compressed_batches_are_validated_in_a_thread(
    serving: Serving, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    original = RecordValidator.in_thread

    async def recorded(self: RecordValidator, work: Any) -> Any:
        calls.append(work.__qualname__ if hasattr(work, "__qualname__") else "other")
        return await original(self, work)

    monkeypatch.setattr(RecordValidator, "in_thread", recorded)
    await serving.topic(**settings)
    large = batch_of([Record(0, NOW, 0, b"k", bytes(record_validator.BATCH_INLINE_BYTES_MAX))])
    for data, in_thread in ((good(), 0), (large, 1), (good(1, "lz4"), 1), (good(3), 0)):
        calls.clear()
        assert (await serving.send("t", data)).error_code == 0
        assert calls.count("_Part.validated") == in_thread
