"""A batch with a right checksum and unreadable records becomes one row; the batches around it are decoded."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.log.unreadable_batches import FAR, UNREADABLE, as_record, count_of, served
from tests.harness.table.reference_codec import CODECS, Record, batch_of, framed, record_bytes, records_of

from lakestream.data.table.arrow.batch_encoder import encode
from lakestream.data.table.arrow.types import SCHEMA
from lakestream.data.table.arrow.unreadable_batches import HEADER, REASON_SIZE_MAX, REASONS_MAX, unreadable_rows
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.decoded_batches import DecodeLimits
from lakestream.errors import Corrupt
from lakestream.model import MiB
from lakestream.records.compression import compressed
from lakestream.schemas.value_format import OTHER_REASONS, ConversionErrorCounts

NOW = 1_700_000_000_000


def good(count: int, first: int) -> list[Record]:
    return [Record(first + at, NOW + at, 0, b"k%d" % at, b"value %d" % at * 5, ((b"h", b"x"),)) for at in range(count)]


def table_of(
    batches: Sequence[bytes],
    offsets: Sequence[int],
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008
    counts: ConversionErrorCounts | None = None,
) -> Any:
    sources = [BatchSource.back_to_back("here", b"".join(batches), offsets)]
    found = list(decode(sources, 0, limits, counts or ConversionErrorCounts()))
    for batch in found:
        batch.validate(full=True)
    return pa.Table.from_batches(found, SCHEMA)


def reasons_in(table: Any) -> dict[int, str]:
    """Returns the reasons by offset."""
    return {
        int(batch.column("_stream").field("offset")[place].as_py()): reason
        for batch in table.to_batches()
        for reason, places in unreadable_rows(batch.column("_stream"))
        for place in places
    }


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_batch_is_one_row_and_its_neighbours_are_decoded(name: str, codec: str) -> None:
    forge, reason = UNREADABLE[name]
    bad = forge()
    before, after = good(3, 0), good(4, 3 + count_of(bad))
    counts = ConversionErrorCounts()
    table = table_of([batch_of(before, codec), bad, batch_of(after, codec)], [0, 3, after[0].offset], counts=counts)
    (found,) = reasons_in(table).items()
    assert found[0] == 3
    assert reason in found[1]
    assert records_of(table) == [*before, as_record(bad, 3, found[1]), *after]
    assert [(one.reason, one.count, one.offset) for one in counts.most_frequent()] == [(found[1], 1, 3)]


def test_all_kinds_of_unreadable_batches_are_decoded_in_a_row() -> None:
    batches, offsets, at = [], [], 0
    for forge, _ in UNREADABLE.values():
        for batch in (forge(), batch_of(good(2, 0))):
            batches.append(batch)
            offsets.append(at)
            at += count_of(batch)
    table = table_of(batches, offsets)
    assert list(reasons_in(table)) == offsets[::2]
    assert table.num_rows == 3 * len(UNREADABLE)
    values = [row.value for row in records_of(table) if row.key is None]
    assert values == [served(batch, offset) for batch, offset in zip(batches[::2], offsets[::2], strict=True)]


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_batch_is_corrupt_when_no_counts_are_given(name: str) -> None:
    forge, reason = UNREADABLE[name]
    with pytest.raises(Corrupt, match=r"^here: record batch at byte 0 \(offset 6\) is damaged: ") as error:
        list(decode([BatchSource.single("here", forge(), 6)], 0))
    assert reason in str(error.value)


@pytest.mark.parametrize("name", UNREADABLE)
def test_batch_with_a_wrong_checksum_stays_corrupt(name: str) -> None:
    """A wrong checksum is damage of storage, whatever the records are."""
    batch = bytearray(UNREADABLE[name][0]())
    batch[-1] ^= 1
    with pytest.raises(Corrupt, match="its checksum does not match its bytes"):
        table_of([batch_of(good(1, 0)), bytes(batch)], [0, 1])


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_split_batch_becomes_rows_as_a_whole_or_not_at_all(codec: str) -> None:
    """The last of its records is invalid, the first ones could be in an earlier Arrow batch."""
    body = b"".join(record_bytes(record, 0, NOW) for record in good(100, 0))
    bad = framed(compressed(body + b"?", codec), 100, attributes=CODECS.index(codec))
    for limits in (
        DecodeLimits(rows_max=7),
        DecodeLimits(headers_max=5),
        DecodeLimits(rows_max=100),
        DecodeLimits(bytes_max=1),
    ):
        table = table_of([batch_of(good(20, 0)), bad, batch_of(good(20, 120))], [0, 20, 120], limits)
        (reason,) = reasons_in(table).values()
        assert records_of(table) == [*good(20, 0), as_record(bad, 20, reason), *good(20, 120)]


def test_timestamp_of_the_row_is_the_max_timestamp_of_the_header() -> None:
    times = [(5, NOW, 0), (NOW, 2**63 - 1, 0), (7, -(2**63), 0), (9, NOW, 8)]
    batches = [
        framed(b"?", 1, attributes=attributes, base_timestamp=base, max_timestamp=newest)
        for base, newest, attributes in times
    ]
    found = records_of(table_of(batches, range(4)))
    assert [(row.timestamp, row.timestamp_type) for row in found] == [
        (NOW, 0),
        (2**63 - 1, 0),
        (-(2**63), 0),
        (NOW, 1),
    ]


def test_batch_that_declares_a_billion_offsets_is_cheap() -> None:
    batches = [UNREADABLE["a billion announced"][0]()] * 3
    table = table_of([*batches, batch_of(good(1, 0))], [0, FAR, 2 * FAR, 3 * FAR])
    assert [row.offset for row in records_of(table)] == [0, FAR, 2 * FAR, 3 * FAR]
    encoded = encode(table)
    assert encoded.last_offsets[-1] == 3 * FAR
    again = [BatchSource.back_to_back("again", bytes(encoded.data), encoded.base_offsets)]
    assert records_of(pa.Table.from_batches(decode(again, 0))) == records_of(table)


def test_batches_that_declare_many_records_are_decoded_together() -> None:
    """If their counts were trusted, each would be a group and an Arrow batch by itself."""
    batches = [framed(b"?", 1_000_000)] * 2_000
    found = list(
        decode(
            [BatchSource.back_to_back("here", b"".join(batches), np.arange(2_000))],
            0,
            unreadable=ConversionErrorCounts(),
        )
    )
    assert len(found) == 1
    assert found[0].num_rows == 2_000


def test_memory_of_a_decompression_bomb_is_released() -> None:
    """Rows would keep its buffer in memory, and there may be many bombs among few rows."""
    limits = DecodeLimits(batch_bytes_max=64 * MiB)
    bomb, count = framed(compressed(bytes(100 * MiB), "zstd"), 1, attributes=4), 10
    batches = [batch for at in range(count) for batch in (batch_of(good(1, 2 * at), "zstd"), bomb)]
    before = pa.total_allocated_bytes()
    table = table_of(batches, range(2 * count), limits)
    assert table.num_rows == 2 * count
    assert pa.total_allocated_bytes() - before < 40 * MiB, "one buffer"


def test_reasons_written_by_clients_are_truncated_and_bounded() -> None:
    """Copies of a topic have it. Reasons are truncated, and only REASONS_MAX are distinguished."""
    header = HEADER.encode()
    records = [Record(at, NOW, 0, b"k", b"v", ((header, b"r%d" % at),)) for at in range(REASONS_MAX + 5)]
    more = [(header, b"x" * 10_000), (header, b"\xff"), (header, None), (b"h" * len(header), b"no")]
    records += [Record(500 + at, NOW, 0, None, None, (pair,)) for at, pair in enumerate(more)]
    records += [
        Record(600, NOW, 0, None, None, ((b"first", b""), (header, b"second"))),
        Record(601, NOW, 0, None, None),
    ]
    (batch,) = decode([BatchSource.single("here", batch_of(records), 0)], 0)
    found = dict(unreadable_rows(batch.column("_stream")))
    assert len(found) == REASONS_MAX + 1
    assert len(found[OTHER_REASONS]) == 5 + 3
    (few,) = decode([BatchSource.single("here", batch_of(records[-6:]), 0)], 0)
    found = {reason: places.tolist() for reason, places in unreadable_rows(few.column("_stream"))}
    assert found == {"x" * REASON_SIZE_MAX: [0], "\ufffd": [1], "": [2]}
    assert unreadable_rows(few.slice(3).column("_stream")) == []
    assert [places.tolist() for _, places in unreadable_rows(few.slice(1, 2).column("_stream"))] == [[0], [1]]
