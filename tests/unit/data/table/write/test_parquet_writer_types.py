"""Parquet files with columns of every type: read back unchanged, with the metrics that pyiceberg computes."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from tests.harness.table.typed_rows import all_types, batch

from lakestream.data.table.write.column_bounds import bounds_of, single_value
from lakestream.data.table.write.parquet_columns import leaves_of
from lakestream.data.table.write.parquet_writer import ParquetSettings, WrittenFile, write_parquet
from lakestream.schemas.columns import Column, Fields, Foreign, ListColumn, iceberg_fields, primitive_of, pruned
from lakestream.schemas.types import Kind, Primitive


def iceberg() -> Schema:
    return Schema.model_validate({"type": "struct", "schema-id": 0, "fields": iceberg_fields(all_types())})


def written(batches: list[Any], **chosen: Any) -> list[WrittenFile]:
    return list(write_parquet(batches, str, ParquetSettings(**chosen), all_types()))


def footer_of(file: WrittenFile) -> Any:
    return pq.read_metadata(pa.BufferReader(file.body))


def test_written_values_of_all_types_are_read_back() -> None:
    rows = batch(range(100))
    (file,) = written([rows])
    found = pq.ParquetFile(pa.BufferReader(file.body), page_checksum_verification=True).read()
    for name in rows.schema.names[:-1]:
        there, expected = found.column(name).to_pylist(), rows.column(name).to_pylist()
        assert [str(one) for one in there] == [str(one) for one in expected], name
    assert set(file.description.column_sizes) == {leaf.field_id for leaf in leaves_of(all_types()).all}


def test_parquet_types_are_those_of_the_iceberg_specification() -> None:
    (file,) = written([batch(range(5))])
    text = str(footer_of(file).schema)
    for line in (
        "optional fixed_len_byte_array(16) field_id=26 unique (UUID);",
        "optional fixed_len_byte_array(4) field_id=27 four;",
        "optional int32 field_id=29 price (Decimal(precision=9, scale=2));",
        "optional int64 field_id=30 sum (Decimal(precision=18, scale=4));",
        "optional fixed_len_byte_array(9) field_id=31 unsigned (Decimal(precision=20, scale=0));",
        "optional int64 field_id=22 clock (Time(isAdjustedToUTC=false, timeUnit=microseconds));",
        "optional group field_id=80 grid (List) {",
        "optional group field_id=81 element (List) {",
        "optional int64 field_id=82 element;",
        "optional group field_id=90 counts (Map) {",
        "required binary field_id=91 key (String);",
        "optional group field_id=102 value {",
    ):
        assert line in text, line


@pytest.mark.parametrize("numbers", [range(60), range(3, 4), range(4, 5)])
def test_metrics_equal_those_of_pyiceberg(numbers: range) -> None:
    files = [batch(numbers[start : start + 9]) for start in range(0, len(numbers), 9)]
    (file,) = written(files, group_bytes_max=3000)
    footer, schema, found = footer_of(file), iceberg(), file.description
    assert len(numbers) < 10 or footer.num_row_groups > 2
    theirs = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    ).to_serialized_dict()
    bounded = {leaf.field_id for leaf in leaves_of(all_types()).all if leaf.is_bounded}
    assert bounded >= {*range(16, 33), 61, 62} - {26}, "all but the unique ones, which libraries do not agree on"
    for number in bounded - set(range(12)):
        kind: Any = schema.find_type(number)
        for ours, other in (
            (found.lower_bounds, theirs["lower_bounds"]),
            (found.upper_bounds, theirs["upper_bounds"]),
        ):
            if number < 60:  # pyiceberg has none for struct fields, other libraries do
                assert (number in ours) == (number in other), (number, kind)
            if number in other:
                assert from_bytes(kind, ours[number]) == from_bytes(kind, other[number]), (number, kind)
        assert found.value_counts[number] == theirs["value_counts"][number] == len(numbers)
        assert found.null_counts[number] == theirs["null_value_counts"][number]


def test_nan_is_in_no_bound() -> None:
    (file,) = written([batch([4, 9])])  # both are NaN in `single`
    assert 19 not in file.description.lower_bounds
    (file,) = written([batch([4]), batch([5]), batch([8])], group_bytes_max=1)
    kind: Any = iceberg().find_type(19)
    bounds: list[Any] = [from_bytes(kind, side[19]) for side in _sides(file)]
    assert bounds == [-1.25, 2.0]


def _sides(file: WrittenFile) -> tuple[Any, Any]:
    return file.description.lower_bounds, file.description.upper_bounds


def bounds_for(kind: str, *values: Any) -> tuple[bytes | None, bytes | None]:
    found = primitive_of(kind)
    assert found is not None
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": pa.array(values, pa.string() if kind == "string" else pa.binary())}), sink)
    return bounds_of(found, [pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0).column(0)])


def test_long_bounds_are_truncated_and_the_upper_one_incremented() -> None:
    assert bounds_for("string", "b" * 20, "a" * 20) == (b"a" * 16, b"b" * 15 + b"c")
    assert bounds_for("string", "a" * 16) == (b"a" * 16, b"a" * 16)
    assert bounds_for("string", "a" * 15 + "\ud7ff" + "z") == (
        ("a" * 15 + "\ud7ff").encode(),
        ("a" * 15 + "\ue000").encode(),
    )
    assert bounds_for("string", "a" + "\U0010ffff" * 20) == (("a" + "\U0010ffff" * 15).encode(), b"b")
    assert bounds_for("string", "\U0010ffff" * 20)[1] is None
    assert bounds_for("binary", b"\xff" * 20) == (b"\xff" * 16, None)
    assert bounds_for("binary", b"a" + b"\xff" * 20) == (b"a" + b"\xff" * 15, b"b")
    assert bounds_for("string", "a", "b" * 10_000) == (None, None), "Parquet footers lack bounds of such long values"
    assert bounds_for("string", None, None) == (None, None)


def test_decimals_take_as_few_bytes_as_they_need() -> None:
    kind = Primitive(Kind.DECIMAL, precision=38, scale=2)
    assert [single_value(kind, value) for value in (0, 127, 128, -128, -129)] == [
        *(b"\x00", b"\x7f", b"\x00\x80", b"\x80", b"\xff\x7f")
    ]


def test_dictionary_is_used_when_converted_values_repeat() -> None:
    (file,) = written([batch(range(200))])
    footer = footer_of(file)
    found = {column.path_in_schema: column for column in map(footer.row_group(0).column, range(footer.num_columns))}
    assert found["tags.list.element"].has_dictionary_page
    assert found["nested.key_value.value.sizes.list.element"].has_dictionary_page
    assert not found["large"].has_dictionary_page
    assert not found["text"].has_dictionary_page


def test_only_the_first_of_many_columns_have_bounds() -> None:
    many = tuple(Column(16 + number, f"c{number}", Primitive(Kind.INT)) for number in range(300))
    leaves = leaves_of((*many, all_types()[-1])).all
    assert sum(leaf.is_bounded and leaf.is_typed for leaf in leaves) == 100
    assert all(leaf.is_bounded for leaf in leaves if leaf.path == "_stream.offset")


def test_columns_that_engines_added_are_left_out() -> None:
    int_type = Primitive(Kind.INT)
    columns = (
        Column(16, "a", int_type),
        Column(17, "theirs", int_type),
        Column(18, "shape", Foreign("variant")),
        Column(19, "s", Fields((Column(20, "x", int_type), Column(21, "theirs", int_type)))),
        Column(22, "gone", Fields((Column(23, "theirs", int_type),))),
        Column(24, "l", ListColumn(Column(25, "element", Fields((Column(26, "x", int_type),))))),
    )
    assert pruned(columns, {16, 18, 19, 20, 22, 24, 25, 26}) == (
        columns[0],
        Column(19, "s", Fields((Column(20, "x", int_type),))),
        columns[5],
    )


def test_lists_of_uuids_with_nulls_are_written() -> None:
    """Arrow has no builder for UUIDs, so many functions do not support them."""
    uuid = primitive_of("uuid")
    assert uuid is not None
    columns = (Column(16, "ids", ListColumn(Column(17, "element", uuid))), all_types()[-1])
    plain = batch(range(3))
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, None, b"b" * 16], pa.binary(16)))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), ids, mask=pa.array([False, True, False]))
    schema = leaves_of(columns).schema
    made = pa.RecordBatch.from_arrays([lists.cast(schema.field(0).type), plain.column("_stream")], schema=schema)
    (file,) = write_parquet([made], str, None, columns)
    found = pq.ParquetFile(pa.BufferReader(file.body)).read().column("ids")
    assert [None if one is None else len(one) for one in found.to_pylist()] == [2, None, 1]
