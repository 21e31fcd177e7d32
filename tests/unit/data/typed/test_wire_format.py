"""Grouping of values by schema id and message indexes."""

import pyarrow as pa  # type: ignore[import-untyped]
from tests.harness.typed.toy_format import bytes_of

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.wire_format import (
    INVALID_MESSAGE_INDEXES,
    MESSAGES_MAX,
    NO_SCHEMA_ID,
    TOO_MANY_MESSAGES,
    SplitValues,
    prefix_of,
    single_group,
    split_by_schema_id,
)
from lakestream.schemas.protobuf.message_indexes import encode
from lakestream.schemas.writer_schema import WriterSchema


def missing_in(found: SplitValues) -> list[tuple[int, tuple[int, ...]]]:
    return [(one.schema_id, one.message) for one in found.missing]


def located(*values: bytes | None) -> ByteSpans:
    return ByteSpans.of(pa.array(values, pa.binary()))


def avro(schema_id: int) -> WriterSchema:
    return WriterSchema(schema_id, "AVRO", "", schema_id=schema_id, framed=True)


def message(number: int, *steps: int) -> WriterSchema:
    return WriterSchema(number, "PROTOBUF", "", schema_id=5, framed=True, message=steps)


def head(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def test_values_are_grouped_by_schema_id_or_reported_without_one() -> None:
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
    found = split_by_schema_id(values, [avro(1), avro(last)])
    assert [(group.writer.number, group.places.tolist(), bytes_of(group.payload)) for group in found.groups] == [
        (1, [0], [b"a"]),
        (last, [1], [b""]),
    ]
    assert [(one.reason, one.places.tolist()) for one in found.unconvertible] == [(NO_SCHEMA_ID, [3, 4, 5, 6, 7])]
    assert not found.missing


def test_writer_schemas_without_prefix_match_no_schema_id() -> None:
    plain = WriterSchema(-1, "AVRO", "", schema_id=1)
    assert missing_in(split_by_schema_id(located(head(1) + b"a"), [plain])) == [(1, ())]
    assert prefix_of(plain) == b""
    assert prefix_of(avro(7)) == head(7)


def test_single_group_has_all_values_except_null() -> None:
    found = single_group(located(b"a", None, b""), avro(1))
    assert [(group.places.tolist(), bytes_of(group.payload)) for group in found.groups] == [([0, 2], [b"a", b""])]
    assert not single_group(located(None), avro(1)).groups


def test_values_are_grouped_by_message_indexes() -> None:
    first, third, inner = message(5), message(-1, 2), message(-2, 1, 300)
    assert prefix_of(first) == head(5) + b"\0"
    assert prefix_of(inner) == head(5) + encode((1, 300))
    values = located(
        prefix_of(first) + b"a",
        prefix_of(third) + b"b",
        prefix_of(inner) + b"c",
        head(5) + b"\2\0" + b"odd",
        prefix_of(message(0, 9)) + b"new",
        head(5) + b"\1",
        head(5),
        head(5) + b"\x82\x00\x04" + b"unusual encoding",
    )
    found = split_by_schema_id(values, [first, third, inner])
    groups = [
        (group.writer.number, group.places.tolist(), bytes_of(group.payload), group.is_other_spelling is not None)
        for group in found.groups
    ]
    assert groups == [
        (5, [0], [b"a"], False),
        (5, [3], [b"odd"], True),
        (-1, [1], [b"b"], False),
        (-2, [2], [b"c"], False),
    ]
    assert missing_in(found) == [(5, (9,))]
    assert found.missing[0].places.tolist() == [4]
    assert [(one.reason, one.schema_id, one.places.tolist()) for one in found.unconvertible] == [
        (INVALID_MESSAGE_INDEXES, 5, [5, 6, 7])
    ]


def test_unknown_schema_is_missing_with_its_message_indexes() -> None:
    assert missing_in(split_by_schema_id(located(head(5) + encode((3, 1)) + b"x"), [])) == [(5, (3, 1))]
    assert missing_in(split_by_schema_id(located(head(5) + b"\0x"), [])) == [(5, (0,))]
    assert missing_in(split_by_schema_id(located(head(5)), [])) == [(5, ())]


def test_missing_messages_of_one_schema_are_bounded() -> None:
    values = located(*(prefix_of(message(0, step)) for step in range(1, 200)))
    found = split_by_schema_id(values, [message(5)])
    assert len(found.missing) == MESSAGES_MAX - 1
    assert [(one.reason, one.places.size) for one in found.unconvertible] == [
        (TOO_MANY_MESSAGES, 199 - (MESSAGES_MAX - 1))
    ]
