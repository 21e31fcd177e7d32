"""What consumers say to one another, read with care."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups.embedded import (
    Poisoned,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)

T = b"\0\1t"
NOBODY = b"\xff\xff\xff\xff"
OWNED = b"\0\0\0\1" + T + b"\0\0\0\2" + b"\0\0\0\3" + b"\0\0\0\5"


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"\0\0" + b"\0\0\0\1" + T + NOBODY, Subscription(0, ("t",))),
        (b"\0\0" + b"\0\0\0\0" + b"\0\0\0\2hi", Subscription(0, ())),
        (b"\0\1" + b"\0\0\0\1" + T + NOBODY + OWNED, Subscription(1, ("t",), frozenset({("t", 3), ("t", 5)}))),
        (b"\0\2" + b"\0\0\0\1" + T + NOBODY + b"\0\0\0\0" + b"\0\0\0\7", Subscription(2, ("t",))),
        (
            b"\0\3" + b"\0\0\0\1" + T + NOBODY + b"\0\0\0\0" + b"\0\0\0\7" + b"\0\1r",
            Subscription(3, ("t",), rack="r"),
        ),
        (
            b"\0\4" + b"\0\0\0\0" + NOBODY + b"\0\0\0\0" + b"\0\0\0\7" + b"\xff\xff" + b"more",
            Subscription(4, ()),
        ),
    ],
)
def test_subscriptions_of_all_versions(data: bytes, read: Subscription) -> None:
    assert read_subscription(data) == read


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\xff\xff" + b"\0\0\0\0" + NOBODY,
        b"\0\0" + b"\x7f\xff\xff\xff",
        b"\0\0" + b"\xff\xff\xff\xff",
        b"\0\0" + b"\0\0\0\1" + b"\xff\xff" + NOBODY,
        b"\0\0" + b"\0\0\0\1" + b"\0\5t" + NOBODY,
        b"\0\0" + b"\0\0\0\1" + b"\0\1\xff" + NOBODY,
        b"\0\0" + b"\0\0\0\1" + T + b"\0\0\0\5x",
        b"\0\0" + b"\0\0\0\1" + T + b"\xff\xff\xff\xfe",
        b"\0\1" + b"\0\0\0\1" + T + NOBODY,
        b"\0\1" + b"\0\0\0\1" + T + NOBODY + b"\0\0\0\1" + T + b"\0\1\0\0",
    ],
)
def test_poison(data: bytes) -> None:
    with pytest.raises(Poisoned):
        read_subscription(data)


def test_an_assignment_that_is_none() -> None:
    assert read_assignment(b"") == frozenset()
    with pytest.raises(Poisoned):
        read_assignment(b"all")


@given(st.integers(0, 9), st.dictionaries(st.text(max_size=9), st.lists(st.integers(0, 2**31 - 1), max_size=9)))
def test_what_is_written_is_read(version: int, shares: dict[str, list[int]]) -> None:
    written = write_assignment(version, shares)
    assert read_assignment(written) == {(name, number) for name, numbers in shares.items() for number in numbers}


@given(st.binary(max_size=60))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except Poisoned:
            continue
