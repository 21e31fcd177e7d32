"""Parquet files of rows: complete, in order, with the metrics that Iceberg's readers use."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.types import IntegerType, LongType, TimestamptzType
from tests.harness.table.reference_codec import LONG_MAX, LONG_MIN, Record, batch_of, records_of

from lakestream.catalog.topic_table.columns import OFFSET_ID, PARTITION_ID, TIMESTAMP_ID
from lakestream.catalog.topic_table.properties import DEFAULTS
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.decoded_batches import DecodeLimits
from lakestream.data.table.write.parquet_writer import ParquetSettings, WrittenFile, write_parquet
from lakestream.errors import Corrupt
from lakestream.model import MiB

ODD = [
    Record(5, 1_700_000_000_000, 0, b"k", b"v"),
    Record(6, -1, 0, None, None),
    Record(9, LONG_MAX, 0, b"", b"", ((b"h", None), (b"h", b""), (b"\xff", b"raw"))),
    Record(10, LONG_MIN, 0, b"k" * 300, b"x" * 5000),
]


def rows(records: Sequence[Record], partition: int = 3, limits: DecodeLimits | None = None) -> Iterator[Any]:
    source = BatchSource.single("x", batch_of(records), records[0].offset)
    return decode([source], partition, limits or DecodeLimits())


def many(count: int, first: int = 0, size: int = 100) -> list[Record]:
    return [
        Record(first + number, 1000 + number, 0, b"key%d" % (number % 7), number.to_bytes(4, "big") * (size // 4))
        for number in range(count)
    ]


def written(batches: Any, **chosen: Any) -> list[WrittenFile]:
    return list(write_parquet(batches, lambda offset: f"s3://lake/data/{offset}.parquet", ParquetSettings(**chosen)))


def read(file: WrittenFile) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(file.body), page_checksum_verification=True).read()


def test_written_rows_are_read_back() -> None:
    (file,) = written(rows(ODD))
    assert isinstance(file.body, memoryview)
    assert file.body.format == "B", "object stores require it"
    assert records_of(read(file)) == ODD
    found = file.description
    assert (found.location, found.partition) == ("s3://lake/data/5.parquet", 3)
    assert (found.offset_first, found.offset_last, found.record_count, found.size) == (5, 10, 4, len(file.body))


def test_statistics_are_those_of_the_rows() -> None:
    (file,) = written(rows(ODD))
    found = pickle.loads(pickle.dumps(file.description))
    assert found == file.description
    assert found.value_counts == dict.fromkeys([1, 3, 4, 5, 6, 7, 8, 10, 11], 4)
    assert found.null_counts == {1: 1, 3: 0, 4: 0, 5: 2, 6: 2, 7: 0, 8: 1, 10: 4, 11: 4}
    assert set(found.column_sizes) == {1, 3, 4, 5, 6, 7, 8, 10, 11, 13, 14, 15}
    assert sum(found.column_sizes.values()) < found.size
    expected: list[tuple[int, Any, int, int]] = [
        (PARTITION_ID, IntegerType(), 3, 3),
        (OFFSET_ID, LongType(), 5, 10),
        (TIMESTAMP_ID, TimestamptzType(), -1000, 1_700_000_000_000_000),
        (6, LongType(), LONG_MIN, LONG_MAX),
    ]
    for number, kind, low, high in expected:
        bounds: list[Any] = [from_bytes(kind, side[number]) for side in (found.lower_bounds, found.upper_bounds)]
        assert bounds == [low, high]
    assert set(found.lower_bounds) == set(found.upper_bounds) == {3, 4, 5, 6, 7}, "none of keys, values and nulls"


def test_file_has_field_ids_and_no_arrow_schema() -> None:
    footer = pq.ParquetFile(pa.BufferReader(written(rows(ODD))[0].body)).metadata
    assert footer.metadata is None
    columns = {column.path_in_schema: column for column in map(footer.row_group(0).column, range(footer.num_columns))}
    assert {path: column.compression for path, column in columns.items()} == dict.fromkeys(columns, "ZSTD")
    assert "DELTA_BINARY_PACKED" in columns["_stream.offset"].encodings
    assert columns["_stream.offset"].has_offset_index
    assert columns["value"].statistics is None
    assert footer.row_group(0).sorting_columns[0].column_index == 2


def test_dictionary_is_used_when_values_repeat() -> None:
    (file,) = written(rows(many(1000)))
    footer = pq.read_metadata(pa.BufferReader(file.body))
    columns = {column.path_in_schema: column for column in map(footer.row_group(0).column, range(footer.num_columns))}
    assert columns["_stream.key"].has_dictionary_page
    assert not columns["value"].has_dictionary_page


def test_row_groups_and_files_end_at_their_size() -> None:
    records = many(5000)
    limits = DecodeLimits(rows_max=700)
    files = written(rows(records, limits=limits), group_bytes_max=20_000, file_bytes_max=10_000)
    assert len(files) > 3
    assert [record for file in files for record in records_of(read(file))] == records
    reached = -1
    for file in files:
        found = file.description
        assert found.offset_first == reached + 1
        reached = found.offset_last
        footer = pq.read_metadata(pa.BufferReader(file.body))
        starts = [footer.row_group(group).column(0) for group in range(footer.num_row_groups)]
        assert list(found.split_offsets) == [
            column.dictionary_page_offset or column.data_page_offset for column in starts
        ]
        assert list(found.split_offsets) == sorted(set(found.split_offsets))
        for group in range(footer.num_row_groups):
            assert footer.row_group(group).num_rows <= 20_000 // 132
    assert reached == 4999
    assert sum(file.description.record_count for file in files) == 5000


def test_row_larger_than_a_row_group_is_a_row_group() -> None:
    records = [Record(0, 0, 0, None, b"a"), Record(1, 0, 0, None, b"b" * 5000), Record(2, 0, 0, None, b"c")]
    (file,) = written(rows(records), group_bytes_max=100)
    assert records_of(read(file)) == records
    assert len(file.description.split_offsets) == 3


def test_no_rows_make_no_file() -> None:
    assert written([]) == []


@pytest.mark.parametrize("offsets", [(5, 5), (6, 5)])
def test_offsets_that_do_not_ascend_are_never_written(offsets: tuple[int, int]) -> None:
    one, other = (next(rows([Record(offset, 0, 0, None, b"x")])) for offset in offsets)
    with pytest.raises(Corrupt, match="do not ascend"):
        written([one, other])


def test_rows_of_two_partitions_are_never_written_together() -> None:
    one, other = next(rows(many(2), partition=1)), next(rows(many(2, first=2), partition=2))
    with pytest.raises(Corrupt, match="other partitions"):
        written([one, other])


def test_flipped_bit_is_detected() -> None:
    (file,) = written(rows(many(2000)))
    body = bytearray(file.body)
    body[5000] ^= 1
    with pytest.raises(OSError, match=r"(?i)checksum|crc"):
        read(WrittenFile(bytes(body), file.description))


def test_settings_follow_table_properties() -> None:
    assert ParquetSettings.of({}) == ParquetSettings()
    chosen = ParquetSettings.of({"write.target-file-size-bytes": str(8 * MiB), "write.parquet.compression-level": "3"})
    assert (chosen.file_bytes_max, chosen.codec, chosen.level) == (8 * MiB, "zstd", 3)
    sizes = {"write.parquet.row-group-size-bytes": "5000", "write.parquet.page-size-bytes": "700"}
    chosen = ParquetSettings.of({**sizes, "write.parquet.compression-codec": "GZIP"})
    assert (chosen.group_bytes_max, chosen.page_bytes_max, chosen.codec, chosen.level) == (5000, 700, "gzip", 0)
    assert ParquetSettings.of(DEFAULTS) == ParquetSettings(), "the defaults of every table are for engines"
    for text in ("", "-5", "0", "many", "9" * 40, "²"):
        assert ParquetSettings.of(
            dict.fromkeys(["write.target-file-size-bytes", "write.parquet.compression-level"], text)
        ) == (ParquetSettings())


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    rows_max=st.integers(1, 20),
    group=st.integers(1, 2000),
    file=st.integers(1, 5000),
)
def test_every_split_keeps_every_row(sizes: list[int], rows_max: int, group: int, file: int) -> None:
    records = [Record(number * 2, number, 0, None, bytes(size)) for number, size in enumerate(sizes)]
    files = written(rows(records, limits=DecodeLimits(rows_max=rows_max)), group_bytes_max=group, file_bytes_max=file)
    assert [record for one in files for record in records_of(read(one))] == records


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed"])
def test_every_codec_of_table_properties_is_written(codec: str) -> None:
    chosen = ParquetSettings.of({"write.parquet.compression-codec": codec, "write.parquet.compression-level": "5"})
    (file,) = write_parquet(rows(many(50)), str, chosen)
    assert len(read(file)) == 50
    codec_name = pq.ParquetFile(pa.BufferReader(pa.py_buffer(file.body))).metadata.row_group(0).column(0).compression
    assert codec_name == codec.upper()
