"""Conversion of column statistics to Delta. Bounds never get narrower."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.catalog.iceberg_tables import field

from lakestream.catalog.delta.stats import NAN_COUNTS, stats_of
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.data.table.write.column_bounds import single_value
from lakestream.schemas.columns import primitive_of

DAY_US = 24 * 60 * 60 * 1_000_000


def stats(kind: str, low: bytes, high: bytes) -> tuple[Any, Any]:
    data_file = {f.RECORD_COUNT: 3, f.LOWER_BOUNDS: {1: low}, f.UPPER_BOUNDS: {1: high}}
    stats_json = json.loads(stats_of(data_file, {"fields": [field(1, "a", kind)]}, {1: "a"}), parse_float=Decimal)
    assert stats_json["numRecords"] == 3
    return stats_json.get("minValues", {}).get("a"), stats_json.get("maxValues", {}).get("a")


def value(kind: str, one: Any) -> bytes:
    primitive = primitive_of(kind)
    assert primitive is not None
    return single_value(primitive, one)


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("int", -5, 7, (-5, 7)),
        ("long", -(2**63), 2**63 - 1, (-(2**63), 2**63 - 1)),
        ("date", -1, 19_000, ("1969-12-31", "2022-01-08")),
        ("timestamptz", 1, 1, ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.001Z")),
        ("timestamp", -1, DAY_US, ("1969-12-31T23:59:59.999", "1970-01-02T00:00:00.000")),
        ("timestamptz", -(2**63), 2**63 - 1, (None, None)),
        ("date", -(2**31), 2**31 - 1, (None, None)),
        ("string", b"a", "ü".encode(), ("a", "ü")),
        ("string", b"\xff", b"z", (None, "z")),
        ("decimal(20, 2)", -150, 10**19, (Decimal("-1.50"), Decimal("100000000000000000.00"))),
        (
            "decimal(38, 10)",
            1 - 10**38,
            10**38 - 1,
            (Decimal(f"-{'9' * 28}.{'9' * 10}"), Decimal(f"{'9' * 28}.{'9' * 10}")),
        ),
        ("binary", b"a", b"b", (None, None)),
        ("boolean", False, True, (None, None)),
    ],
)
def test_bounds_are_converted(kind: str, low: Any, high: Any, expected: tuple[Any, Any]) -> None:
    assert stats(kind, value(kind, low), value(kind, high)) == expected


def test_bounds_are_absent_when_a_value_may_be_nan() -> None:
    low, high = value("double", 1.5), value("double", 2.5)
    assert stats("double", low, high) == (None, None)
    known = {NAN_COUNTS: {1: 0}}
    data_file = {f.RECORD_COUNT: 3, f.LOWER_BOUNDS: {1: low}, f.UPPER_BOUNDS: {1: high}} | known
    stats_json = json.loads(stats_of(data_file, {"fields": [field(1, "a", "double")]}, {1: "a"}))
    assert (stats_json["minValues"], stats_json["maxValues"]) == ({"a": 1.5}, {"a": 2.5})


def test_bounds_of_a_widened_column_are_read() -> None:
    assert stats("long", value("int", -5), value("int", 7)) == (-5, 7)


def test_statistics_use_names_in_files_and_skip_lists() -> None:
    inner = {"type": "struct", "fields": [field(2, "b", "int"), field(4, "c", "int")]}
    listed = {"type": "list", "element-id": 6, "element": "int", "element-required": False}
    data_file = {f.RECORD_COUNT: 1, f.NULL_COUNTS: {2: 1, 6: 5}, f.LOWER_BOUNDS: {2: value("int", 3)}}
    schema = {"fields": [field(1, "s", inner), field(5, "l", listed)]}
    stats_json = json.loads(stats_of(data_file, schema, {1: "x", 2: "y", 4: "c", 5: "l"}))
    assert stats_json == {"numRecords": 1, "minValues": {"x": {"y": 3}}, "nullCount": {"x": {"y": 1}}}


@given(st.lists(st.integers(-(10**15), 10**16), min_size=1, max_size=5))
def test_timestamps_are_within_their_rounded_bounds(times: list[int]) -> None:
    low, high = stats("timestamptz", value("timestamptz", min(times)), value("timestamptz", max(times)))
    from datetime import UTC, datetime, timedelta

    for time in times:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)
        assert datetime.fromisoformat(low) <= moment <= datetime.fromisoformat(high)
