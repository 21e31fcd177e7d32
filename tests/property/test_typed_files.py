"""Values of any schemas, mixed in one log, are converted to columns of a Parquet file and back to the same bytes.

Also after maintenance rewrote the file with columns that were added since. For all formats; the schemas of one log are
unrelated, or derived from each other: fields in another order, added, removed, renamed, widened.
"""

import base64
import json
import os
import random
import re
from decimal import Decimal
from typing import Any, Final

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.typed.random_protobuf_schemas import schema_of
from tests.harness.typed.reference_avro_codec import schemas, values, written
from tests.harness.typed.typed_tables import Table, rewritten, values_in
from tests.property.test_json_values import RECORDS, SCHEMAS, VALUES, styled
from tests.property.test_protobuf_values import message_of

from lakestream.errors import Rejected
from lakestream.schemas.avro.schema import AvroSchema, read_avro
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.message_indexes import encode as message_head
from lakestream.schemas.protobuf.schema import ProtobufSchema, read_protobuf
from lakestream.schemas.value_format import SchemaMode

SOAK: Final = bool(os.environ.get("SOAK"))
pytestmark = pytest.mark.timeout(900 if SOAK else 120)


def examples(count: int) -> settings:
    return settings(max_examples=400 if SOAK else count, database=None, suppress_health_check=list(HealthCheck))


F: Final = FieldDescriptorProto
UNREGISTERED: Final = 99
"""An id that is not in the registry."""


