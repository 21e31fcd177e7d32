"""Rows are written to sorted files of their partitions, each row once."""

import io
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.harness.table.history_tables import many, rows_of

from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, check_new_files
from lakestream.catalog.topic_table.columns import FIRST_FREE_ID, OFFSET_ID, PARTITION_ID, TIMESTAMP_ID
from lakestream.catalog.topic_table.file_layout import FileLayout, SortKey, TransformedColumn
from lakestream.data.table.arrow.types import PLAIN_COLUMNS, arrow_schema, primitive_type
from lakestream.data.table.write import partitioned_writer
from lakestream.data.table.write.parquet_writer import ParquetSettings, Stamp
from lakestream.data.table.write.partitioned_writer import write_files, write_sorted
from lakestream.errors import Corrupt
from lakestream.schemas.columns import Column
from lakestream.schemas.layout_terms import Transform
from lakestream.schemas.types import Kind, Primitive

INT, STRING, DOUBLE = Primitive(Kind.INT), Primitive(Kind.STRING), Primitive(Kind.DOUBLE)
C = FIRST_FREE_ID
KEY_ID = 8


def typed(kind: Primitive, values: Sequence[Any], start: int = 0) -> tuple[list[Any], tuple[Column, ...]]:
    """Returns rows with one more column."""
    columns = (Column(C, "c", kind), *PLAIN_COLUMNS)
    rows = rows_of(many(start, start + len(values)))
    rows = rows.add_column(0, pa.field("c", primitive_type(kind)), pa.array(values, primitive_type(kind)))
    return rows.cast(arrow_schema(columns)).to_batches(max_chunksize=7), columns


class Made:
    def __init__(self) -> None:
        self.files: list[FileDescription] = []
        self.rows: list[list[dict[str, Any]]] = []

    def write(self, batches: Any, columns: Any, layout: FileLayout, window: int = 1 << 20, **settings: Any) -> "Made":
        parquet_settings = ParquetSettings(**settings)
        for body, file in write_files(batches, lambda at: f"f{at}", parquet_settings, columns, layout, 0, window):
            self.files.append(file)
            self.rows.append(pq.read_table(io.BytesIO(bytes(body))).to_pylist())
            offsets = [row["_stream"]["offset"] for row in self.rows[-1]]
            assert (min(offsets), max(offsets), len(offsets)) == (
                file.offset_first,
                file.offset_last,
                file.record_count,
            )
        return self

    def offsets(self) -> list[int]:
        return sorted(row["_stream"]["offset"] for rows in self.rows for row in rows)

    def column(self, name: str = "c") -> dict[Any, list[Any]]:
        """Returns the values of a column by partition."""
        found: dict[Any, list[Any]] = {}
        for file, rows in zip(self.files, self.rows, strict=True):
            found.setdefault(file.values, []).extend(row[name] for row in rows)
        return found


def by(source_id: int, kind: Primitive, transform: str = "identity") -> TransformedColumn:
    made = Transform.of(transform)
    assert made is not None
    return TransformedColumn(source_id, kind, made)


def test_one_file_is_written_per_partition_value() -> None:
    values = ["de", None, "fr", "de", "", "fr", None, "de", "de", "us"] * 5
    layout = FileLayout(3, (by(PARTITION_ID, INT), by(C, STRING)))
    made = Made().write(*typed(STRING, values), layout)
    assert made.offsets() == list(range(50))
    assert {file.spec_id for file in made.files} == {3}
    assert {one: set(found) for one, found in made.column().items()} == {
        (0, value): {value} for value in (None, "", "de", "fr", "us")
    }
    check_new_files(made.files, [MovedRange(0, 0, 50)])
    for rows in made.rows:
        assert [row["_stream"]["offset"] for row in rows] == sorted(row["_stream"]["offset"] for row in rows)


def test_files_are_written_for_combinations_of_transforms() -> None:
    luck = random.Random(3)
    values = [luck.choice([None, *range(-20, 20)]) for _ in range(200)]
    cuts = (by(C, INT, "bucket[3]"), by(C, INT, "truncate[10]"), by(TIMESTAMP_ID, Primitive(Kind.TIMESTAMPTZ), "day"))
    made = Made().write(*typed(INT, values), FileLayout(1, cuts), window=600)
    assert made.offsets() == list(range(200))
    for (bucket, width, day), found in made.column().items():
        assert day == 19675
        assert (bucket is None) == (width is None) == (None in found)
        assert all(one is None or one // 10 * 10 == width for one in found)
    assert len(made.files) == len({file.values for file in made.files}), "a file spans windows"


@pytest.mark.parametrize("kind", [INT, STRING, DOUBLE, Primitive(Kind.DECIMAL, precision=9, scale=2)], ids=str)
def test_void_does_not_split_rows(kind: Primitive) -> None:
    values = [None, *("12" if kind is STRING else Decimal(1) if kind.precision else 1 for _ in range(9))]
    made = Made().write(*typed(kind, values), FileLayout(1, (by(C, kind, "void"), by(PARTITION_ID, INT))))
    assert [(file.values, file.record_count) for file in made.files] == [((None, 0), 10)]


def test_file_is_closed_when_it_reaches_its_size() -> None:
    layout = FileLayout(1, (by(C, INT),))
    made = Made().write(*typed(INT, [at % 3 for at in range(300)]), layout, window=2_000, file_bytes_max=4_000)
    assert made.offsets() == list(range(300))
    assert len(made.files) > 3
    check_new_files(made.files, [MovedRange(0, 0, 300)])


def test_number_of_open_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned_writer, "FILES_MAX", 4)
    layout = FileLayout(1, (by(C, INT),))
    made = Made().write(*typed(INT, [at % 10 for at in range(200)]), layout, window=5_000)
    assert made.offsets() == list(range(200))
    assert len(made.files) > 10
    check_new_files(made.files, [MovedRange(0, 0, 200)])


