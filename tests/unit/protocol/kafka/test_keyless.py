"""A compacted topic takes no record without a key, compressed or not."""

import struct
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.unit.data.brokers import NOW, World
from tests.unit.protocol.kafka.serving import Serving

from lakestream.batch import CODECS, HEADER_SIZE, RecordBatch, build
from lakestream.compression import compressed
from lakestream.errors import Rejected
from lakestream.protocol.kafka.keyless import keyless
from lakestream.testing.batches import make_batch


def batch_of(*keys: bytes | None, codec: str = "none") -> bytes:
    plain = make_batch([b"value"] * len(keys), keys=keys, timestamp_ms=NOW)
    return rebuilt(compressed(plain[HEADER_SIZE:], codec), len(keys), codec)


def rebuilt(records: bytes, count: int, codec: str = "none") -> bytes:
    return build(
        records,
        count,
        attributes=CODECS.index(codec),
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    yield serving
    await serving.close()
    await world.close()


@pytest.mark.parametrize("codec", CODECS)
def test_the_records_without_a_key_are_found(codec: str) -> None:
    assert keyless(RecordBatch.parse(batch_of(b"a", b"", b"c", codec=codec))) == []
    assert keyless(RecordBatch.parse(batch_of(b"a", None, b"c", None, codec=codec))) == [1, 3]


@pytest.mark.parametrize("records", [b"", b"\x02", b"\xff" * 12, struct.pack("B", 200), b"\x0e\0\0"])
def test_records_that_cannot_be_read_are_refused(records: bytes) -> None:
    with pytest.raises(Rejected):
        keyless(RecordBatch.parse(rebuilt(records, 1)))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
async def test_a_compacted_topic_refuses_it(serving: Serving, codec: str, policy: str) -> None:
    await serving.topic(cleanup_policy=policy)
    assert (await serving.send("t", batch_of(b"a", b"b", codec=codec))).error_code == 0
    refused = await serving.send("t", batch_of(b"a", b"b", None, b"d", None, codec=codec))
    assert (refused.error_code, refused.base_offset) == (87, -1)
    assert refused.error_message == "a record in a compacted topic needs a key, and record 2 of the batch has none"
    assert [error.batch_index for error in refused.record_errors] == [2, 4]
    assert await serving.offset("t", -1) == 2


async def test_damaged_records_are_refused_too(serving: Serving) -> None:
    await serving.topic(cleanup_policy="compact")
    assert (await serving.send("t", rebuilt(b"not gzip", 1, "gzip"))).error_code == 87


async def test_other_topics_take_it(serving: Serving) -> None:
    await serving.topic()
    assert (await serving.send("t", batch_of(None))).error_code == 0
