"""Decoding of batches to rows: skipped batches, error messages, and bounds."""

import gzip
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.harness.table.reference_codec import (
    CODECS,
    Record,
    batch_of,
    framed,
    record_bytes,
    records_of,
    sized,
    varint,
)

from lakestream.data.table.write import batch_decoder as decoding
from lakestream.data.table.write import decompression
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.decoded_batches import DecodeLimits
from lakestream.errors import Corrupt
from lakestream.model import MiB
from lakestream.records.batch import control_batch
from lakestream.records.compression import compressed

NOW = 1_700_000_000_000
RECORD = Record(0, NOW, 0, b"key", b"value")


def rows_of(data: bytes, base_offset: int = 0, limits: DecodeLimits = DecodeLimits()) -> Any:  # noqa: B008
    return pa.Table.from_batches(decode([BatchSource.single("here", data, base_offset)], 0, limits))


def many(count: int, first: int = 0) -> list[Record]:
    return [Record(first + n, NOW + n, 0, b"k%d" % n, b"value %d" % n * 5) for n in range(count)]


def test_offsets_are_those_of_the_claim() -> None:
    records = many(3, first=40)
    assert records_of(rows_of(batch_of(records), 40)) == records
    assert [record.offset for record in records_of(rows_of(batch_of(records), 2**62))] == [2**62, 2**62 + 1, 2**62 + 2]


def test_bytes_that_no_claim_lists_are_skipped() -> None:
    """A duplicate may be between two committed batches."""
    first, dropped, last = (batch_of(many(2, first)) for first in (0, 7, 10))
    data = first + dropped + last
    spans = [(0, len(first)), (len(data) - len(last), len(data))]
    (rows,) = decode([BatchSource.of("here", data, spans, [0, 10])], 0)
    assert [record.offset for record in records_of(rows)] == [0, 1, 10, 11]


def test_no_sources_yield_no_rows() -> None:
    assert list(decode([], 0)) == []
    assert list(decode([BatchSource.back_to_back("here", b"", [])], 0)) == []


def test_transaction_markers_yield_no_rows() -> None:
    records = many(2)
    marker = control_batch(1, 0, True, NOW, 0)
    data = marker + batch_of(records) + marker
    (rows,) = decode([BatchSource.back_to_back("here", data, [9, 0, 11])], 0)
    assert records_of(rows) == records
    assert list(decode([BatchSource.single("here", marker, 9)], 0)) == []


def test_batch_without_records_yields_no_rows() -> None:
    assert rows_of(framed(b"", 0, delta_max=41)).num_rows == 0


def test_log_append_time_is_that_of_the_batch() -> None:
    body = record_bytes(Record(0, 5, 1, None, b"a"), 0, 0) + record_bytes(Record(1, 9, 1, None, b"b"), 0, 0)
    records = records_of(rows_of(framed(body, 2, attributes=8, base_timestamp=0, max_timestamp=NOW)))
    assert [(record.timestamp, record.timestamp_type) for record in records] == [(NOW, 1), (NOW, 1)]


def test_snappy_with_and_without_a_frame_and_gzip_in_members() -> None:
    records = many(50)
    body = b"".join(record_bytes(record, 0, NOW) for record in records)
    blocks = (bytes(cramjam.snappy.compress_raw(part)) for part in (body[:1000], body[1000:]))
    framed_snappy = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    members = gzip.compress(body[:77]) + gzip.compress(body[77:])
    for codec, data in ((2, bytes(cramjam.snappy.compress_raw(body))), (2, framed_snappy), (1, members)):
        assert records_of(rows_of(framed(data, 50, attributes=codec, base_timestamp=NOW))) == records


@pytest.mark.parametrize("codec", CODECS)
def test_many_sources_are_decoded_in_order(codec: str) -> None:
    records = many(600)
    sources = [
        BatchSource.single("here", batch_of(records[n : n + 6], codec if n % 4 else "none"), n)
        for n in range(0, 600, 6)
    ]
    for limits in (DecodeLimits(), DecodeLimits(rows_max=50), DecodeLimits(bytes_max=1000)):
        assert records_of(pa.Table.from_batches(decode(sources, 0, limits))) == records


