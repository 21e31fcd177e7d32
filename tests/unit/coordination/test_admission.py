"""Records are refused where a topic wants that, with their places and the reason; nothing else is."""

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import fastavro
import pytest

from lakestream.batch import RecordBatch
from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination import topic_settings
from lakestream.coordination.admission import Admission, InvalidRecords, is_asked
from lakestream.coordination.schemas.names import parse
from lakestream.coordination.schemas.registry import SchemaRegistry, Wanted
from lakestream.metadata.memory import MemoryServer
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


class Gate:
    def __init__(self) -> None:
        clock = SystemClock()
        store = MemoryServer(clock).client()
        self.admission = Admission(store, clock)
        self.registry = SchemaRegistry(store, RandomIds())

    async def register(self, text: str, kind: Format = Format.AVRO, subject: str = "t-value") -> int:
        wanted = Wanted(subject=parse(subject), format=kind, text=text)
        return (await self.registry.register(wanted)).version.id

    async def refused(
        self,
        choice: str,
        *values: bytes | None,
        keys: list[bytes | None] | None = None,
        key: str = "none",
        context: str = "",
    ) -> tuple[tuple[int, ...], str] | None:
        chosen = {"lakestream.value.schema": choice, "lakestream.key.schema": key, "lakestream.on.invalid": "reject"}
        settings = topic_settings.read(chosen | {"lakestream.schema.context": context})
        assert is_asked(settings)
        batch = RecordBatch.parse(make_batch(list(values), keys=keys))
        try:
            await self.admission.check("t", settings, batch)
        except InvalidRecords as error:
            return error.numbers, str(error)
        return None


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    await gate.admission.close()
    gate.registry.close()


def test_only_topics_that_want_it() -> None:
    assert not is_asked(topic_settings.read({"lakestream.on.invalid": "reject"}))
    assert not is_asked(topic_settings.read({"lakestream.value.schema": "registry"}))


async def test_ids_in_front(gate: Gate) -> None:
    one = await gate.register(json.dumps(SCHEMA))
    good = encoded(one, id=1, s="a")
    assert await gate.refused("registry", good, None, good) is None
    refused = await gate.refused("registry", good, good[:-1], b"x", framed(99) + b"y")
    assert refused is not None
    assert refused[0] == (1, 2, 3)
    assert refused[1].startswith("record 1 of the batch is not what its topic says: ")
    assert "s" in refused[1].rpartition(": ")[2]
    unknown = await gate.refused("registry", framed(99) + b"y")
    assert unknown is not None
    assert "99" in unknown[1]


async def test_an_id_that_comes_later_is_let_in_then(gate: Gate) -> None:
    good = encoded(1, id=1, s="a")
    assert await gate.refused("registry", good) is not None
    assert await gate.register(json.dumps(SCHEMA)) == 1
    assert await gate.refused("registry", good) is None


async def test_values_without_an_id(gate: Gate) -> None:
    missing = await gate.refused("latest", encoded(None, id=1, s="a"))
    assert missing is not None
    assert "not to be had" in missing[1]
    await gate.register(json.dumps(SCHEMA))
    for choice in ("latest", "t-value@1"):
        assert await gate.refused(choice, encoded(None, id=1, s="a")) is None
        assert await gate.refused(choice, b"\x02\x80") is not None


async def test_messages_of_a_schema(gate: Gate) -> None:
    one = await gate.register(PROTO, Format.PROTOBUF)
    assert await gate.refused("registry", framed(one) + b"\0\x08\x05", framed(one) + b"\x02\x02\x0a\x01x") is None
    refused = await gate.refused("registry", framed(one) + b"\x02\x02\x0a\x09x", framed(one) + b"\x02\x08x")
    assert refused is not None
    assert refused[0] == (0, 1)


async def test_plain_json_and_keys(gate: Gate) -> None:
    assert await gate.refused("json", b'{"a": [1, {"b": null}]}', b"3", None, b'""') is None
    refused = await gate.refused("json", b"{}", b"{", keys=[b"k", None], key="registry")
    assert refused is not None
    assert refused[0] == (0, 1)
    assert "key: it does not begin with a zero byte" in refused[1]


