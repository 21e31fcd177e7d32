"""Which schema, and which message of it, stands in front of values."""

import pyarrow as pa  # type: ignore[import-untyped]
from tests.unit.data.typed.tiny import bytes_of

from lakestream.data.table.located import Located
from lakestream.data.typed.framing import (
    MESSAGES_MAX,
    NO_MESSAGE,
    TOO_MANY_MESSAGES,
    UNFRAMED,
    Split,
    framed,
    split,
    whole,
)
from lakestream.schemas.protobuf.indexes import written
from lakestream.schemas.writers import Writer


def wanted_of(found: Split) -> list[tuple[int, tuple[int, ...]]]:
    return [(one.schema_id, one.message) for one in found.wanted]


def located(*values: bytes | None) -> Located:
    return Located.of(pa.array(values, pa.binary()))


def avro(schema_id: int) -> Writer:
    return Writer(schema_id, "AVRO", "", schema_id=schema_id, framed=True)


def message(number: int, *steps: int) -> Writer:
    return Writer(number, "PROTOBUF", "", schema_id=5, framed=True, message=steps)


def head(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def test_ids_and_what_has_none() -> None:
    last = 2**31 - 1
    values = located(
        *(
            head(1) + b"a",
            head(last),
            None,
            b"",
            head(1)[:4],
            b"\1" + head(1)[1:],
            head(0) + b"x",
            b"\0\xff\xff\xff\xff",
        )
    )
    found = split(values, [avro(1), avro(last)])
    assert [(group.writer.number, group.places.tolist(), bytes_of(group.payload)) for group in found.groups] == [
        (1, [0], [b"a"]),
        (last, [1], [b""]),
    ]
    assert [(one.reason, one.places.tolist()) for one in found.unknown] == [(UNFRAMED, [3, 4, 5, 6, 7])]
    assert not found.wanted


def test_writers_of_values_without_a_frame_are_not_meant() -> None:
    plain = Writer(-1, "AVRO", "", schema_id=1)
    assert wanted_of(split(located(head(1) + b"a"), [plain])) == [(1, ())]
    assert framed(plain) == b""
    assert framed(avro(7)) == head(7)


def test_all_rows_of_one() -> None:
    found = whole(located(b"a", None, b""), avro(1))
    assert [(group.places.tolist(), bytes_of(group.payload)) for group in found.groups] == [([0, 2], [b"a", b""])]
    assert not whole(located(None), avro(1)).groups


def test_messages_of_one_schema() -> None:
    first, third, inner = message(5), message(-1, 2), message(-2, 1, 300)
    assert framed(first) == head(5) + b"\0"
    assert framed(inner) == head(5) + written((1, 300))
    values = located(
        framed(first) + b"a",
        framed(third) + b"b",
        framed(inner) + b"c",
        head(5) + b"\2\0" + b"odd",
        framed(message(0, 9)) + b"new",
        head(5) + b"\1",
        head(5),
        head(5) + b"\x82\x00\x04" + b"spelled as nobody does",
    )
    found = split(values, [first, third, inner])
    groups = [
        (group.writer.number, group.places.tolist(), bytes_of(group.payload), group.is_odd is not None)
        for group in found.groups
    ]
    assert groups == [
        (5, [0], [b"a"], False),
        (5, [3], [b"odd"], True),
        (-1, [1], [b"b"], False),
        (-2, [2], [b"c"], False),
    ]
    assert wanted_of(found) == [(5, (9,))]
    assert found.wanted[0].places.tolist() == [4]
    assert [(one.reason, one.schema_id, one.places.tolist()) for one in found.unknown] == [(NO_MESSAGE, 5, [5, 6, 7])]


def test_an_unknown_schema_is_asked_for_with_its_message() -> None:
    assert wanted_of(split(located(head(5) + written((3, 1)) + b"x"), [])) == [(5, (3, 1))]
    assert wanted_of(split(located(head(5) + b"\0x"), [])) == [(5, (0,))]
    assert wanted_of(split(located(head(5)), [])) == [(5, ())]


def test_made_up_messages_do_not_go_on_for_ever() -> None:
    values = located(*(framed(message(0, step)) for step in range(1, 200)))
    found = split(values, [message(5)])
    assert len(found.wanted) == MESSAGES_MAX - 1
    assert [(one.reason, one.places.size) for one in found.unknown] == [(TOO_MANY_MESSAGES, 199 - (MESSAGES_MAX - 1))]
