import json
from datetime import UTC, datetime

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END
from hypothesis import given
from hypothesis import strategies as st

from lakestream.cli.client import settings_from
from lakestream.cli.consume import place_of
from lakestream.cli.records import Record, from_json, from_line, shown
from lakestream.errors import Rejected

maybe_bytes = st.none() | st.binary(max_size=20)


@given(
    st.builds(
        Record,
        maybe_bytes,
        maybe_bytes,
        st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3),
        st.integers(0, 10),
        st.integers(-1, 2**62),
    )
)
def test_what_is_shown_is_taken_again(record: Record) -> None:
    assert from_json(shown(record, 7).encode()) == record


def test_json_for_people() -> None:
    assert from_json(b'{"value": {"a": 1}, "headers": {"h": "x", "n": null}}') == Record(
        None, b'{"a":1}', [("h", b"x"), ("n", None)]
    )
    assert from_json(b'{"key": 5}') == Record(b"5", None, [])
    assert json.loads(shown(Record(b"\xff", None, (), 1, 2), 3))["key"] == {"base64": "/w=="}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not an object"),
        (b"\xff", "not JSON"),
        (b'{"val": 1}', "unknown key 'val'"),
        (b'{"partition": "1"}', "partition is not a whole number"),
        (b'{"timestamp": true}', "timestamp is not a whole number"),
        (b'{"headers": [1]}', "headers are"),
        (b'{"headers": 5}', "headers are"),
        (b'{"key": {"base64": "*"}}', "not base64"),
    ],
)
def test_what_is_no_record_is_refused(line: bytes, said: str) -> None:
    with pytest.raises(Rejected, match=said):
        from_json(line)


def test_lines() -> None:
    assert from_line(b"a:b", None) == Record(None, b"a:b")
    assert from_line(b"a:b:c", b":") == Record(b"a", b"b:c")
    with pytest.raises(Rejected, match="no key"):
        from_line(b"ab", b":")


def test_places() -> None:
    assert place_of("start") == OFFSET_BEGINNING
    assert place_of("end") == OFFSET_END
    assert place_of("12") == 12
    assert place_of("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert isinstance(place_of("2026-01-31"), datetime)
    with pytest.raises(Rejected, match="give start, end"):
        place_of("-5")


def test_settings_of_a_topic() -> None:
    assert settings_from(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(Rejected, match="name=value"):
            settings_from([wrong])
