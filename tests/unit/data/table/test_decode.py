"""Batches to rows: what is skipped, what is refused and with which words, and what is bounded."""

import gzip
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.unit.data.table.plain import CODECS, Record, batch_of, framed, record_bytes, records_of, sized, varint

from lakestream.batch import control_batch
from lakestream.compression import compressed
from lakestream.data.table import arena
from lakestream.data.table import decode as decoding
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.limits import Limits
from lakestream.errors import Corrupt
from lakestream.model import MiB

NOW = 1_700_000_000_000
RECORD = Record(0, NOW, 0, b"key", b"value")


def rows_of(data: bytes, base_offset: int = 0, limits: Limits = Limits()) -> Any:  # noqa: B008
    return pa.Table.from_batches(decode([Source.single("here", data, base_offset)], 0, limits))


def many(count: int, first: int = 0) -> list[Record]:
    return [Record(first + n, NOW + n, 0, b"k%d" % n, b"value %d" % n * 5) for n in range(count)]


def test_offsets_are_those_of_the_claim() -> None:
    records = many(3, first=40)
    assert records_of(rows_of(batch_of(records), 40)) == records
    assert [record.offset for record in records_of(rows_of(batch_of(records), 2**62))] == [2**62, 2**62 + 1, 2**62 + 2]


def test_batches_between_bytes_that_no_claim_names() -> None:
    """A duplicate may lie between two batches that count."""
    first, dropped, last = (batch_of(many(2, first)) for first in (0, 7, 10))
    data = first + dropped + last
    spans = [(0, len(first)), (len(data) - len(last), len(data))]
    (rows,) = decode([Source.of("here", data, spans, [0, 10])], 0)
    assert [record.offset for record in records_of(rows)] == [0, 1, 10, 11]


def test_nothing_is_nothing() -> None:
    assert list(decode([], 0)) == []
    assert list(decode([Source.back_to_back("here", b"", [])], 0)) == []


def test_markers_of_transactions_are_no_rows() -> None:
    records = many(2)
    marker = control_batch(1, 0, True, NOW, 0)
    data = marker + batch_of(records) + marker
    (rows,) = decode([Source.back_to_back("here", data, [9, 0, 11])], 0)
    assert records_of(rows) == records
    assert list(decode([Source.single("here", marker, 9)], 0)) == []


def test_a_batch_that_was_emptied() -> None:
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
def test_a_hundred_sources_and_codecs_side_by_side(codec: str) -> None:
    records = many(600)
    sources = [
        Source.single("here", batch_of(records[n : n + 6], codec if n % 4 else "none"), n) for n in range(0, 600, 6)
    ]
    for limits in (Limits(), Limits(rows_max=50), Limits(bytes_max=1000)):
        assert records_of(pa.Table.from_batches(decode(sources, 0, limits))) == records


def _cut_record(body: bytes) -> bytes:
    return varint(len(body)) + body


HEAD = b"\0\0\0"  # attributes, timestamp delta, offset delta

TOO_WIDE_INT = b"\x81\x80\x80\x80\x10"  # negative, which would be null
TOO_WIDE_LONG = b"\x80" * 9 + b"\x02"

BAD_RECORDS = {
    "its length is no number": TOO_WIDE_INT + bytes(10),
    "its timestamp is": _cut_record(b"\0" + TOO_WIDE_LONG + b"\0" + sized(b"k") + sized(b"v") + b"\0"),
    "its offset does not": _cut_record(b"\0\0" + TOO_WIDE_INT + sized(b"k") + sized(b"v") + b"\0"),
    "the length of its key is no number": _cut_record(HEAD + TOO_WIDE_INT + sized(b"v") + b"\0"),
    "the length of its value is no number": _cut_record(HEAD + sized(b"k") + TOO_WIDE_INT + b"\0"),
    "its number of headers": _cut_record(HEAD + sized(b"k") + sized(b"v") + TOO_WIDE_INT),
    "its length is no number, or goes beyond the batch": b"\xff" * 12,
    "its timestamp is no number": _cut_record(b"\0" + b"\xff" * 12),
    "its offset does not lie behind": _cut_record(b"\0\0" + varint(-1) + sized(b"k") + sized(b"v") + b"\0"),
    "or lies beyond the batch's last": _cut_record(b"\0\0" + varint(1) + sized(b"k") + sized(b"v") + b"\0"),
    "of its key is no number, or goes beyond the record": _cut_record(HEAD + varint(2**31 - 1) + bytes(9)),
    "of its value is no number, or goes beyond the record": _cut_record(HEAD + sized(b"k") + varint(6) + b"short"),
    "its number of headers is none, negative": _cut_record(HEAD + sized(b"k") + sized(b"v") + varint(-1)),
    "or more than its bytes can hold": _cut_record(HEAD + sized(b"k") + sized(b"v") + varint(2**31 - 1)),
    "the length of a header's key is no number, negative, or goes beyond": _cut_record(
        HEAD + sized(b"k") + sized(b"v") + varint(1) + varint(9) + b"abc"
    ),
    "the length of a header's key": _cut_record(HEAD + sized(b"k") + sized(b"v") + varint(1) + varint(-1) + b"abc"),
    "the length of a header's value": _cut_record(
        HEAD + sized(b"k") + sized(b"v") + varint(1) + sized(b"h") + varint(9)
    ),
    "bytes are left over behind its last header": _cut_record(HEAD + sized(b"k") + sized(b"v") + b"\0" + b"?"),
    "bytes are left over behind it, which": _cut_record(HEAD + sized(b"k") + sized(b"v") + b"\0") + b"?",
}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("reason", BAD_RECORDS)
def test_a_damaged_record_is_named(reason: str, codec: str) -> None:
    bad = framed(compressed(BAD_RECORDS[reason], codec), 1, attributes=CODECS.index(codec))
    data = batch_of([RECORD]) + bad
    place = len(data) - len(bad)
    with pytest.raises(Corrupt) as error:
        list(decode([Source.back_to_back("wal/7.wal", data, [5, 6])], 0))
    assert str(error.value).startswith(f"wal/7.wal: record batch at byte {place} (offset 6) is damaged: record 0: ")
    assert reason in str(error.value)


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