def _cut_record(body: bytes) -> bytes:
    return varint(len(body)) + body


HEAD = b"\0\0\0"  # attributes, timestamp delta, offset delta

TOO_WIDE_INT = b"\x81\x80\x80\x80\x10"  # negative, which would be null
TOO_WIDE_LONG = b"\x80" * 9 + b"\x02"

BAD_RECORDS = {
    "invalid record length: not a number": TOO_WIDE_INT + bytes(10),
    "invalid timestamp": _cut_record(b"\0" + TOO_WIDE_LONG + b"\0" + sized(b"k") + sized(b"v") + b"\0"),
    "invalid offset delta: ": _cut_record(b"\0\0" + TOO_WIDE_INT + sized(b"k") + sized(b"v") + b"\0"),
    "invalid key length: not a number": _cut_record(HEAD + TOO_WIDE_INT + sized(b"v") + b"\0"),
    "invalid value length: not a number": _cut_record(HEAD + sized(b"k") + TOO_WIDE_INT + b"\0"),
    "invalid number of record headers: ": _cut_record(HEAD + sized(b"k") + sized(b"v") + TOO_WIDE_INT),
    "or beyond the end of the batch": b"\xff" * 12,
    "invalid timestamp delta: not a number": _cut_record(b"\0" + b"\xff" * 12),
    "not above the previous record's": _cut_record(b"\0\0" + varint(-1) + sized(b"k") + sized(b"v") + b"\0"),
    "or above the batch's last": _cut_record(b"\0\0" + varint(1) + sized(b"k") + sized(b"v") + b"\0"),
    "invalid key length: not a number, or beyond": _cut_record(HEAD + varint(2**31 - 1) + bytes(9)),
    "invalid value length: not a number, or beyond": _cut_record(HEAD + sized(b"k") + varint(6) + b"short"),
    "number of record headers: not a number, negative": _cut_record(HEAD + sized(b"k") + sized(b"v") + varint(-1)),
    "or more than the record can hold": _cut_record(HEAD + sized(b"k") + sized(b"v") + varint(2**31 - 1)),
    "invalid length of a header key: not a number, negative, or beyond": _cut_record(
        HEAD + sized(b"k") + sized(b"v") + varint(1) + varint(9) + b"abc"
    ),
    "invalid length of a header key": _cut_record(HEAD + sized(b"k") + sized(b"v") + varint(1) + varint(-1) + b"abc"),
    "invalid length of a header value": _cut_record(
        HEAD + sized(b"k") + sized(b"v") + varint(1) + sized(b"h") + varint(9)
    ),
    "bytes are left after the last header": _cut_record(HEAD + sized(b"k") + sized(b"v") + b"\0" + b"?"),
    "bytes are left after the last record": _cut_record(HEAD + sized(b"k") + sized(b"v") + b"\0") + b"?",
}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("reason", BAD_RECORDS)
def test_error_names_the_damaged_record(reason: str, codec: str) -> None:
    bad = framed(compressed(BAD_RECORDS[reason], codec), 1, attributes=CODECS.index(codec))
    data = batch_of([RECORD]) + bad
    place = len(data) - len(bad)
    with pytest.raises(Corrupt) as error:
        list(decode([BatchSource.back_to_back("wal/7.wal", data, [5, 6])], 0))
    assert str(error.value).startswith(f"wal/7.wal: record batch at byte {place} (offset 6) is damaged: record 0: ")
    assert reason in str(error.value)


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


