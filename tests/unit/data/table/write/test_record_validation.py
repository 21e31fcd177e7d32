"""Batches that a producer may send: every record is validated, whatever the codec."""

import os
import resource
import struct
from pathlib import Path

import aiokafka.codec  # type: ignore[import-untyped]
import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.table.reference_codec import CODECS, Record, batch_of, framed, varint
from tests.unit.data.table.write.test_batch_decoder import BAD_RECORDS, many

from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.record_validation import validate
from lakestream.errors import BatchTooLarge, Corrupt, InvalidRecords
from lakestream.model import MiB
from lakestream.records.batch import RecordBatch, Timestamps
from lakestream.records.compression import compressed

NOW = 1_700_000_000_000
ONE = batch_of([Record(0, NOW, 0, b"key", b"value", ((b"h", None),))])[61:]
THREE = batch_of([Record(n, NOW, 0, b"key", b"value") for n in range(3)])[61:]


def validated(data: bytes, keys_needed: bool = False) -> Timestamps:
    return validate(RecordBatch.parse(data), keys_needed=keys_needed)


def coded(body: bytes, count: int, codec: str, **head: int) -> bytes:
    return framed(compressed(body, codec), count, attributes=CODECS.index(codec), **head)


@pytest.mark.parametrize("codec", CODECS)
def test_timestamps_of_valid_records_are_returned(codec: str) -> None:
    times = [NOW + 5, NOW - 3, NOW + 9]
    records = [Record(n, time, 0, b"k", os.urandom(500)) for n, time in enumerate(times)]
    assert validated(batch_of(records, codec)) == (NOW - 3, NOW + 9)
    assert validated(batch_of(many(5000), codec)) == (NOW, NOW + 4999)


def test_timestamps_of_records_are_returned_though_the_header_has_an_append_time() -> None:
    records = [Record(0, NOW, 1, None, b"v"), Record(1, NOW + 9, 1, None, b"v")]
    assert validated(batch_of(records)) == (NOW, NOW + 9)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reason", BAD_RECORDS)
