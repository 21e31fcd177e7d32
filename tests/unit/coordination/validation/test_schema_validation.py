"""Invalid records are rejected with their numbers and reasons if the topic's settings require it."""

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import fastavro
import pytest
from tests.harness.typed.wide_lists import FORMATS, schema_of, value_of

from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination import topic_config
from lakestream.coordination.schema_registry.registry import RegisterRequest, SchemaRegistry
from lakestream.coordination.schema_registry.subjects import parse
from lakestream.coordination.validation.schema_validation import SchemaValidator, validates_schemas
from lakestream.errors import InvalidRecords
from lakestream.metadata.memory import MemoryServer
from lakestream.records.batch import RecordBatch
from lakestream.schemas.model import Format
from lakestream.testing.batches import make_batch

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "A",
    "fields": [{"name": "id", "type": "int"}, {"name": "s", "type": "string"}],
}
PROTO = 'syntax = "proto3"; message A { int32 id = 1; } message B { string s = 1; }'


def encoded(schema_id: int | None, **value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, value)
    return (b"" if schema_id is None else framed(schema_id)) + out.getvalue()


def framed(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


class ValidationDriver:
    def __init__(self) -> None:
        clock = SystemClock()
        store = MemoryServer(clock).client()
        self.validator = SchemaValidator(store, clock)
        self.registry = SchemaRegistry(store, RandomIds())

    async def register(self, text: str, kind: Format = Format.AVRO, subject: str = "t-value") -> int:
        request = RegisterRequest(subject=parse(subject), format=kind, text=text)
        return (await self.registry.register(request)).version.id

    async def rejection(
        self,
        choice: str,
        *values: bytes | None,
        keys: list[bytes | None] | None = None,
        key: str = "none",
        context: str = "",
    ) -> tuple[tuple[int, ...], str] | None:
        config = {
            "lakestream.value.schema": choice,
            "lakestream.key.schema": key,
            "lakestream.invalid.record.action": "reject",
        }
        settings = topic_config.read(config | {"lakestream.schema.context": context})
        assert validates_schemas(settings)
        batch = RecordBatch.parse(make_batch(list(values), keys=keys))
        try:
            await self.validator.check("t", settings, batch)
        except InvalidRecords as error:
            return error.numbers, str(error)
        return None


@pytest.fixture
async def driver() -> AsyncIterator[ValidationDriver]:
    driver = ValidationDriver()
    yield driver
    await driver.validator.close()
    await driver.registry.close()


def test_schemas_are_validated_only_when_the_topic_has_a_schema_and_rejects_invalid_records() -> None:
    assert not validates_schemas(topic_config.read({"lakestream.invalid.record.action": "reject"}))
    assert not validates_schemas(topic_config.read({"lakestream.value.schema": "registry"}))


async def test_records_are_rejected_when_they_do_not_match_the_schema_of_their_id(driver: ValidationDriver) -> None:
    schema_id = await driver.register(json.dumps(SCHEMA))
    good = encoded(schema_id, id=1, s="a")
    assert await driver.rejection("registry", good, None, good) is None
    rejected = await driver.rejection("registry", good, good[:-1], b"x", framed(99) + b"y")
    assert rejected is not None
    assert rejected[0] == (1, 2, 3)
    assert rejected[1].startswith("record 1 of the batch does not match the format of the topic: ")
    assert "s" in rejected[1].rpartition(": ")[2]
    unknown = await driver.rejection("registry", framed(99) + b"y")
    assert unknown is not None
    assert "99" in unknown[1]


async def test_records_are_accepted_when_their_schema_was_registered_after_a_rejection(
    driver: ValidationDriver,
) -> None:
    good = encoded(1, id=1, s="a")
    assert await driver.rejection("registry", good) is not None
    assert await driver.register(json.dumps(SCHEMA)) == 1
    assert await driver.rejection("registry", good) is None


async def test_values_without_an_id_are_validated_with_the_topics_schema(driver: ValidationDriver) -> None:
    missing = await driver.rejection("latest", encoded(None, id=1, s="a"))
    assert missing is not None
    assert "cannot be read from the registry" in missing[1]
    await driver.register(json.dumps(SCHEMA))
    for choice in ("latest", "t-value@1"):
        assert await driver.rejection(choice, encoded(None, id=1, s="a")) is None
        assert await driver.rejection(choice, b"\x02\x80") is not None


async def test_protobuf_values_are_validated_with_the_message_of_their_index(driver: ValidationDriver) -> None:
    number = await driver.register(PROTO, Format.PROTOBUF)
    assert (
        await driver.rejection("registry", framed(number) + b"\0\x08\x05", framed(number) + b"\x02\x02\x0a\x01x")
        is None
    )
    rejected = await driver.rejection("registry", framed(number) + b"\x02\x02\x0a\x09x", framed(number) + b"\x02\x08x")
    assert rejected is not None
    assert rejected[0] == (0, 1)


async def test_values_and_keys_are_both_validated(driver: ValidationDriver) -> None:
    assert await driver.rejection("json", b'{"a": [1, {"b": null}]}', b"3", None, b'""') is None
    rejected = await driver.rejection("json", b"{}", b"{", keys=[b"k", None], key="registry")
    assert rejected is not None
    assert rejected[0] == (0, 1)
    assert "key: does not start with a zero byte" in rejected[1]


async def test_ids_and_subjects_are_read_from_the_topics_schema_context(driver: ValidationDriver) -> None:
    assert await driver.register(json.dumps(SCHEMA)) == 1
    assert await driver.register('{"type": "integer"}', Format.JSON, ":.prod:t-value") == 1
    here, there = encoded(1, id=1, s="a"), framed(1) + b"3"
    for context, good, bad in (("", here, there), (".prod", there, here), ("", here, there)):
        assert await driver.rejection("registry", good, context=context) is None
        assert await driver.rejection("registry", bad, context=context) is not None
        assert await driver.rejection("latest", good[5:], context=context) is None
        assert await driver.rejection("t-value@1", bad[5:], context=context) is not None
        assert await driver.rejection(":.prod:t-value@1", b"3", context=context) is None
    assert await driver.rejection("registry", here, context=".other") is not None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"a":', "invalid JSON: the value is truncated"),
        (b'{"a": 1,}', "invalid JSON: trailing comma in object (byte 8)"),
        (b'{"a": 1} 2', "invalid JSON: extra data (byte 9)"),
        (b"", "invalid JSON: the value is empty"),
        (b"NaN", "invalid JSON: invalid character (byte 0)"),
        (b'{"a": "\xff"}', "a string in it is not UTF-8 (byte 7)"),
        (b'{"a": 1, "b": [{"c": 1, "c": 2}]}', 'duplicate key "c"'),
        (b'{"\\u0061": 1, "a": 2}', 'duplicate key "a"'),
        (b'{"a": ["\\ud800"]}', "/a/0: the string has an unpaired surrogate"),
        (b'{"\\n": 1, "a": "\\ud800"}', "/a: the string has an unpaired surrogate"),
        (b"[" * 600 + b"]" * 600, "the value is nested deeper than 512 levels"),
    ],
)
async def test_reason_contains_the_problem_and_its_location_when_json_is_invalid(
    driver: ValidationDriver, value: bytes, reason: str
) -> None:
    message = f"record 1 of the batch does not match the format of the topic: {reason}"
    assert await driver.rejection("json", b"{}", value) == ((1,), message)