BAD_BATCHES: dict[str, Callable[[], bytes]] = {
    "it is shorter than its header": lambda: batch_of([RECORD])[:60],
    "its magic is not 2": lambda: framed(b"", 0, magic=1),
    "its length field differs from its size": lambda: batch_of([RECORD]) + b"?",
    "its compression type is unknown": lambda: framed(b"", 1, attributes=5),
    "its record count and its last offset delta contradict": lambda: framed(b"", 3, delta_max=1),
    "its record count and": lambda: framed(b"", -1),
    "its checksum does not match": lambda: _with(batch_of([RECORD]), 70, b"?"),
    "its checksum does": lambda: _with(batch_of(many(100)), 2000, b"?"),
    "invalid record count: the batch declares more records than its bytes can hold": lambda: framed(b"abc", 2**31 - 1),
    "invalid record count": lambda: framed(compressed(b"abc", "lz4"), 2**31 - 1, attributes=3),
    "announces zstd, but its records cannot be decompressed": lambda: framed(b"nonsense", 1, attributes=4),
}


@pytest.mark.parametrize("reason", BAD_BATCHES)
def test_error_names_the_damaged_batch(reason: str) -> None:
    with pytest.raises(Corrupt, match=r"^here: record batch at byte 0 \(offset 6\) is damaged: ") as error:
        list(decode([BatchSource.single("here", BAD_BATCHES[reason](), 6)], 0))
    assert reason in str(error.value)


def test_source_fails_when_spans_or_offsets_do_not_match_its_bytes() -> None:
    data = batch_of([RECORD])
    for span in ((0, len(data) + 1), (-1, 5), (9, 3)):
        with pytest.raises(Corrupt, match="here: a claim names a record batch beyond the"):
            BatchSource.of("here", data, [span], [0])
    with pytest.raises(Corrupt, match=f"no whole record batch at byte {len(data)}"):
        BatchSource.back_to_back("here", data + b"stray", [0])
    with pytest.raises(ValueError, match="2 batches need as many base offsets, not 1"):
        BatchSource.back_to_back("here", data + data, [0])


@pytest.mark.parametrize("codec", CODECS[1:])
def test_memory_is_bounded_when_a_batch_decompresses_to_too_much(codec: str) -> None:
    bomb = framed(compressed(bytes(8 * MiB), codec), 1, attributes=CODECS.index(codec))
    before = pa.total_allocated_bytes()
    with pytest.raises(Corrupt, match="it holds more than 1048576 bytes of records"):
        rows_of(bomb, limits=DecodeLimits(batch_bytes_max=1 * MiB))
    assert pa.total_allocated_bytes() - before < 64 * MiB


def test_batches_are_decompressed_in_groups_when_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their compressed size is small, but they are not all decompressed at once."""
    monkeypatch.setattr(decompression, "_BUFFER_SIZE", 64 * 1024)
    records = [Record(n, NOW, 0, None, bytes(1 * MiB)) for n in range(20)]
    sources = [BatchSource.single("here", batch_of([record], "zstd"), record.offset) for record in records]
    counts = [rows.num_rows for rows in decode(sources, 0, DecodeLimits(bytes_max=4 * MiB))]
    assert sum(counts) == 20
    assert max(counts) == 4


def test_decompression_buffer_is_dropped_when_it_was_too_small() -> None:
    """No row points into it, so it must not stay in memory."""
    buffers: list[Any] = [b"another buffer"]
    taken = decompression.DecompressionBuffers(64 * MiB, buffers)
    large = taken.put(compressed(bytes(40 * MiB), "zstd"), "zstd")
    small = taken.put(compressed(b"abc", "zstd"), "zstd")
    assert len(buffers) == 2
    assert (large.buffer, large.position, large.size) == (1, 0, 40 * MiB)
    assert (small.buffer, small.position, small.size) == (1, 40 * MiB, 3)
    assert bytes(buffers[1])[40 * MiB :][:3] == b"abc"


def test_rows_are_split_when_a_source_exceeds_the_span_of_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions in views have 31 bits: rows from both ends of such a source are in different Arrow batches."""
    monkeypatch.setattr(decoding, "SPAN_MAX", 10_000)
    batches = [batch_of(many(10, n * 10)) for n in range(30)]
    source = BatchSource.back_to_back("here", b"".join(batches), np.arange(30) * 10)
    chunks = list(decode([source], 0))
    assert len(chunks) > 1
    assert records_of(pa.Table.from_batches(chunks)) == [r for n in range(30) for r in many(10, n * 10)]
    backwards = BatchSource(source.name, source.data, source.starts[::-1], source.ends[::-1], source.base_offsets[::-1])
    assert len(records_of(pa.Table.from_batches(decode([backwards], 0)))) == 300