def test_an_invalid_record_is_rejected_with_its_number_and_reason(reason: str, codec: str) -> None:
    with pytest.raises(InvalidRecords) as error:
        validated(coded(BAD_RECORDS[reason], 1, codec))
    assert error.value.numbers == (0,)
    assert reason in error.value.reasons[0]
    assert str(error.value).startswith("record 0 of the batch is invalid: ")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("body", "count", "number", "reason"),
    [
        (b"\xff" * 50, 3, 0, "invalid record length"),
        (ONE, 3, 0, "the batch declares more records than its bytes can hold"),
        (ONE * 2, 3, 1, "invalid offset delta"),
        (THREE[: len(THREE) // 3 * 2] + b"\0", 3, 2, "invalid timestamp delta"),
        (THREE, 1, 0, "bytes are left after the last record"),
        (ONE, 2**30, 0, "the batch declares more records than its bytes can hold"),
        (b"", 1, 0, "the batch declares more records than its bytes can hold"),
    ],
)
def test_a_count_that_differs_from_the_records_is_rejected(
    body: bytes, count: int, number: int, reason: str, codec: str
) -> None:
    with pytest.raises(InvalidRecords) as error:
        validated(coded(body, count, codec))
    assert error.value.numbers == (number,)
    assert reason in str(error.value)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_batch_is_rejected_when_its_records_are_not_in_its_codec(codec: str) -> None:
    data = framed(b"this is not compressed at all", 1, attributes=CODECS.index(codec))
    with pytest.raises(InvalidRecords, match=f"record batch announces {codec}, but its records cannot be decompressed"):
        validated(data)


LZ4 = compressed(THREE, "lz4")
EMPTY_STORED, EMPTY_COMPRESSED = struct.pack("<I", 1 << 31), b"\1\0\0\0\0"
LZ4_THAT_KAFKA_REJECTS: dict[str, tuple[bytes, str]] = {
    "linked blocks": (bytes(cramjam.lz4.compress(THREE)), "its lz4 frame has flags 0x54"),
    "two frames": (compressed(THREE[:9], "lz4") + compressed(THREE[9:], "lz4"), "frame ends .* bytes before the batch"),
    "a skippable frame first": (struct.pack("<II", 0x184D2A50, 3) + b"abc" + LZ4, "they begin with 0x184d2a50"),
    "a skippable frame last": (LZ4 + struct.pack("<II", 0x184D2A50, 3) + b"abc", "frame ends 11 bytes before"),
    "a dictionary": (bytes.fromhex("04224d18 61 40 01020304 2d") + LZ4[7:], "its lz4 frame has flags 0x61"),
    "reserved bits": (LZ4[:5] + b"\x41" + LZ4[6:], "its lz4 frame has block descriptor 0x41"),
    "an empty stored block": (LZ4[:7] + EMPTY_STORED + LZ4[7:], "its lz4 frame has a block without data"),
    "an empty compressed block": (LZ4[:7] + EMPTY_COMPRESSED + LZ4[7:], "its lz4 frame has a block without data"),
    "very many blocks": (LZ4[:7] + b"\2\0\0\0\x10a" * 9000 + LZ4[7:], "has more than 2081 blocks in 540.. bytes"),
    "no end mark": (LZ4[:-4], "its lz4 frame is truncated"),
    "half of a frame": (LZ4[: len(LZ4) // 2], "its lz4 frame is truncated"),
}


@pytest.mark.parametrize("name", LZ4_THAT_KAFKA_REJECTS)
def test_lz4_frames_that_no_java_client_can_read_are_rejected(name: str) -> None:
    data, reason = LZ4_THAT_KAFKA_REJECTS[name]
    with pytest.raises(InvalidRecords, match=f"cannot be decompressed by Kafka clients: .*{reason}"):
        validated(framed(data, 3, attributes=3))


@pytest.mark.parametrize("name", ["linked blocks", "two frames"])
def test_the_pipeline_reads_lz4_frames_that_an_older_broker_has_stored(name: str) -> None:
    data = framed(LZ4_THAT_KAFKA_REJECTS[name][0], 3, attributes=3)
    assert sum(batch.num_rows for batch in decode([BatchSource.single("here", data, 0)], 0)) == 3


LZ4_OF_CLIENTS = {
    "Java, Lakestream": LZ4,
    "librdkafka": bytes.fromhex(
        "04224d1860408224000000fa041c000000066b65790a76616c7565001c0000020f00c004066b65790a76616c75650000000000"
    ),
    "kafka-python: a content size": bytes.fromhex(
        "04224d1868402d000000000000007624000000fa041c000000066b65790a76616c7565001c0000020f00c004066b65790a76616c75650000000000"
    ),
    "franz-go: a content checksum and blocks of 4 MiB": bytes.fromhex(
        "04224d186440a724000000fa041c000000066b65790a76616c7565001c0000020f00c004066b65790a76616c75650000000000ac3ad835"
    ),
    "aiokafka": aiokafka.codec.lz4_encode(THREE),
    "a checksum of each block": bytes.fromhex(
        "04224d187440bd24000000fa041c000000066b65790a76616c7565001c0000020f00c004066b65790a76616c756500561d74d300000000ac3ad835"
    ),
}


@pytest.mark.parametrize("client", LZ4_OF_CLIENTS)
def test_lz4_frames_of_clients_are_accepted(client: str) -> None:
    frame = LZ4_OF_CLIENTS[client]
    assert validated(framed(frame, 3, attributes=3, base_timestamp=NOW)) == (NOW, NOW)


def test_lz4_frames_of_several_blocks_are_accepted() -> None:
    body = batch_of(many(50_000))[61:]
    for frame in (compressed(body, "lz4"), aiokafka.codec.lz4_encode(body)):
        assert validated(framed(frame, 50_000, attributes=3, base_timestamp=NOW)) == (NOW, NOW + 49_999)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_records_of_more_than_256_mib_are_rejected_in_bounded_memory(codec: str) -> None:
    bomb = coded(bytes(300 * MiB), 1, codec)
    before = resident()
    with pytest.raises(BatchTooLarge, match="more than 268435456 bytes of records after decompression"):
        validated(bomb)
    assert resident() - before < 40 * MiB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("codec", CODECS)
def test_records_without_a_key_are_rejected_where_keys_are_needed(codec: str) -> None:
    def keyed(*keys: bytes | None) -> bytes:
        return batch_of([Record(n, NOW, 0, key, b"v") for n, key in enumerate(keys)], codec)

    assert validated(keyed(b"a", b"", b"c"), keys_needed=True) == (NOW, NOW)
    assert validated(keyed(None), keys_needed=False) == (NOW, NOW)
    with pytest.raises(InvalidRecords, match="Compacted topic cannot accept message without key: record 1 ") as error:
        validated(keyed(b"a", None, b"c", None), keys_needed=True)
    assert error.value.numbers == (1, 3)


def test_only_some_of_very_many_records_without_a_key_are_named() -> None:
    """A batch of a megabyte may have a million: naming them all would stop the event loop for half a second."""
    with pytest.raises(InvalidRecords, match="record 0 of the batch has none: set a key") as error:
        validated(batch_of([Record(n, NOW, 0, None, None) for n in range(20_000)], "zstd"), keys_needed=True)
    assert error.value.numbers == tuple(range(10_000))


@settings(deadline=None, max_examples=300)
@given(
    count=st.integers(1, 5),
    base=st.sampled_from([0, NOW, -(2**63), 2**63 - 1]),
    body=st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda records, at, new, cut: (records[:at] + new + records[at + len(new) :])[: len(records) - cut],
            st.just(THREE),
            st.integers(0, len(THREE)),
            st.binary(max_size=2),
            st.integers(0, 3),
        ),
        st.lists(st.integers(-3, 40).map(varint), max_size=30).map(b"".join),
    ),
)
def test_a_batch_is_valid_exactly_if_the_pipeline_can_read_it(count: int, base: int, body: bytes) -> None:
    data = framed(body, count, base_timestamp=base)
    try:
        rows = sum(batch.num_rows for batch in decode([BatchSource.single("here", data, 0)], 0))
    except Corrupt:
        rows = None
    try:
        validated(data)
        assert rows == count
    except InvalidRecords:
        assert rows is None