def frame(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def odd_values(draw: st.DrawFn) -> bytes | None:
    """Draws tombstones, bytes without a frame, and frames with an unregistered id."""
    return draw(st.none() | st.binary(max_size=10) | st.just(frame(UNREGISTERED) + b"x"))


def check(table: Table, produced: list[bytes | None], later: list[int]) -> None:
    body, columns = table.file(produced)
    assert values_in(body, table.writers) == produced
    assert values_in(rewritten(body, columns), table.writers) == produced
    for schema_id in later:
        if schema_id not in table.writers:
            table.resolve_id(schema_id)
    assert values_in(rewritten(body, table.current_columns), table.writers) == produced


# Avro


@st.composite
def avro_schemas(draw: st.DrawFn) -> list[AvroSchema]:
    texts = [draw(schemas())]
    for _ in range(draw(st.integers(0, 3))):
        texts.append(draw(avro_kin(draw(st.sampled_from(texts)))) if draw(st.booleans()) else draw(schemas()))
    return [read_avro(Source(Format.AVRO, json.dumps(one))) for one in texts]


@st.composite
def avro_kin(draw: st.DrawFn, schema: Any) -> Any:
    """Draws a later version of a record schema."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema["fields"]:
        return schema
    fields = [dict(one) for one in draw(st.permutations(schema["fields"]))]
    for one in fields:
        wider = {"int": "long", "float": "double"}.get(one["type"]) if isinstance(one["type"], str) else None
        if wider and draw(st.booleans()):
            one["type"] = wider
        if draw(st.integers(0, 3)) == 0:
            one["aliases"], one["name"] = [one["name"]], f"{one['name']}_new"
    if draw(st.booleans()):
        fields.append({"name": "added", "type": draw(st.sampled_from(["int", "string", ["null", "double"]]))})
    named = {one["name"]: one for one in fields[draw(st.integers(0, 1)) :] or fields}
    return {**schema, "fields": list(named.values())}


@st.composite
def avro_logs(draw: st.DrawFn) -> tuple[list[AvroSchema], list[bytes | None]]:
    found, produced = draw(avro_schemas()), list[bytes | None]()
    for _ in range(draw(st.integers(1, 12))):
        number = draw(st.integers(-1, len(found) - 1))
        if number < 0:
            produced.append(odd_values(draw))
            continue
        value = written(found[number].type, draw(values(found[number].type)))
        produced.append(frame(number + 1) + (value if draw(st.integers(0, 5)) else value + b"\0"))
    return found, produced


@examples(25)
@given(avro_logs(), avro_schemas())
def test_avro_values_are_read_back_unchanged(
    log: tuple[list[AvroSchema], list[bytes | None]], later: list[AvroSchema]
) -> None:
    found, produced = log
    table = Table()
    table.sources = {number: one.source for number, one in enumerate([*found, *later], 1)}
    check(table, produced, list(table.sources))


# JSON, with schemas and without


@st.composite
def json_schemas(draw: st.DrawFn) -> list[Any]:
    made = [draw(SCHEMAS)]
    for _ in range(draw(st.integers(0, 2))):
        before = draw(st.sampled_from(made))
        if draw(st.booleans()) and "properties" in before:
            keys = dict(draw(st.permutations(list(before["properties"].items()))))
            made.append({"type": "object", "properties": {**keys, "added": draw(SCHEMAS)}})
        else:
            made.append(draw(SCHEMAS))
    return made


def exactly(number: Decimal) -> str:
    """Returns a string that `exact` replaces by a number with all of its digits; Python's json has no type for it."""
    return f"#{number:f}#"


def exact(text: bytes) -> bytes:
    return re.sub(rb'"#([-0-9.]+)#"', rb"\1", text)


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    """Draws values that the schema allows, approximately."""
    match schema:
        case {"oneOf": parts}:
            return st.sampled_from(parts).flatmap(values_of)
        case {"enum": words}:
            return st.sampled_from(words)
        case {"type": "object", "properties": keys}:
            return st.fixed_dictionaries({}, optional={key: values_of(one) | st.none() for key, one in keys.items()})
        case {"type": "object", "additionalProperties": inner}:
            return st.dictionaries(st.sampled_from("abc"), values_of(inner), max_size=3)
        case {"type": "array", "items": inner}:
            return st.lists(values_of(inner), max_size=3)
        case {"format": "date-time"}:
            return st.sampled_from(["2020-01-01T00:00:00Z", "1969-12-31T23:59:59.5+01:00", "soon"])
        case {"format": "uuid"}:
            return st.uuids().map(str)
        case {"connect.parameters": {"scale": scale}}:
            return st.integers(-(10**9), 10**9).map(lambda digits: exactly(Decimal(digits).scaleb(-int(scale))))
        case {"connect.type": "float32"}:
            return st.floats(allow_nan=False, allow_infinity=False, width=32)
        case {"connect.type": "bytes"}:
            return st.binary(max_size=9).map(lambda raw: base64.b64encode(raw).decode())
        case {"type": "integer"}:
            return st.integers(-(2**64), 2**64)
        case {"type": "number"}:
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
        case {"type": "boolean"}:
            return st.booleans()
        case _:
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def json_logs(draw: st.DrawFn) -> tuple[list[Any], list[bytes | None]]:
    found, produced = draw(json_schemas()), list[bytes | None]()
    compact, ascii_only = draw(st.booleans()), draw(st.booleans())
    for _ in range(draw(st.integers(1, 12))):
        number = draw(st.integers(-1, len(found) - 1))
        if number < 0:
            produced.append(odd_values(draw))
            continue
        value = draw(values_of(found[number]) if draw(st.integers(0, 4)) else VALUES)
        if draw(st.integers(0, 5)) == 0:
            compact = not compact
        produced.append(frame(number + 1) + exact(styled(value, compact, ascii_only)))
    return found, produced


@examples(25)
@given(json_logs(), json_schemas())
def test_json_values_with_schemas_are_read_back_unchanged(
    log: tuple[list[Any], list[bytes | None]], later: list[Any]
) -> None:
    found, produced = log
    table = Table()
    sources = [Source(Format.JSON, json.dumps(one)) for one in [*found, *later]]
    table.sources = dict(enumerate(sources, 1))
    check(table, produced, list(table.sources))


@examples(5)
@given(st.lists(st.tuples(RECORDS, st.booleans(), st.booleans()), min_size=1, max_size=3), st.booleans())
def test_json_values_without_schemas_are_read_back_unchanged(
    parts: list[tuple[list[Any], bool, bool]], has_garbage: bool
) -> None:
    """Each part may be in another text style; the later ones are written after the table has columns."""
    table, before = Table(SchemaMode.JSON), list[tuple[memoryview, list[bytes | None]]]()
    for records, compact, ascii_only in parts:
        produced: list[bytes | None] = [styled(one, compact, ascii_only) for one in records]
        produced += [None, b"{", b"\xff"] if has_garbage else [None]
        check(table, produced, [])
        before.append((table.file(produced)[0], produced))
    for body, produced in before:
        assert values_in(rewritten(body, table.current_columns), table.writers) == produced


# Protobuf

WIDER: Final = {F.TYPE_INT32: F.TYPE_INT64, F.TYPE_UINT32: F.TYPE_INT64, F.TYPE_FLOAT: F.TYPE_DOUBLE}


def protobuf_kin(schema: ProtobufSchema, rng: random.Random) -> ProtobufSchema:
    """Renames, widens, removes and adds fields of the first message."""
    file = FileDescriptorProto.FromString(base64.b64decode(schema.source.text))
    message = file.message_type[0]
    for field in message.field:
        if field.type in WIDER and rng.random() < 0.5:
            field.type = WIDER[field.type]
        if rng.random() < 0.3:
            field.name += "_new"
    plain = [at for at, one in enumerate(message.field) if not one.HasField("oneof_index")]
    if len(plain) > 1 and rng.random() < 0.5:
        del message.field[rng.choice(plain)]
    number = 700 + sum(1 for field in message.field if field.name.startswith("added"))
    message.field.add(name=f"added{number}", number=number, label=F.LABEL_OPTIONAL, type=F.TYPE_STRING)
    text = base64.b64encode(file.SerializeToString()).decode()
    return read_protobuf(Source(Format.PROTOBUF, text))


def protobuf_schemas(rng: random.Random, count: int) -> list[ProtobufSchema]:
    made = [schema_of(rng)]
    for _ in range(count):
        made.append(protobuf_kin(rng.choice(made), rng) if rng.random() < 0.6 else schema_of(rng))
    return made


def protobuf_value(schema: ProtobufSchema, number: int, rng: random.Random) -> bytes | None:
    """Draws a value of any message of the schema, or returns None if it has no columns at all."""
    messages = list(FileDescriptorProto.FromString(base64.b64decode(schema.source.text)).message_type)
    place = rng.choice([0, rng.randrange(len(messages))])
    try:
        one = read_protobuf(schema.source, (place,))
        shape = one.shape()
    except Rejected:
        return None
    kind: Any = message_factory.GetMessageClass(one.descriptor)
    body = bytes(message_of(kind, shape, rng).SerializeToString())
    match rng.randint(0, 7):
        case 0:
            body = body[: rng.randint(0, len(body))]
        case 1:
            body += b"\xf8\x07\x01"  # an unknown field
    head = b"\0" if not place and rng.random() < 0.9 else message_head((place,))
    return frame(number) + head + body


@examples(8)
@given(st.integers(0, 2**32))
def test_protobuf_values_are_read_back_unchanged(seed: int) -> None:
    rng = random.Random(seed)
    found, later = protobuf_schemas(rng, rng.randint(0, 2)), protobuf_schemas(rng, 1)
    table = Table()
    table.sources = {number: one.source for number, one in enumerate([*found, *later], 1)}
    produced: list[bytes | None] = []
    for _ in range(rng.randint(1, 12)):
        number = rng.randrange(len(found))
        produced.append(protobuf_value(found[number], number + 1, rng))
    check(table, [*produced, b"", frame(UNREGISTERED), frame(1)], list(table.sources))