BAD_BATCHES: dict[str, Callable[[], bytes]] = {
    "it is shorter than its header": lambda: batch_of([RECORD])[:60],
    "its magic is not 2": lambda: framed(b"", 0, magic=1),
    "it announces another length": lambda: batch_of([RECORD]) + b"?",
    "its compression is not known": lambda: framed(b"", 1, attributes=5),
    "its record count and its last offset delta contradict": lambda: framed(b"", 3, delta_max=1),
    "its record count and": lambda: framed(b"", -1),
    "its checksum does not fit": lambda: _with(batch_of([RECORD]), 70, b"?"),
    "its checksum does": lambda: _with(batch_of(many(100)), 2000, b"?"),
    "it announces more records than its bytes can hold": lambda: framed(b"abc", 2**31 - 1),
    "it announces more records": lambda: framed(compressed(b"abc", "lz4"), 2**31 - 1, attributes=3),
    "says zstd, but its records cannot be decompressed": lambda: framed(b"nonsense", 1, attributes=4),
}


@pytest.mark.parametrize("reason", BAD_BATCHES)
def test_a_damaged_batch_is_named(reason: str) -> None:
    with pytest.raises(Corrupt, match=r"^here: record batch at byte 0 \(offset 6\) is damaged: ") as error:
        list(decode([Source.single("here", BAD_BATCHES[reason](), 6)], 0))
    assert reason in str(error.value)


def test_spans_and_offsets_that_do_not_fit_the_bytes() -> None:
    data = batch_of([RECORD])
    for span in ((0, len(data) + 1), (-1, 5), (9, 3)):
        with pytest.raises(Corrupt, match="here: a claim names a record batch beyond the"):
            Source.of("here", data, [span], [0])
    with pytest.raises(Corrupt, match=f"no whole record batch at byte {len(data)}"):
        Source.back_to_back("here", data + b"stray", [0])
    with pytest.raises(ValueError, match="2 batches need as many base offsets, not 1"):
        Source.back_to_back("here", data + data, [0])


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_few_bytes_never_become_gigabytes(codec: str) -> None:
    bomb = framed(compressed(bytes(8 * MiB), codec), 1, attributes=CODECS.index(codec))
    before = pa.total_allocated_bytes()
    with pytest.raises(Corrupt, match="it holds more than 1048576 bytes of records"):
        rows_of(bomb, limits=Limits(batch_bytes_max=1 * MiB))
    assert pa.total_allocated_bytes() - before < 64 * MiB


