"""Footers of wide tables: the byte ranges of requested columns."""

import io
import time

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.data.table.read.parquet_footer import Footer, read_footer


def footer_of(schema: pa.Schema) -> Footer:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{}, {}], schema), out, store_schema=False)
    body = out.getvalue()
    return read_footer(body, len(body), "f.parquet")


def field(name: str, number: int, kind: pa.DataType | None = None) -> pa.Field:
    return pa.field(name, kind or pa.int64(), metadata={b"PARQUET:field_id": str(number)})


def test_spans_are_those_of_requested_columns_and_of_columns_nested_in_them() -> None:
    inner = pa.struct([field("b", 21), field("bc", 22)])
    footer = footer_of(pa.schema([field("a", 20, inner), field("ab", 23), field("a.d", 24)]))
    all_spans = dict(footer.groups[0].chunks)
    assert set(all_spans) == {"a.b", "a.bc", "ab", "a.d"}
    assert footer.spans(0, {21: ("a", "b")}) == [all_spans["a.b"]]
    assert footer.spans(0, {23: ("ab",)}) == [all_spans["ab"]]
    assert footer.spans(0, {20: ("a",)}) == [all_spans[path] for path in all_spans if path != "ab"]
    assert footer.spans(0, {}) == []


def test_spans_are_found_in_little_time_when_the_table_has_many_columns() -> None:
    footer = footer_of(pa.schema([field(f"column_{number}", number + 20) for number in range(3_000)]))
    began_s = time.thread_time()
    assert len(footer.spans(0, footer.paths)) == 3_000
    assert time.thread_time() - began_s < 0.03
