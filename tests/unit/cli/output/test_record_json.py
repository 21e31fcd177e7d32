import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.cli.output.record_json import Record, from_json, from_line, to_json
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
def test_from_json_reads_what_to_json_writes(record: Record) -> None:
    assert from_json(to_json(record, 7).encode()) == record


def test_values_that_are_neither_text_nor_null_are_sent_as_json() -> None:
    assert from_json(b'{"value": {"a": 1}, "headers": {"h": "x", "n": null}}') == Record(
        None, b'{"a":1}', [("h", b"x"), ("n", None)]
    )
    assert from_json(b'{"key": 5}') == Record(b"5", None, [])
    assert json.loads(to_json(Record(b"\xff", None, (), 1, 2), 3))["key"] == {"base64": "/w=="}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not an object"),
        (b"\xff", "not JSON"),
        (b'{"val": 1}', "unknown key 'val'"),
        (b'{"partition": "1"}', "partition is not a whole number"),
        (b'{"timestamp": true}', "timestamp is not a whole number"),
        (b'{"headers": [1]}', "invalid headers"),
        (b'{"headers": 5}', "invalid headers"),
        (b'{"key": {"base64": "*"}}', "not base64"),
    ],
)
def test_line_that_is_no_record_is_rejected(line: bytes, error: str) -> None:
    with pytest.raises(Rejected, match=error):
        from_json(line)


def test_line_is_split_at_the_first_separator() -> None:
    assert from_line(b"a:b", None) == Record(None, b"a:b")
    assert from_line(b"a:b:c", b":") == Record(b"a", b"b:c")
    with pytest.raises(Rejected, match="no key"):
        from_line(b"ab", b":")
