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
        store = MemoryServer(SystemClock()).client()
        self.admission = Admission(store)
        self.registry = SchemaRegistry(store, RandomIds())

    async def register(self, text: str, kind: Format = Format.AVRO, subject: str = "t-value") -> int:
        wanted = Wanted(subject=parse(subject), format=kind, text=text)
        return (await self.registry.register(wanted)).version.id

    async def refused(
        self, choice: str, *values: bytes | None, keys: list[bytes | None] | None = None, key: str = "none"
    ) -> tuple[tuple[int, ...], str] | None:
        settings = topic_settings.read(
            {"lakestream.value.schema": choice, "lakestream.key.schema": key, "lakestream.on.invalid": "reject"}
        )
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


async def test_many_values_are_looked_at_in_parts(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """And very large ones not at all: they keep their bytes, whatever they are."""
    monkeypatch.setattr("lakestream.data.typed.framing.BYTES_MAX", 20)
    monkeypatch.setattr("lakestream.data.typed.framing.VALUE_BYTES_MAX", 100)
    number = await gate.register(json.dumps(SCHEMA))
    good, bad = encoded(number, id=1, s="x"), framed(number) + b"\x02\x09"
    large = framed(number) + b"\xff" * 200
    refused = await gate.refused("registry", good, bad, large, good, bad, None, good)
    assert refused is not None
    assert refused[0] == (1, 4)
    assert await gate.refused("registry", good, large, None) is None
