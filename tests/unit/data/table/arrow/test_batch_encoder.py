"""Encoding of rows as batches: batch limits, gaps, and rows that engines have changed."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]
from tests.harness.table.reference_codec import HEAD, LONG_MAX, LONG_MIN, Record, batch_of, read_batches

from lakestream.data.table.arrow.batch_encoder import encode
from lakestream.data.table.arrow.types import SCHEMA
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.errors import Corrupt
from lakestream.model import KiB
from lakestream.records.batch import RecordBatch, split, verify

NOW = 1_700_000_000_000


def table_of(*records: Record) -> Any:
    return pa.Table.from_batches(
        [
            rows
            for record in records
            for rows in decode([BatchSource.single("in", batch_of([record]), record.offset)], 0)
        ],
        schema=SCHEMA,
    )


def batches_of(table: Any, **options: Any) -> list[list[Record]]:
    return list(read_batches(bytes(encode(table, **options).data)))


def record(offset: int, **fields: Any) -> Record:
    return Record(offset, NOW, 0, b"key", b"value")._replace(**fields)


def test_rows_with_gaps_share_a_batch() -> None:
    records = [record(offset) for offset in (5, 6, 9, 2**31)]
    encoded = encode(table_of(*records))
    assert list(read_batches(bytes(encoded.data))) == [records]
    base, length, epoch, magic, _, attributes, delta, *_, pid, producer_epoch, sequence, count = HEAD.unpack_from(
        encoded.data
    )
    assert (base, length, epoch, magic, attributes, delta) == (5, len(encoded.data) - 12, 0, 2, 0, 2**31 - 5)
    assert (pid, producer_epoch, sequence, count) == (-1, -1, -1, 4)


def test_new_batch_begins_when_one_is_full_and_large_record_is_alone() -> None:
    records = [record(n, value=bytes(size)) for n, size in enumerate((400, 400, 400, 5000, 400))]
    found = batches_of(table_of(*records), bytes_max=1 * KiB)
    assert [len(batch) for batch in found] == [2, 1, 1, 1]


def test_batch_of_several_records_is_at_most_bytes_max() -> None:
    records = [record(n * 3000, timestamp=NOW - n * 10**12, value=bytes(n)) for n in range(30)]
    table = table_of(*records)
    for bytes_max in range(80, 400):
        encoded = encode(table, bytes_max=bytes_max)
        counts = [len(batch) for batch in read_batches(bytes(encoded.data))]
        sizes = (encoded.ends - encoded.starts).tolist()
        assert all(size <= bytes_max or count == 1 for size, count in zip(sizes, counts, strict=True))


def test_new_batch_begins_when_the_header_cannot_describe_a_record() -> None:
    far = [record(0, timestamp=LONG_MIN), record(1, timestamp=LONG_MAX), record(2, timestamp=LONG_MAX - 1)]
    assert [len(batch) for batch in batches_of(table_of(*far))] == [1, 2]
    appended = [record(n, timestamp=NOW + n // 2, timestamp_type=1) for n in range(4)]
    assert [len(batch) for batch in batches_of(table_of(*appended))] == [2, 2]
    assert [len(batch) for batch in batches_of(table_of(record(0), record(1, timestamp_type=1), record(2)))] == [
        1,
        1,
        1,
    ]
    assert [len(batch) for batch in batches_of(table_of(record(0), record(2**31)))] == [1, 1]


def test_header_has_the_newest_timestamp() -> None:
    encoded = encode(table_of(*(record(n, timestamp=NOW + delta) for n, delta in enumerate((0, 7, -3)))))
    _, _, _, _, _, _, _, base, newest, *_ = HEAD.unpack_from(encoded.data)
    assert (base, newest) == (NOW, NOW + 7)


def test_a_trailing_gap_is_covered() -> None:
    table = table_of(record(5), record(6))
    encoded = encode(table, covers_to=1000)
    assert encoded.last_offsets.tolist() == [999]
    assert MemoryRecords(bytes(encoded.data)).next_batch().next_offset == 1000
    assert encode(table, covers_to=7).last_offsets.tolist() == [6]
    assert encode(table, covers_to=2**40).last_offsets.tolist() == [5 + 2**31 - 1], "the largest range of a batch"
    with pytest.raises(AssertionError, match="rows reach to offset 6"):
        encode(table, covers_to=6)


def test_only_the_last_batch_covers_the_gap() -> None:
    encoded = encode(table_of(record(1), record(5)), bytes_max=1, covers_to=20)
    assert encoded.base_offsets.tolist() == [1, 5]
    assert encoded.last_offsets.tolist() == [1, 19]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_encoded_batches_pass_the_brokers_checks(codec: str) -> None:
    """Checksums of small and of large batches are right."""
    encoded = encode(table_of(*(record(n, value=bytes(100 * n)) for n in range(40))), bytes_max=3 * KiB, codec=codec)
    parts = [verify(data, "here") for data in split(encoded.data, "here")]
    assert len(parts) == len(encoded) > 20
    assert {part.compression for part in parts} == {codec}
    assert all(isinstance(part, RecordBatch) for part in parts)


def test_no_rows_yield_no_batches() -> None:
    for table in (SCHEMA.empty_table(), pa.Table.from_batches([], SCHEMA)):
        encoded = encode(table, covers_to=9)
        assert (len(encoded), bytes(encoded.data)) == (0, b"")


def changed(table: Any, name: str, column: Any) -> Any:
    """Returns the table with another column inside `_stream`, or without it if `column` is None."""
    stream = table.column("_stream").combine_chunks()
    fields = [(field, stream.field(field.name)) for field in stream.type if field.name != name]
    if column is not None:
        fields.append((pa.field(name, column.type), column))
    made = pa.StructArray.from_arrays([array for _, array in fields], fields=[field for field, _ in fields])
    return pa.table({"value": table.column("value"), "_stream": made})


@pytest.mark.parametrize("name", ["offset", "timestamp", "timestamp_ms", "timestamp_type", "key", "headers"])
def test_error_names_the_missing_stream_column(name: str) -> None:
    with pytest.raises(Corrupt, match=f"^orders: column _stream.{name} is missing"):
        encode(changed(table_of(record(0)), name, None), name="orders")


@pytest.mark.parametrize("name", ["value", "_stream"])
def test_error_names_the_missing_top_level_column(name: str) -> None:
    with pytest.raises(Corrupt, match=f"^orders: column {name} is missing"):
        encode(table_of(record(0)).drop_columns([name]), name="orders")


def test_rows_that_are_not_records_are_corrupt() -> None:
    table = table_of(record(3), record(4))
    for offsets, reason in (
        ([4, 4], "the row at offset 4 is not a valid record: its offset is not above that of the previous row"),
        ([5, 4], "the row at offset 4 is not a valid record: its offset is not above that of the previous row"),
        ([-1, 4], "the row at offset -1 is not a valid record"),
        ([None, 4], "1 rows have no offset"),
    ):
        with pytest.raises(Corrupt, match=reason):
            encode(changed(table, "offset", pa.array(offsets, pa.int64())))
    entry = pa.struct([("key", pa.string()), ("value", pa.binary()), ("key_raw", pa.binary())])
    headers = pa.array([[], [{"key": None, "value": b"x", "key_raw": None}]], pa.list_(entry))
    with pytest.raises(Corrupt, match="the row at offset 4 is not a valid record: one of its headers has no key"):
        encode(changed(table, "headers", headers))
    with pytest.raises(Corrupt, match=r"column _stream\.headers has type int64"):
        encode(changed(table, "headers", pa.array([1, 2])))


def test_changed_timestamps_types_and_headers_are_encoded() -> None:
    """Timestamps finer than a millisecond; timestamps, types and headers set to null."""
    table = table_of(record(0), record(1), record(2))
    micros = pa.array([1_500_999, -1, None], pa.timestamp("us", tz="UTC"))
    (batch,) = batches_of(changed(table, "timestamp", micros))
    assert [found.timestamp for found in batch] == [1500, -1, -1]
    (batch,) = batches_of(changed(table, "timestamp_type", pa.nulls(3, pa.int32())))
    assert [found.timestamp_type for found in batch] == [0, 0, 0]
    kind = SCHEMA.field("_stream").type.field("headers").type
    (batch,) = batches_of(changed(table, "headers", pa.nulls(3, kind)))
    assert [found.headers for found in batch] == [(), (), ()]


def test_dictionary_column_is_encoded() -> None:
    table = table_of(record(0), record(1, value=None), record(2))
    values = pa.array([b"value", None, b"value"]).dictionary_encode()
    (batch,) = batches_of(table.set_column(0, "value", values))
    assert [found.value for found in batch] == [b"value", None, b"value"]