async def test_json_without_a_schema_is_accepted_when_it_is_valid(driver: ValidationDriver) -> None:
    """The same key in several objects, surrogate pairs, texts that equal a key, and JSON of any type."""
    objects = b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": "b"}], "c": "a"}', b'{"a": "\\ud83d\\ude00 \\\\ud800"}'
    assert await driver.rejection("json", *objects, b"3", b"[]", b'"a"', b"null", b'{"a\\n": 1}') is None


async def test_duplicate_key_is_found_among_thousands_of_keys(driver: ValidationDriver) -> None:
    keys = b", ".join(b'"k%d": %d' % (number, number) for number in range(5_000))
    assert await driver.rejection("json", b"{%b}" % keys, b"{%b}" % keys) is None
    rejected = await driver.rejection("json", b'{%b, "k77": 0}' % keys)
    assert rejected is not None
    assert rejected[1].endswith('duplicate key "k77"')


PERSON = """{"type": "object", "required": ["id"], "properties": {
  "id": {"type": "integer"}, "user": {"type": "object", "properties": {"age": {"type": "integer", "maximum": 120}}}}}"""


async def test_values_are_validated_with_all_keywords_of_their_json_schema(driver: ValidationDriver) -> None:
    number = await driver.register(PERSON, Format.JSON)
    good, too_old, without_id = (
        framed(number) + text for text in (b'{"id": 1}', b'{"id": 1, "user": {"age": 200}}', b'{"user": {}}')
    )
    assert await driver.rejection("registry", good, None, good) is None
    prefix = "record 1 of the batch does not match the format of the topic"
    message = f"{prefix}: /user/age: 200 is greater than the maximum of 120"
    assert await driver.rejection("registry", good, too_old, without_id) == ((1, 2), message)
    rejected = await driver.rejection("registry", good, framed(number) + b'{"id": 1,}', too_old)
    assert rejected == ((1, 2), f"{prefix}: invalid JSON: trailing comma in object (byte 9)")
    # Values of another type: the reason is the schema's, or that no column has the type if the schema accepts it.
    for text, reason in (
        (b'"x"', '/id: "x" is not of type "integer"'),
        (b"1" * 30, "id is of type integer, which has no"),
    ):
        rejected = await driver.rejection("registry", framed(number) + b'{"id": %b}' % text)
        assert rejected is not None
        assert reason in rejected[1]


