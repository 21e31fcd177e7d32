"""Batches to columns and back, for any bytes: the result equals that of a reference reader, or both raise."""

import random
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped]
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.harness.log.unreadable_batches import as_record
from tests.harness.table.reference_codec import (
    CODECS,
    LONG_MAX,
    LONG_MIN,
    Damaged,
    Record,
    batch_of,
    framed,
    read_batch,
    read_batches,
    records_of,
    wrapped,
)

from lakestream.data.table.arrow.batch_encoder import encode
from lakestream.data.table.arrow.unreadable_batches import HEADER
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.decoded_batches import DecodeLimits
from lakestream.errors import Corrupt, Rejected
from lakestream.records.compression import compressed
from lakestream.schemas.value_format import ConversionErrorCounts

LONGS = st.integers(LONG_MIN, LONG_MAX) | st.sampled_from(
    [LONG_MIN, LONG_MAX, -1, 0, LONG_MAX // 1000, LONG_MAX // 1000 + 1, -(LONG_MAX // 1000), -(LONG_MAX // 1000) - 1]
)
IN_CALENDAR = st.integers(1_700_000_000_000, 1_700_000_100_000)
"""The range of Python, which has no times beyond the year 9999."""
TIMES = IN_CALENDAR | LONGS
# Around twelve bytes a view changes its form.
FIELDS = st.none() | st.binary(max_size=16) | st.binary(min_size=60, max_size=200)
HEADER_KEYS = st.binary(max_size=16) | st.text(max_size=8).map(str.encode)
HEADERS = st.lists(st.tuples(HEADER_KEYS, FIELDS), max_size=4).map(tuple)
GAPS = st.just(1) | st.just(1) | st.integers(1, 2**20)

Batches = list[list[Record]]


@st.composite
def batches(draw: st.DrawFn, times: st.SearchStrategy[int] = TIMES) -> Batches:
    """Draws the batches of a log: offsets ascend, with gaps anywhere; a batch has one timestamp type."""
    offset = draw(st.integers(0, 2**40))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        kind, appended = draw(st.integers(0, 1)), draw(times)
        records = []
        for _ in range(draw(st.integers(1, 6))):
            timestamp = appended if kind else draw(times)
            records.append(Record(offset, timestamp, kind, draw(FIELDS), draw(FIELDS), draw(HEADERS)))
            offset += draw(GAPS)
        found.append(records)
    return found


def flat(found: Batches) -> list[Record]:
    return [record for records in found for record in records]


def sources_of(found: Batches, codecs: list[str], cuts: random.Random) -> list[BatchSource]:
    """Returns the batches in one buffer or several, one by one or back to back."""
    sources, pending = [], list(zip(found, codecs, strict=True))
    while pending:
        count = cuts.randint(1, len(pending))
        taken, pending = pending[:count], pending[count:]
        data = [batch_of(records, codec) for records, codec in taken]
        sources.append(BatchSource.back_to_back("here", b"".join(data), [records[0].offset for records, _ in taken]))
    return sources


def table_of(found: Batches, partition: int = 3) -> Any:
    return pa.Table.from_batches(decode(sources_of(found, ["none"] * len(found), random.Random(1)), partition))


@given(
    batches(),
    st.lists(st.sampled_from(CODECS), min_size=5, max_size=5),
    st.randoms(),
    st.integers(1, 10),
    st.integers(1, 2000),
)
def test_rows_equal_those_of_the_reference_reader(
    found: Batches, codecs: list[str], cuts: random.Random, rows_max: int, bytes_max: int
) -> None:
    sources = sources_of(found, codecs[: len(found)], cuts)
    rows = list(decode(sources, 7, DecodeLimits(rows_max=rows_max, bytes_max=bytes_max, headers_max=4)))
    for chunk in rows:
        chunk.validate(full=True)
    table = pa.Table.from_batches(rows)
    assert records_of(table) == flat(found)
    assert set(table.column("_stream").combine_chunks().field("partition").to_pylist()) == {7}


@given(batches(), st.sampled_from(CODECS), st.integers(1, 3000))
def test_encoded_batches_have_the_decoded_records(found: Batches, codec: str, bytes_max: int) -> None:
    encoded = encode(table_of(found), bytes_max=bytes_max, codec=codec)
    data = bytes(encoded.data)
    read = list(read_batches(data))
    assert flat(read) == flat(found)
    assert [records[0].offset for records in read] == encoded.base_offsets.tolist()
    assert [records[-1].offset for records in read] == encoded.last_offsets.tolist()
    assert [(start, end) for start, end in zip(encoded.starts, encoded.ends, strict=True)] == _spans(data)
    again = pa.Table.from_batches(decode([BatchSource.back_to_back("again", data, encoded.base_offsets)], 3))
    assert records_of(again) == flat(found)
    if codec == "none":
        assert all(
            end - start <= bytes_max or len(records) == 1
            for records, (start, end) in zip(read, _spans(data), strict=True)
        )


def _spans(data: bytes) -> list[tuple[int, int]]:
    spans, at = [], 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        spans.append((at, end))
        at = end
    return spans


@given(batches())
def test_no_timestamp_delta_wraps_around(found: Batches) -> None:
    """No delta needs more than 64 bits, so readers need not wrap around."""
    encoded = encode(table_of(found))
    for (start, _), records in zip(_spans(bytes(encoded.data)), read_batches(bytes(encoded.data)), strict=True):
        base = int.from_bytes(encoded.data[start + 27 : start + 35], "big", signed=True)
        assert all(wrapped(record.timestamp - base) == record.timestamp - base for record in records)


@given(batches(), st.sampled_from(CODECS))
def test_aiokafka_reads_encoded_batches(found: Batches, codec: str) -> None:
    """aiokafka decodes header keys as text, so others are left out here."""
    texts = [
        [
            record._replace(headers=tuple((b"k%d" % len(key), value) for key, value in record.headers))
            for record in records
        ]
        for records in found
    ]
    encoded = encode(table_of(texts), codec=codec)
    read = []
    for start, end in _spans(bytes(encoded.data)):
        batch = DefaultRecordBatch(bytes(encoded.data[start:end]))
        assert batch.validate_crc()
        read += [
            Record(
                record.offset,
                record.timestamp,
                record.timestamp_type,
                record.key,
                record.value,
                tuple((key.encode(), value) for key, value in record.headers),
            )
            for record in batch
        ]
    assert read == flat(texts)


RETYPED = {
    "binary": (pa.binary(), pa.string()),
    "large": (pa.large_binary(), pa.large_string()),
    "view": (pa.binary_view(), pa.string_view()),
}


@given(batches(IN_CALENDAR), st.sampled_from(sorted(RETYPED)), st.data())
def test_every_column_type_and_any_slice_is_encoded(found: Batches, kind: str, data: st.DataObject) -> None:
    table = _retyped(table_of(found), *RETYPED[kind])
    start = data.draw(st.integers(0, table.num_rows))
    length = data.draw(st.integers(0, table.num_rows - start))
    encoded = encode(pa.concat_tables([table.slice(start, length), table.slice(start + length)]), bytes_max=500)
    assert flat(list(read_batches(bytes(encoded.data)))) == flat(found)[start:]


def _retyped(table: Any, binary: Any, text: Any) -> Any:
    def retyped(kind: Any) -> Any:
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(retyped(field.type)) for field in kind])
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(retyped(kind.value_type)))
        return {pa.binary_view(): binary, pa.string_view(): text}.get(kind, kind)

    schema = pa.schema([field.with_type(retyped(field.type)) for field in table.schema])
    return pa.Table.from_pylist(table.to_pylist(), schema)


