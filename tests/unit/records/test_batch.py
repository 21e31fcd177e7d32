import struct

import pytest
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]
from crc32c import crc32c

from lakestream.errors import Corrupt, Rejected
from lakestream.records.batch import RecordBatch, control_batch, gap, is_commit, rebased, split, verify
from lakestream.records.file_region import as_bytes
from lakestream.testing.batches import make_batch, records_of

IDEMPOTENT = make_batch([b"a", b"b", b"c"], producer_id=7, epoch=2, sequence=40)

FROM_AIOKAFKA = bytes.fromhex(
    "00000000000000000000005cffffffff02322075be0010000000020000018bcfe568000000018bcfe5680a000000000000123400030000004d"
    "0000000314000000086b657930010016000a02010a76616c75650026001404086b6579320a76616c75650202680276"
)
"""Three records of a transactional producer, built by aiokafka 0.14's C encoder; the last one has a header."""


def patched(data: bytes, at: int, layout: str, value: int, *, valid_checksum: bool = True) -> bytes:
    """Returns the batch with another value in a header field, and by default with the checksum of its new bytes."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    if valid_checksum:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_header_fields_are_parsed() -> None:
    batch = RecordBatch.parse(IDEMPOTENT)
    assert batch.data is IDEMPOTENT
    assert batch.size == len(IDEMPOTENT)
    assert (batch.record_count, batch.last_offset_delta) == (3, 2)
    assert (batch.producer_id, batch.producer_epoch) == (7, 2)
    assert (batch.base_sequence, batch.last_sequence) == (40, 42)
    assert (batch.base_timestamp, batch.max_timestamp) == (1_700_000_000_000, 1_700_000_000_000)
    assert (batch.compression, batch.timestamp_type) == ("none", 0)
    assert (batch.is_transactional, batch.is_control, batch.has_producer) == (False, False, True)
    assert "records=3" in repr(batch)


def test_batch_of_aiokafka_is_parsed() -> None:
    batch = RecordBatch.parse(FROM_AIOKAFKA)
    assert (batch.record_count, batch.is_transactional, batch.compression) == (3, True, "none")
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (4660, 3, 77, 79)
    assert (batch.base_timestamp, batch.max_timestamp) == (1_700_000_000_000, 1_700_000_000_010)
    assert records_of(batch) == [(0, b"key0", None), (1, None, b"value"), (2, b"key2", b"value")]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_type_is_parsed(wrap: type) -> None:
    assert RecordBatch.parse(wrap(IDEMPOTENT)).record_count == 3


def test_batch_without_producer_has_no_sequence() -> None:
    batch = RecordBatch.parse(make_batch([b"a", b"b"]))
    assert (batch.producer_id, batch.producer_epoch) == (-1, -1)
    assert (batch.base_sequence, batch.last_sequence, batch.has_producer) == (-1, -1, False)


def test_attributes_are_parsed() -> None:
    transactional = RecordBatch.parse(make_batch([b"a"], producer_id=1, epoch=0, sequence=0, transactional=True))
    assert (transactional.is_transactional, transactional.is_control) == (True, False)
    stamped = RecordBatch.parse(patched(IDEMPOTENT, 21, ">h", 0x08 | 4))
    assert (stamped.compression, stamped.timestamp_type) == ("zstd", 1)


@pytest.mark.parametrize(("first", "last"), [(0, 2), (2**31 - 3, 2**31 - 1), (2**31 - 2, 0), (2**31 - 1, 1)], ids=str)
def test_sequences_wrap_after_the_largest(first: int, last: int) -> None:
    batch = RecordBatch.parse(make_batch([b"a", b"b", b"c"], producer_id=1, epoch=0, sequence=first))
    assert batch.last_sequence == last


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (IDEMPOTENT[:60], "truncated"),
        (IDEMPOTENT[:-1], "truncated"),
        (IDEMPOTENT + b"x", "exactly one"),
        (IDEMPOTENT + IDEMPOTENT, "exactly one"),
        (patched(IDEMPOTENT, 8, ">i", -1), "length is 11 bytes"),
        (patched(IDEMPOTENT, 8, ">i", 2**31 - 1), "truncated"),
        (patched(IDEMPOTENT, 16, ">b", 1), "magic 1"),
        (patched(IDEMPOTENT, 16, ">b", 3), "magic 3"),
        (patched(IDEMPOTENT, 57, ">i", 0), "has 0 records"),
        (patched(IDEMPOTENT, 57, ">i", -1), "has -1 records"),
        (patched(IDEMPOTENT, 57, ">i", 4), "has 4 records"),
        (patched(IDEMPOTENT, 23, ">i", 5), "delta is 5"),
        (patched(IDEMPOTENT, 21, ">h", 5), "compression 5"),
        (patched(IDEMPOTENT, 43, ">q", -2), "producer id -2"),
        (patched(IDEMPOTENT, 51, ">h", -1), "epoch -1"),
        (patched(IDEMPOTENT, 53, ">i", -1), "sequence -1"),
        (patched(make_batch([b"a"]), 21, ">h", 0x10), "producer id -1"),
        (patched(make_batch([b"a"]), 21, ">h", 0x20), "producer id -1"),
    ],
)
def test_invalid_header_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(Rejected, match=message):
        RecordBatch.parse(data)
    with pytest.raises(Corrupt, match=f"here: .*{message}"):
        verify(data, "here")


def test_every_flipped_bit_after_the_checksum_is_corrupt_or_rejected() -> None:
    for at in range(16, len(IDEMPOTENT)):
        for bit in range(8):
            changed = bytearray(IDEMPOTENT)
            changed[at] ^= 1 << bit
            with pytest.raises((Rejected, Corrupt)):
                RecordBatch.parse(changed)
            with pytest.raises(Corrupt, match=r"^here: "):
                verify(changed, "here")


def test_wrong_checksum_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="checksum"):
        RecordBatch.parse(patched(IDEMPOTENT, len(IDEMPOTENT) - 1, ">B", 9, valid_checksum=False))


def test_rebased_changes_only_offset_and_leader_epoch() -> None:
    prefix, rest = rebased(IDEMPOTENT, 123_456_789_012, leader_epoch=5)
    assert len(prefix) == 16
    assert isinstance(rest, memoryview)
    assert rest.obj is IDEMPOTENT
    moved = as_bytes([prefix, rest])
    batch = verify(moved, "moved")
    assert batch.base_offset == 123_456_789_012
    assert struct.unpack_from(">i", moved, 12) == (5,)
    assert moved[8:12] == IDEMPOTENT[8:12]
    assert moved[16:] == IDEMPOTENT[16:]


def test_split_yields_each_batch() -> None:
    batches = [make_batch([bytes([number]) * number]) for number in range(1, 5)]
    assert [bytes(piece) for piece in split(b"".join(batches), "here")] == batches
    assert list(split(b"", "here")) == []


@pytest.mark.parametrize("bad", [IDEMPOTENT[:-1], IDEMPOTENT + b"x", b"\xff" * 100, b"\0" * 100])
def test_split_of_damaged_bytes_is_corrupt(bad: bytes) -> None:
    with pytest.raises(Corrupt, match=r"^here: "):
        list(split(bad, "here"))


@pytest.mark.parametrize("commit", [True, False])
def test_control_batch_equals_that_of_kafka(commit: bool) -> None:
    data = control_batch(99, 3, commit, 1_700_000_000_123, coordinator_epoch=6)
    batch = RecordBatch.parse(data)
    assert (batch.is_control, batch.is_transactional, batch.record_count) == (True, True, 1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (99, 3, -1, -1)
    assert batch.max_timestamp == 1_700_000_000_123
    assert is_commit(batch) is commit
    (record,) = records_of(batch)
    assert record == (0, struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 6))
    assert len(data) == 78  # as Kafka's own


def test_is_commit_rejects_other_batches() -> None:
    with pytest.raises(Rejected, match="not a transaction marker"):
        is_commit(RecordBatch.parse(IDEMPOTENT))
    marker = control_batch(1, 0, True, 0, 0)
    with pytest.raises(Rejected, match="type 2"):
        is_commit(RecordBatch.parse(patched(marker, 61 + 8, ">B", 2)))
    with pytest.raises(Rejected, match="truncated"):
        is_commit(RecordBatch.parse(patched(IDEMPOTENT, 21, ">h", 0x30)))


def test_records_of_reads_what_make_batch_writes() -> None:
    values = [b"", None, b"x" * 300, bytes(range(256)) * 300]
    keys = [None, b"k", b"", b"long" * 50]
    data = make_batch(values, keys=keys)
    assert RecordBatch.parse(data).record_count == 4
    assert records_of(data) == list(zip(range(4), keys, values, strict=True))


def test_gap_is_a_batch_without_records() -> None:
    at = as_bytes(rebased(gap(995), 5))
    assert len(at) == 61
    assert struct.unpack_from(">I", at, 17) == (crc32c(at[21:]),)
    batch = MemoryRecords(at).next_batch()
    assert (batch.base_offset, batch.next_offset, list(batch)) == (5, 1000, [])
    assert MemoryRecords(gap(2**40)).next_batch().next_offset == 2**31