async def test_keys_without_an_id_are_validated_with_their_json_schema(driver: ValidationDriver) -> None:
    await driver.register('{"type": "string", "maxLength": 2}', Format.JSON, "t-key")
    rejected = await driver.rejection("none", b"", b"", keys=[b'"ab"', b'"abc"'], key="latest")
    assert rejected is not None
    assert rejected[0] == (1,)
    assert rejected[1].endswith('key: "abc" is longer than 2 characters')


async def test_error_has_a_reason_for_each_invalid_record(driver: ValidationDriver) -> None:
    settings = topic_config.read({"lakestream.value.schema": "json", "lakestream.invalid.record.action": "reject"})
    values: list[bytes | None] = [b"{", b"{}", *[b"x"] * 30]
    with pytest.raises(InvalidRecords) as raised:
        await driver.validator.check("t", settings, RecordBatch.parse(make_batch(values)))
    reasons = raised.value.reasons
    assert [*reasons] == [0, *range(2, 32)]
    assert reasons[0] == "invalid JSON: the value is truncated"
    assert reasons[2] == "invalid JSON: invalid character (byte 0)"
    assert reasons[31] == "invalid JSON"


async def test_values_are_validated_in_parts_when_they_exceed_the_limit(
    driver: ValidationDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that are too large for columns are rejected for their size."""
    monkeypatch.setattr("lakestream.data.typed.wire_format.BYTES_MAX", 20)
    monkeypatch.setattr("lakestream.data.typed.wire_format.VALUE_BYTES_MAX", 100)
    number = await driver.register(json.dumps(SCHEMA))
    good, bad = encoded(number, id=1, s="x"), framed(number) + b"\x02\x09"
    large = framed(number) + b"\xff" * 200
    rejected = await driver.rejection("registry", good, bad, large, good, bad, None, good)
    assert rejected is not None
    assert rejected[0] == (1, 2, 4)
    rejected = await driver.rejection("registry", good, large, None)
    assert rejected is not None
    assert rejected[0] == (1,)
    assert rejected[1].endswith("larger than 8 MiB, the limit for values with columns")


@pytest.mark.parametrize("kind", FORMATS)
async def test_records_with_too_many_elements_times_columns_are_rejected(
    driver: ValidationDriver, kind: Format
) -> None:
    """150,000 elements of one to four bytes with 900 columns: in columns they would take gigabytes."""
    await driver.register(schema_of(kind, 900), kind)
    good, bomb = value_of(kind, 9_000), value_of(kind, 150_000)
    assert await driver.rejection("latest", good, None) is None
    numbers, reason = await driver.rejection("latest", good, bomb, good) or ((), "")
    assert numbers == (1,)
    assert reason.endswith("its lists have more than 8,388,608 elements times columns")
