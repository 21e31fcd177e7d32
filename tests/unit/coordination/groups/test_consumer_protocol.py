"""Decoding of subscriptions and assignments that clients send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups.consumer_protocol import (
    InvalidConsumerProtocol,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)

T = b"\0\1t"
NULL = b"\xff\xff\xff\xff"
OWNED = b"\0\0\0\1" + T + b"\0\0\0\2" + b"\0\0\0\3" + b"\0\0\0\5"


@pytest.mark.parametrize(
    ("data", "subscription"),
    [
        (b"\0\0" + b"\0\0\0\1" + T + NULL, Subscription(0, ("t",))),
        (b"\0\0" + b"\0\0\0\0" + b"\0\0\0\2hi", Subscription(0, ())),
        (b"\0\1" + b"\0\0\0\1" + T + NULL + OWNED, Subscription(1, ("t",), frozenset({("t", 3), ("t", 5)}))),
        (b"\0\2" + b"\0\0\0\1" + T + NULL + b"\0\0\0\0" + b"\0\0\0\7", Subscription(2, ("t",))),
        (
            b"\0\3" + b"\0\0\0\1" + T + NULL + b"\0\0\0\0" + b"\0\0\0\7" + b"\0\1r",
            Subscription(3, ("t",), rack="r"),
        ),
        (
            b"\0\4" + b"\0\0\0\0" + NULL + b"\0\0\0\0" + b"\0\0\0\7" + b"\xff\xff" + b"more",
            Subscription(4, ()),
        ),
    ],
)
def test_subscription_is_decoded_in_all_versions(data: bytes, subscription: Subscription) -> None:
    assert read_subscription(data) == subscription


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\xff\xff" + b"\0\0\0\0" + NULL,
        b"\0\0" + b"\x7f\xff\xff\xff",
        b"\0\0" + b"\xff\xff\xff\xff",
        b"\0\0" + b"\0\0\0\1" + b"\xff\xff" + NULL,
        b"\0\0" + b"\0\0\0\1" + b"\0\5t" + NULL,
        b"\0\0" + b"\0\0\0\1" + b"\0\1\xff" + NULL,
        b"\0\0" + b"\0\0\0\1" + T + b"\0\0\0\5x",
        b"\0\0" + b"\0\0\0\1" + T + b"\xff\xff\xff\xfe",
        b"\0\1" + b"\0\0\0\1" + T + NULL,
        b"\0\1" + b"\0\0\0\1" + T + NULL + b"\0\0\0\1" + T + b"\0\1\0\0",
    ],
)
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidConsumerProtocol):
        read_subscription(data)


def test_empty_bytes_are_an_empty_assignment() -> None:
    assert read_assignment(b"") == frozenset()
    with pytest.raises(InvalidConsumerProtocol):
        read_assignment(b"all")


@given(st.integers(0, 9), st.dictionaries(st.text(max_size=9), st.lists(st.integers(0, 2**31 - 1), max_size=9)))
def test_written_assignment_can_be_read(version: int, shares: dict[str, list[int]]) -> None:
    written = write_assignment(version, shares)
    assert read_assignment(written) == {(name, number) for name, numbers in shares.items() for number in numbers}


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except InvalidConsumerProtocol:
            continue