def test_rows_above_the_partition_limit_share_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned_writer, "PARTITIONS_MAX", 5)
    batches, columns = typed(INT, list(range(100)))
    made = Made().write(batches, columns, FileLayout(1, (by(C, INT),)), window=2_000)
    assert made.offsets() == list(range(100))
    assert sorted(file.values for file in made.files if file.spec_id == 1) == [(at,) for at in range(5)]
    (rest,) = [file for file in made.files if file.spec_id is None]
    assert (rest.values, rest.record_count) == ((), 95)
    check_new_files(made.files, [MovedRange(0, 0, 100)])
    made = Made().write(batches, columns, FileLayout(1, (by(C, INT),), has_rest=False))
    assert len(made.files) == 100, "there is no other spec for these rows"


def test_shared_file_of_many_partitions_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of their rows are interleaved."""
    monkeypatch.setattr(partitioned_writer, "PARTITIONS_MAX", 2)
    values = [at % 7 for at in range(100)]
    batches, columns = typed(INT, values)
    made = Made().write(batches, columns, FileLayout(1, (by(C, INT),)), window=2_000)
    assert made.offsets() == list(range(100))
    (rest,) = [rows for file, rows in zip(made.files, made.rows, strict=True) if file.spec_id is None]
    assert [row["c"] for row in rest] == [value for value in values if value > 1]
    layout = FileLayout(1, (by(C, INT),), 3, (SortKey(by(OFFSET_ID, Primitive(Kind.LONG)), True, True),))
    made = Made().write(batches, columns, layout, window=2_000)
    assert made.offsets() == list(range(100))
    for rows in made.rows:
        offsets = [row["_stream"]["offset"] for row in rows]
        assert offsets == sorted(offsets, reverse=True)


def test_all_nans_are_one_partition() -> None:
    other = float(np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0])
    made = Made().write(*typed(DOUBLE, [math.nan, -math.nan, other, None, 1.5, 0.0]), FileLayout(1, (by(C, DOUBLE),)))
    assert sorted(str(file.values) for file in made.files) == ["(0.0,)", "(1.5,)", "(None,)", "(nan,)"]


def test_decimal_partition_values_are_bytes_as_in_manifests() -> None:
    kind = Primitive(Kind.DECIMAL, precision=5, scale=2)
    made = Made().write(*typed(kind, [Decimal("-1.23"), None, Decimal("4.56")]), FileLayout(1, (by(C, kind),)))
    found = [file.values[0] for file in sorted(made.files, key=lambda file: file.offset_first)]
    assert found == [(-123).to_bytes(3, "big", signed=True), None, (456).to_bytes(3, "big")]


def test_rows_without_converted_columns_are_partitioned() -> None:
    rows = rows_of(many(0, 50)).cast(arrow_schema(PLAIN_COLUMNS)).to_batches()
    made = Made().write(rows, PLAIN_COLUMNS, FileLayout(1, (by(KEY_ID, Primitive(Kind.BINARY)),)))
    assert sorted(file.values for file in made.files) == [(b"k%d" % at,) for at in range(5)]
    plain = Made().write(rows, PLAIN_COLUMNS, FileLayout(2, (by(PARTITION_ID, INT),)))
    assert [(file.spec_id, file.values) for file in plain.files] == [(2, (0,))]
    none = Made().write(rows, PLAIN_COLUMNS, FileLayout(4))
    assert [(file.spec_id, file.values) for file in none.files] == [(4, ())]


@pytest.mark.parametrize("kind", [INT, Primitive(Kind.DECIMAL, precision=9, scale=2)], ids=str)
def test_partition_value_is_null_when_rows_lack_the_column(kind: Primitive) -> None:
    rows = rows_of(many(0, 5)).cast(arrow_schema(PLAIN_COLUMNS)).to_batches()
    made = Made().write(rows, PLAIN_COLUMNS, FileLayout(1, (by(C, kind),)))
    assert [file.values for file in made.files] == [(None,)]


# Orders


def key(kind: Primitive, *, down: bool = False, nulls_first: bool = True, transform: str = "identity") -> SortKey:
    return SortKey(by(C, kind, transform), down, nulls_first)


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize(
    ("kind", "ordered"),
    [
        (INT, [-(2**31), -1, 0, 2**31 - 1]),
        (Primitive(Kind.LONG), [-(2**63), 0, 2**63 - 1]),
        (STRING, ["", "B", "a", "ä", "\N{GRINNING FACE}"]),
        (Primitive(Kind.BINARY), [b"", b"\0", b"a", b"\xff"]),
        (Primitive(Kind.BOOLEAN), [False, True]),
        (Primitive(Kind.DECIMAL, precision=20, scale=1), [Decimal("-1.5"), Decimal("0.0"), Decimal("99999999999.9")]),
        (DOUBLE, [-math.inf, -1.0, -0.0, 0.0, 5e-324, math.inf, math.nan]),
    ],
    ids=lambda one: str(one)[:20],
)
def test_every_type_is_sorted_as_iceberg_sorts_it(
    kind: Primitive, ordered: list[Any], nulls_first: bool, down: bool
) -> None:
    values = [*ordered, None, *ordered]
    random.Random(1).shuffle(values)
    layout = FileLayout(1, (), 7, (key(kind, down=down, nulls_first=nulls_first),))
    made = Made().write(*typed(kind, values), layout)
    (rows,), (file,) = made.rows, made.files
    assert (file.order_id, made.offsets()) == (7, list(range(len(values))))
    twice = [one for one in (reversed(ordered) if down else ordered) for _ in range(2)]
    assert str([row["c"] for row in rows]) == str([None, *twice] if nulls_first else [*twice, None])
    equal: dict[str, list[int]] = {}
    for row in rows:
        equal.setdefault(str(row["c"]), []).append(row["_stream"]["offset"])
    assert all(offsets == sorted(offsets) for offsets in equal.values()), "equal rows are sorted by offset"


def test_files_end_with_their_window_when_rows_are_sorted() -> None:
    luck = random.Random(5)
    values = [luck.choice([None, *range(100)]) for _ in range(300)]
    layout = FileLayout(2, (by(C, INT, "bucket[2]"),), 3, (key(INT, down=True, nulls_first=False),))
    made = Made().write(*typed(INT, values), layout, window=4_000)
    assert made.offsets() == list(range(300))
    check_new_files(made.files, [MovedRange(0, 0, 300)])
    assert len(made.files) >= 9
    for rows in made.rows:
        found = [(row["c"] is None, -(row["c"] or 0), row["_stream"]["offset"]) for row in rows]
        assert found == sorted(found)


def test_large_window_is_several_sorted_files() -> None:
    values = [(at * 37) % 101 for at in range(500)]
    layout = FileLayout(2, (), 3, (key(INT),))
    made = Made().write(*typed(INT, values), layout, file_bytes_max=3_000, group_bytes_max=1_000)
    assert len(made.files) > 2
    assert [row["c"] for rows in made.rows for row in rows] == sorted(values)
    check_new_files(made.files, [MovedRange(0, 0, 500)])


def test_footer_has_the_sort_order() -> None:
    batches, columns = typed(INT, [3, 1, 2])
    sort = (key(INT, down=True), SortKey(by(OFFSET_ID, Primitive(Kind.LONG)), False, True))
    ((body, _),) = write_files(batches, str, ParquetSettings(), columns, FileLayout(1, (), 3, sort), 0)
    first, second = pq.ParquetFile(io.BytesIO(bytes(body))).metadata.row_group(0).sorting_columns
    assert (first.column_index, first.descending, second.descending) == (0, True, False)


def test_rows_with_descending_offsets_are_corrupt() -> None:
    (one, *_), columns = typed(INT, [3, 1, 2])
    with pytest.raises(Corrupt, match="do not ascend"):
        Made().write([one, one], columns, FileLayout(1, (by(C, INT),)))
    with pytest.raises(Corrupt, match="do not ascend"):
        Made().write([one, one], columns, FileLayout(1, (by(C, INT),)), window=1)


def test_rows_of_one_partition_are_sorted_by_write_sorted() -> None:
    batches, columns = typed(INT, [3, 1, None, 2])
    stamp = Stamp(5, (1,), 6, (key(INT),))
    ((body, file),) = write_sorted(batches, str, ParquetSettings(), columns, stamp)
    assert [row["c"] for row in pq.read_table(io.BytesIO(bytes(body))).to_pylist()] == [None, 1, 2, 3]
    assert (file.spec_id, file.values, file.order_id) == (5, (1,), 6)
    ((body, file),) = write_sorted(batches[::-1], str, ParquetSettings(), columns, Stamp())
    assert [row["c"] for row in pq.read_table(io.BytesIO(bytes(body))).to_pylist()] == [3, 1, None, 2]
    assert file.order_id is None
