"""Batches with invalid records, sent to a real broker as raw bytes."""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiokafka  # type: ignore[import-untyped]
from tests.harness.table.reference_codec import CODECS, Record, batch_of, framed

from lakestream.model import MiB
from lakestream.protocol.kafka.wire import codec as wire
from lakestream.records.compression import compressed
from lakestream.testing.brokers import BrokerProcess, brokers

INVALID_RECORD, MESSAGE_TOO_LARGE = 87, 10
GROWN_BYTES_MAX = 400 * MiB


def valid_batch(number: int, name: str) -> bytes:
    return batch_of([Record(number, int(time.time() * 1000), 0, b"k", f"good {number}".encode())], name)


def invalid_batches() -> list[tuple[bytes, int]]:
    record = batch_of([Record(0, 0, 0, b"k", b"v")])[61:]
    batches = [(framed(b"not compressed", 1, attributes=number), INVALID_RECORD) for number in range(1, 5)]
    for number, name in enumerate(CODECS):
        for body, count in ((b"\xff" * 50, 3), (record, 3), (record * 3, 1), (record, 2**30)):
            batches.append((framed(compressed(body, name), count, attributes=number), INVALID_RECORD))
    bomb = framed(compressed(bytes(300 * MiB), "zstd"), 1, attributes=4)
    return [*batches, (bomb, MESSAGE_TOO_LARGE)]


async def produce(broker: BrokerProcess, *batches: bytes) -> list[tuple[int, str | None]]:
    """Sends each batch in a separate request, all before the first response. Returns code and message."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    outcomes = []
    try:
        for number, batch in enumerate(batches):
            topic = {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
            body: dict[str, Any] = {"acks": -1, "timeout": 10_000, "topic_data": [topic]}
            writer.write(wire.write_request(0, 9, number, "test", body))
        for _ in batches:
            size = int.from_bytes(await reader.readexactly(4), "big")
            response = wire.parse_response(0, 9, await reader.readexactly(size)).body
            partition = response.responses[0].partition_responses[0]
            outcomes.append((int(partition.error_code), partition.error_message))
    finally:
        writer.close()
    return outcomes


async def test_invalid_batches_are_rejected_and_valid_ones_between_them_stay_in_order(tmp_path: Path) -> None:
    async with brokers(tmp_path) as cluster:
        broker = cluster[0]
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.address)
        await producer.start()
        await producer.send_and_wait("t", b"first", partition=0)
        await producer.stop()
        bad = invalid_batches()
        mixed = [
            batch
            for number, (rejected, _) in enumerate(bad)
            for batch in (valid_batch(number, CODECS[number % 5]), rejected)
        ]
        before = broker.rss_bytes()
        outcomes = await asyncio.wait_for(produce(broker, *mixed), 60)
        assert [code for code, _ in outcomes[0::2]] == [0] * len(bad)
        assert [code for code, _ in outcomes[1::2]] == [code for _, code in bad]
        assert all(message for _, message in outcomes[1::2]), "each rejected batch has a reason"
        assert broker.rss_bytes() - before < GROWN_BYTES_MAX
        consumer = aiokafka.AIOKafkaConsumer("t", bootstrap_servers=broker.address, auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with asyncio.timeout(30):
                records = [await consumer.getone() for _ in range(len(bad) + 1)]
        finally:
            await consumer.stop()
        assert [(record.offset, record.value) for record in records] == [
            (0, b"first"),
            *((number + 1, f"good {number}".encode()) for number in range(len(bad))),
        ]