def test_many_batches_that_grow_come_out_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small as they are, they are not all decompressed at once."""
    monkeypatch.setattr(arena, "_BUFFER_SIZE", 64 * 1024)
    records = [Record(n, NOW, 0, None, bytes(1 * MiB)) for n in range(20)]
    sources = [Source.single("here", batch_of([record], "zstd"), record.offset) for record in records]
    counts = [rows.num_rows for rows in decode(sources, 0, Limits(bytes_max=4 * MiB))]
    assert sum(counts) == 20
    assert max(counts) == 4


def test_room_that_was_too_small_is_given_back() -> None:
    """Nothing points into it, so nothing should keep it."""
    buffers: list[Any] = [b"somebody else's"]
    taken = arena.Arena(64 * MiB, buffers)
    large = taken.put(compressed(bytes(40 * MiB), "zstd"), "zstd")
    small = taken.put(compressed(b"abc", "zstd"), "zstd")
    assert len(buffers) == 2
    assert (large.buffer, large.position, large.size) == (1, 0, 40 * MiB)
    assert (small.buffer, small.position, small.size) == (1, 40 * MiB, 3)
    assert bytes(buffers[1])[40 * MiB :][:3] == b"abc"


def test_a_source_beyond_what_views_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions in views have 31 bits: rows from both ends of such a source come out apart."""
    monkeypatch.setattr(decoding, "SPAN_MAX", 10_000)
    batches = [batch_of(many(10, n * 10)) for n in range(30)]
    source = Source.back_to_back("here", b"".join(batches), np.arange(30) * 10)
    chunks = list(decode([source], 0))
    assert len(chunks) > 1
    assert records_of(pa.Table.from_batches(chunks)) == [r for n in range(30) for r in many(10, n * 10)]
    backwards = Source(source.name, source.data, source.starts[::-1], source.ends[::-1], source.base_offsets[::-1])
    assert len(records_of(pa.Table.from_batches(decode([backwards], 0)))) == 300


def test_limits_that_views_cannot_reach_are_refused() -> None:
    with pytest.raises(ValueError, match="views reach"):
        Limits(batch_bytes_max=2**31)
    with pytest.raises(ValueError, match="limits let something through"):
        Limits(rows_max=0)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_with_very_many_records_comes_out_bit_by_bit(codec: str) -> None:
    """Rows take more memory than the seven bytes that a record may have."""
    records = [Record(n * 2, NOW, 0, None, None, ((b"h", b"x"),) * (n % 3)) for n in range(1000)]
    chunks = list(decode([Source.single("here", batch_of(records, codec), 0)], 0, Limits(rows_max=64)))
    assert {chunk.num_rows for chunk in chunks} == {64, 1000 % 64}
    assert records_of(pa.Table.from_batches(chunks)) == records
    chunks = list(decode([Source.single("here", batch_of(records, codec), 0)], 0, Limits(headers_max=30)))
    assert len(chunks) > 10
    assert records_of(pa.Table.from_batches(chunks)) == records


def test_a_record_is_numbered_within_its_batch_wherever_it_is_cut() -> None:
    good = b"".join(record_bytes(Record(n, NOW, 0, None, None), 0, NOW) for n in range(5))
    bad = framed(good + record_bytes(Record(4, NOW, 0, None, None), 0, NOW), 6)
    with pytest.raises(Corrupt, match="record 5: its offset does not lie behind that of the record before"):
        rows_of(bad, limits=Limits(rows_max=5))


def test_a_record_with_more_headers_than_are_allowed() -> None:
    record = Record(0, NOW, 0, None, None, ((b"", None),) * 11)
    with pytest.raises(Corrupt, match="record 0: it has more headers than are allowed"):
        rows_of(batch_of([record]), limits=Limits(headers_max=10))
    assert records_of(rows_of(batch_of([record]), limits=Limits(headers_max=11))) == [record]


def test_a_hundred_thousand_batches_of_one_record() -> None:
    data = batch_of([RECORD]) * 100_000
    rows = pa.Table.from_batches(decode([Source.back_to_back("here", data, np.arange(100_000))], 0))
    stream = rows.column("_stream").combine_chunks()
    assert stream.field("offset").to_numpy().tolist() == list(range(100_000))


def test_what_is_text_is_what_python_takes_for_text() -> None:
    """Around every border of UTF-8: shortest forms, surrogates, the last code point, cut ends."""
    seconds, more = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF), (0x7F, 0x80, 0xBF, 0xC0)
    keys = [bytes((lead,)) for lead in range(256)]
    keys += [bytes((lead, second)) for lead in range(0xC0, 256) for second in seconds]
    keys += [bytes((lead, second, third)) for lead in range(0xE0, 256) for second in seconds for third in more]
    keys += [key + bytes((last,)) for key in keys if len(key) == 3 for last in more]
    keys += [b"a" + key + b"z" for key in keys]
    record = Record(0, NOW, 0, None, None, tuple((key, None) for key in keys))
    assert records_of(rows_of(batch_of([record]))) == [record]


def test_rows_go_into_parquet_and_come_back(tmp_path: Any) -> None:
    records = [
        Record(0, NOW, 0, None, None, ((b"a", None), (b"a", b""), (b"\xff", b"x" * 40))),
        Record(1, 2**63 - 1, 0, b"", b"", ()),
        Record(2, -(2**63), 0, b"k" * 13, b"v" * 12, ((b"", b""),)),
    ]
    path = tmp_path / "rows.parquet"
    for batch in decode([Source.single("here", batch_of(records), 0)], 0):
        pq.write_table(pa.Table.from_batches([batch]), path, compression="zstd", store_schema=False)
    assert records_of(pq.read_table(path)) == records