def test_limits_beyond_the_span_of_views_are_rejected() -> None:
    with pytest.raises(ValueError, match="that views can address"):
        DecodeLimits(batch_bytes_max=2**31)
    with pytest.raises(ValueError, match="each limit must be at least 1"):
        DecodeLimits(rows_max=0)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batch_is_split_when_it_exceeds_the_row_or_header_limit(codec: str) -> None:
    """A row takes more memory than a record, which may have only seven bytes."""
    records = [Record(n * 2, NOW, 0, None, None, ((b"h", b"x"),) * (n % 3)) for n in range(1000)]
    chunks = list(decode([BatchSource.single("here", batch_of(records, codec), 0)], 0, DecodeLimits(rows_max=64)))
    assert {chunk.num_rows for chunk in chunks} == {64, 1000 % 64}
    assert records_of(pa.Table.from_batches(chunks)) == records
    chunks = list(decode([BatchSource.single("here", batch_of(records, codec), 0)], 0, DecodeLimits(headers_max=30)))
    assert len(chunks) > 10
    assert records_of(pa.Table.from_batches(chunks)) == records


def test_error_has_the_number_in_the_batch_when_the_batch_is_split() -> None:
    good = b"".join(record_bytes(Record(n, NOW, 0, None, None), 0, NOW) for n in range(5))
    bad = framed(good + record_bytes(Record(4, NOW, 0, None, None), 0, NOW), 6)
    with pytest.raises(Corrupt, match="record 5: invalid offset delta"):
        rows_of(bad, limits=DecodeLimits(rows_max=5))


def test_record_with_too_many_headers_is_corrupt() -> None:
    record = Record(0, NOW, 0, None, None, ((b"", None),) * 11)
    with pytest.raises(Corrupt, match="record 0: too many record headers"):
        rows_of(batch_of([record]), limits=DecodeLimits(headers_max=10))
    assert records_of(rows_of(batch_of([record]), limits=DecodeLimits(headers_max=11))) == [record]


def test_a_hundred_thousand_batches_of_one_record() -> None:
    data = batch_of([RECORD]) * 100_000
    rows = pa.Table.from_batches(decode([BatchSource.back_to_back("here", data, np.arange(100_000))], 0))
    stream = rows.column("_stream").combine_chunks()
    assert stream.field("offset").to_numpy().tolist() == list(range(100_000))


def test_header_keys_are_text_exactly_if_python_decodes_them() -> None:
    """Around every limit of UTF-8: shortest forms, surrogates, the last code point, truncated sequences."""
    seconds, more = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF), (0x7F, 0x80, 0xBF, 0xC0)
    keys = [bytes((lead,)) for lead in range(256)]
    keys += [bytes((lead, second)) for lead in range(0xC0, 256) for second in seconds]
    keys += [bytes((lead, second, third)) for lead in range(0xE0, 256) for second in seconds for third in more]
    keys += [key + bytes((last,)) for key in keys if len(key) == 3 for last in more]
    keys += [b"a" + key + b"z" for key in keys]
    record = Record(0, NOW, 0, None, None, tuple((key, None) for key in keys))
    assert records_of(rows_of(batch_of([record]))) == [record]


def test_rows_are_equal_after_a_parquet_round_trip(tmp_path: Any) -> None:
    records = [
        Record(0, NOW, 0, None, None, ((b"a", None), (b"a", b""), (b"\xff", b"x" * 40))),
        Record(1, 2**63 - 1, 0, b"", b"", ()),
        Record(2, -(2**63), 0, b"k" * 13, b"v" * 12, ((b"", b""),)),
    ]
    path = tmp_path / "rows.parquet"
    for batch in decode([BatchSource.single("here", batch_of(records), 0)], 0):
        pq.write_table(pa.Table.from_batches([batch]), path, compression="zstd", store_schema=False)
    assert records_of(pq.read_table(path)) == records