async def test_ids_and_subjects_of_a_context(gate: Gate) -> None:
    assert await gate.register(json.dumps(SCHEMA)) == 1
    assert await gate.register('{"type": "integer"}', Format.JSON, ":.prod:t-value") == 1
    here, there = encoded(1, id=1, s="a"), framed(1) + b"3"
    for context, good, bad in (("", here, there), (".prod", there, here), ("", here, there)):
        assert await gate.refused("registry", good, context=context) is None
        assert await gate.refused("registry", bad, context=context) is not None
        assert await gate.refused("latest", good[5:], context=context) is None
        assert await gate.refused("t-value@1", bad[5:], context=context) is not None
        assert await gate.refused(":.prod:t-value@1", b"3", context=context) is None
    assert await gate.refused("registry", here, context=".other") is not None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"a":', "it is no JSON: it ends too early"),
        (b'{"a": 1,}', "it is no JSON: trailing comma in object (byte 8)"),
        (b'{"a": 1} 2', "it is no JSON: something stands behind it (byte 9)"),
        (b"", "it is no JSON: there is nothing in it"),
        (b"NaN", "it is no JSON: invalid character (byte 0)"),
        (b'{"a": "\xff"}', "a text in it is no UTF-8 (byte 7)"),
        (b'{"a": 1, "b": [{"c": 1, "c": 2}]}', 'the key "c" is there twice'),
        (b'{"\\u0061": 1, "a": 2}', 'the key "a" is there twice'),
        (b'{"a": ["\\ud800"]}', "/a/0: the text has half of a surrogate pair"),
        (b'{"\\n": 1, "a": "\\ud800"}', "/a: the text has half of a surrogate pair"),
        (b"[" * 600 + b"]" * 600, "it is nested deeper than 512 levels"),
    ],
)
async def test_what_is_wrong_in_json_and_where(gate: Gate, value: bytes, reason: str) -> None:
    said = f"record 1 of the batch is not what its topic says: {reason}"
    assert await gate.refused("json", b"{}", value) == ((1,), said)


async def test_plain_json_that_is_let_in(gate: Gate) -> None:
    """The same key in several objects, pairs of surrogates, keys that are texts elsewhere: and any kind of JSON."""
    objects = b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": "b"}], "c": "a"}', b'{"a": "\\ud83d\\ude00 \\\\ud800"}'
    assert await gate.refused("json", *objects, b"3", b"[]", b'"a"', b"null", b'{"a\\n": 1}') is None


async def test_many_keys(gate: Gate) -> None:
    keys = b", ".join(b'"k%d": %d' % (number, number) for number in range(5_000))
    assert await gate.refused("json", b"{%b}" % keys, b"{%b}" % keys) is None
    refused = await gate.refused("json", b'{%b, "k77": 0}' % keys)
    assert refused is not None
    assert refused[1].endswith('the key "k77" is there twice')


PERSON = """{"type": "object", "required": ["id"], "properties": {
  "id": {"type": "integer"}, "user": {"type": "object", "properties": {"age": {"type": "integer", "maximum": 120}}}}}"""


async def test_what_a_json_schema_demands(gate: Gate) -> None:
    number = await gate.register(PERSON, Format.JSON)
    good, old, nobody = (
        framed(number) + text for text in (b'{"id": 1}', b'{"id": 1, "user": {"age": 200}}', b'{"user": {}}')
    )
    assert await gate.refused("registry", good, None, good) is None
    said = "record 1 of the batch is not what its topic says: /user/age: 200 is greater than the maximum of 120"
    assert await gate.refused("registry", good, old, nobody) == ((1, 2), said)
    refused = await gate.refused("registry", good, framed(number) + b'{"id": 1,}', old)
    assert refused == ((1, 2), f"{said.partition(': ')[0]}: it is no JSON: trailing comma in object (byte 9)")
    # Of another type: in the words of the schema, where it minds; else there is no column for it.
    for text, why in (
        (b'"x"', '/id: "x" is not of type "integer"'),
        (b"1" * 30, "id is of type integer, which has no"),
    ):
        refused = await gate.refused("registry", framed(number) + b'{"id": %b}' % text)
        assert refused is not None
        assert why in refused[1]


async def test_what_a_json_schema_demands_of_keys_and_of_values_without_an_id(gate: Gate) -> None:
    await gate.register('{"type": "string", "maxLength": 2}', Format.JSON, "t-key")
    refused = await gate.refused("none", b"", b"", keys=[b'"ab"', b'"abc"'], key="latest")
    assert refused is not None
    assert refused[0] == (1,)
    assert refused[1].endswith('key: "abc" is longer than 2 characters')


async def test_each_record_has_its_reason(gate: Gate) -> None:
    settings = topic_settings.read({"lakestream.value.schema": "json", "lakestream.on.invalid": "reject"})
    values: list[bytes | None] = [b"{", b"{}", *[b"x"] * 30]
    with pytest.raises(InvalidRecords) as refused:
        await gate.admission.check("t", settings, RecordBatch.parse(make_batch(values)))
    reasons = refused.value.reasons
    assert [*reasons] == [0, *range(2, 32)]
    assert reasons[0] == "it is no JSON: it ends too early"
    assert reasons[2] == "it is no JSON: invalid character (byte 0)"
    assert reasons[31] == "it is no JSON"


async def test_many_values_are_looked_at_in_parts(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """And very large ones, which would have no columns, are refused for their size."""
    monkeypatch.setattr("lakestream.data.typed.framing.BYTES_MAX", 20)
    monkeypatch.setattr("lakestream.data.typed.framing.VALUE_BYTES_MAX", 100)
    number = await gate.register(json.dumps(SCHEMA))
    good, bad = encoded(number, id=1, s="x"), framed(number) + b"\x02\x09"
    large = framed(number) + b"\xff" * 200
    refused = await gate.refused("registry", good, bad, large, good, bad, None, good)
    assert refused is not None
    assert refused[0] == (1, 2, 4)
    refused = await gate.refused("registry", good, large, None)
    assert refused is not None
    assert refused[0] == (1,)
    assert refused[1].endswith("it is larger than 8 MiB, which no value with columns may be")