BODY = batch_of([Record(5, 100, 0, b"key", b"value" * 5, ((b"a", b"1"), (b"b", None))), Record(6, 101, 0, None, b"")])[
    61:
]


BODIES = st.binary(max_size=60) | st.builds(
    lambda at, new: BODY[:at] + new + BODY[at + len(new) :], st.integers(0, len(BODY)), st.binary(max_size=4)
)


@given(BODIES, st.integers(0, 3))
@example(BODY, 2)
@example(b"", 0)
@settings(max_examples=500)
def test_damaged_records_raise_exactly_if_the_reference_reader_raises(body: bytes, count: int) -> None:
    """The checksum is right: a client sent invalid records."""
    data = framed(body, count, delta_max=max(count - 1, 0))
    try:
        expected = read_batch(data, 1000)
    except Damaged:
        with pytest.raises(Corrupt, match=r"here: record batch at byte 0 \(offset 1000\) is damaged: "):
            list(decode([BatchSource.single("here", data, 1000)], 0))
    else:
        (rows,) = decode([BatchSource.single("here", data, 1000)], 0)
        rows.validate(full=True)
        assert records_of(rows) == expected


@given(batches(), st.sampled_from(CODECS), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_every_flipped_bit_and_truncation_is_detected(found: Batches, codec: str, data: st.DataObject) -> None:
    whole = batch_of(found[0], codec)
    at = data.draw(st.integers(16, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for broken in (bytes(flipped), whole[:at]):
        with pytest.raises(Corrupt, match=r"^here: "):
            list(decode([BatchSource.single("here", broken, 5)], 0))


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises((Corrupt, ValueError)):
        list(decode([BatchSource.back_to_back("here", data, np.zeros(1, np.int64))], 0))


@st.composite
def sent_batches(draw: st.DrawFn) -> bytes:
    """Draws batches with a valid header and checksum, and arbitrary records."""
    body, codec, count = draw(BODIES), draw(st.sampled_from(CODECS)), draw(st.sampled_from([1, 2, 2, 2, 3, 2**30]))
    data = compressed(body, codec) if draw(st.booleans()) else body
    return framed(
        data, count, attributes=CODECS.index(codec) | draw(st.sampled_from([0, 8])), max_timestamp=draw(LONGS)
    )


@given(
    st.lists(sent_batches() | st.just(framed(BODY, 2)), min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(1, 300),
)
@settings(max_examples=300)
def test_every_batch_becomes_rows_when_unreadable_ones_are_counted(
    sent: list[bytes], rows_max: int, bytes_max: int
) -> None:
    offsets = [1000 + 2**30 * place for place in range(len(sent))]
    expected = []
    for data, offset in zip(sent, offsets, strict=True):
        try:
            expected += read_batch(data, offset)
        except (Damaged, Rejected):
            expected.append(as_record(data, offset, ""))
    limits = DecodeLimits(rows_max=rows_max, bytes_max=bytes_max)
    source = BatchSource.back_to_back("here", b"".join(sent), offsets)
    rows = list(decode([source], 3, limits, ConversionErrorCounts()))
    for chunk in rows:
        chunk.validate(full=True)
    assert [_without_reason(record) for record in records_of(pa.Table.from_batches(rows))] == expected


def _without_reason(record: Record) -> Record:
    is_ours = bool(record.headers) and record.headers[0][0] == HEADER.encode()
    return record._replace(headers=((HEADER.encode(), b""),)) if is_ours else record
