import struct

import pytest
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]
from crc32c import crc32c

from lakestream.batch import RecordBatch, control_batch, gap, is_commit, rebased, split, verify
from lakestream.errors import Corrupt, Rejected
from lakestream.filed import as_bytes
from lakestream.testing.batches import make_batch, records_of

IDEMPOTENT = make_batch([b"a", b"b", b"c"], producer_id=7, epoch=2, sequence=40)

FROM_AIOKAFKA = bytes.fromhex(
    "00000000000000000000005cffffffff02322075be0010000000020000018bcfe568000000018bcfe5680a000000000000123400030000004d"
    "0000000314000000086b657930010016000a02010a76616c75650026001404086b6579320a76616c75650202680276"
)
"""Three records of a transactional producer, built by aiokafka 0.14's C encoder; the last one has a header."""


def patched(data: bytes, at: int, layout: str, value: int, *, mend: bool = True) -> bytes:
    """Another value in a header field; the checksum is made right again unless told otherwise."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    if mend:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_a_batch_says_what_it_is() -> None:
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


def test_a_batch_of_another_encoder() -> None:
    batch = RecordBatch.parse(FROM_AIOKAFKA)
    assert (batch.record_count, batch.is_transactional, batch.compression) == (3, True, "none")
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (4660, 3, 77, 79)
    assert (batch.base_timestamp, batch.max_timestamp) == (1_700_000_000_000, 1_700_000_000_010)
    assert records_of(batch) == [(0, b"key0", None), (1, None, b"value"), (2, b"key2", b"value")]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(wrap: type) -> None:
    assert RecordBatch.parse(wrap(IDEMPOTENT)).record_count == 3


def test_a_batch_without_producer_has_no_sequence() -> None:
    batch = RecordBatch.parse(make_batch([b"a", b"b"]))
    assert (batch.producer_id, batch.producer_epoch) == (-1, -1)
    assert (batch.base_sequence, batch.last_sequence, batch.has_producer) == (-1, -1, False)


def test_attributes() -> None:
    transactional = RecordBatch.parse(make_batch([b"a"], producer_id=1, epoch=0, sequence=0, transactional=True))
    assert (transactional.is_transactional, transactional.is_control) == (True, False)
    stamped = RecordBatch.parse(patched(IDEMPOTENT, 21, ">h", 0x08 | 4))
    assert (stamped.compression, stamped.timestamp_type) == ("zstd", 1)


@pytest.mark.parametrize(("first", "last"), [(0, 2), (2**31 - 3, 2**31 - 1), (2**31 - 2, 0), (2**31 - 1, 1)], ids=str)
def test_sequences_wrap_behind_the_largest(first: int, last: int) -> None:
    batch = RecordBatch.parse(make_batch([b"a", b"b", b"c"], producer_id=1, epoch=0, sequence=first))
    assert batch.last_sequence == last


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut off"),
        (IDEMPOTENT[:60], "cut off"),
        (IDEMPOTENT[:-1], "cut off"),
        (IDEMPOTENT + b"x", "exactly one"),
        (IDEMPOTENT + IDEMPOTENT, "exactly one"),
        (patched(IDEMPOTENT, 8, ">i", -1), "announces"),
        (patched(IDEMPOTENT, 8, ">i", 2**31 - 1), "cut off"),
        (patched(IDEMPOTENT, 16, ">b", 1), "magic 1"),
        (patched(IDEMPOTENT, 16, ">b", 3), "magic 3"),
        (patched(IDEMPOTENT, 57, ">i", 0), "counts 0"),
        (patched(IDEMPOTENT, 57, ">i", -1), "counts -1"),
        (patched(IDEMPOTENT, 57, ">i", 4), "counts 4"),
        (patched(IDEMPOTENT, 23, ">i", 5), "delta is 5"),
        (patched(IDEMPOTENT, 21, ">h", 5), "compression 5"),
        (patched(IDEMPOTENT, 43, ">q", -2), "producer id -2"),
        (patched(IDEMPOTENT, 51, ">h", -1), "epoch -1"),
        (patched(IDEMPOTENT, 53, ">i", -1), "sequence -1"),
        (patched(make_batch([b"a"]), 21, ">h", 0x10), "producer id -1"),
        (patched(make_batch([b"a"]), 21, ">h", 0x20), "producer id -1"),
    ],
)
def test_a_wrong_shape_is_rejected(data: bytes, says: str) -> None:
    with pytest.raises(Rejected, match=says):
        RecordBatch.parse(data)
    with pytest.raises(Corrupt, match=f"here: .*{says}"):
        verify(data, "here")


def test_every_flipped_bit_behind_the_checksum_is_corrupt_or_rejected() -> None:
    for at in range(16, len(IDEMPOTENT)):
        for bit in range(8):
            changed = bytearray(IDEMPOTENT)
            changed[at] ^= 1 << bit
            with pytest.raises((Rejected, Corrupt)):
                RecordBatch.parse(changed)
            with pytest.raises(Corrupt, match=r"^here: "):
                verify(changed, "here")


def test_a_wrong_checksum_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="checksum"):
        RecordBatch.parse(patched(IDEMPOTENT, len(IDEMPOTENT) - 1, ">B", 9, mend=False))


def test_rebased_gives_offsets_and_touches_nothing_else() -> None:
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


def test_split_finds_the_single_batches() -> None:
    batches = [make_batch([bytes([number]) * number]) for number in range(1, 5)]
    assert [bytes(piece) for piece in split(b"".join(batches), "here")] == batches
    assert list(split(b"", "here")) == []


@pytest.mark.parametrize("bad", [IDEMPOTENT[:-1], IDEMPOTENT + b"x", b"\xff" * 100, b"\0" * 100])
def test_split_of_damaged_bytes_is_corrupt(bad: bytes) -> None:
    with pytest.raises(Corrupt, match=r"^here: "):
        list(split(bad, "here"))


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_marker(commit: bool) -> None:
    data = control_batch(99, 3, commit, 1_700_000_000_123, coordinator_epoch=6)
    batch = RecordBatch.parse(data)
    assert (batch.is_control, batch.is_transactional, batch.record_count) == (True, True, 1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (99, 3, -1, -1)
    assert batch.max_timestamp == 1_700_000_000_123
    assert is_commit(batch) is commit
    (record,) = records_of(batch)
    assert record == (0, struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 6))
    assert len(data) == 78  # as Kafka's own


def test_what_is_no_marker_is_refused() -> None:
    with pytest.raises(Rejected, match="no transaction marker"):
        is_commit(RecordBatch.parse(IDEMPOTENT))
    marker = control_batch(1, 0, True, 0, 0)
    with pytest.raises(Rejected, match="type 2"):
        is_commit(RecordBatch.parse(patched(marker, 61 + 8, ">B", 2)))
    with pytest.raises(Rejected, match="cut off"):
        is_commit(RecordBatch.parse(patched(IDEMPOTENT, 21, ">h", 0x30)))


def test_the_test_encoder_reads_what_it_writes() -> None:
    values = [b"", None, b"x" * 300, bytes(range(256)) * 300]
    keys = [None, b"k", b"", b"long" * 50]
    data = make_batch(values, keys=keys)
    assert RecordBatch.parse(data).record_count == 4
    assert records_of(data) == list(zip(range(4), keys, values, strict=True))


def test_a_gap_is_a_batch_without_records() -> None:
    at = as_bytes(rebased(gap(995), 5))
    assert len(at) == 61
    assert struct.unpack_from(">I", at, 17) == (crc32c(at[21:]),)
    found = MemoryRecords(at).next_batch()
    assert (found.base_offset, found.next_offset, list(found)) == (5, 1000, [])
    assert MemoryRecords(gap(2**40)).next_batch().next_offset == 2**31
