"""Orders of 15 fields in each format, the load of typed.py and from_avro.py."""

import datetime
import decimal
import io
import json
import random
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from google.protobuf import message_factory

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.json.schema_inference import infer, style_of
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf
from lakestream.schemas.writer_schema import WriterSchema

NUMBER: Final = 7
FRAMES: Final = struct.Struct(">bi")
FRAME: Final = FRAMES.pack(0, NUMBER)
COUNTRIES: Final = ("DE", "FR", "GB", "IT", "US")
CREATED_MS: Final = 1_700_000_000_000
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()


class EncodedOrders(NamedTuple):
    writer: WriterSchema
    values: list[bytes]
    """Encoded values, after the schema id if they have one."""


def order(rng: random.Random, number: int) -> dict[str, Any]:
    """Returns the fields of an order, as Avro represents them."""
    return {
        "id": number,
        "customer": f"customer-{rng.randrange(10**6)}",
        "country": rng.choice(COUNTRIES),
        "email": None if rng.random() < 1 / 3 else f"user{rng.randrange(10**6)}@example.com",
        "amount": decimal.Decimal(rng.randrange(10**7)).scaleb(-2),
        "currency": "EUR",
        "quantity": rng.randrange(100),
        "discount": rng.random(),
        "is_paid": rng.random() < 0.5,
        "created": CREATED_MS + 250 * number,
        "shipped": None if rng.random() < 1 / 3 else 1000 * CREATED_MS + rng.randrange(10**12),
        "day": 19_000 + number % 1000,
        "tracking": str(uuid.UUID(int=rng.getrandbits(128))),
        "note": None if rng.random() < 1 / 3 else "please ring twice at the back door",
        "score": rng.randrange(1000) / 8,
    }


# Avro

_AVRO: Final[dict[str, Any]] = {
    "id": "long",
    "customer": "string",
    "country": {"type": "enum", "name": "Country", "symbols": list(COUNTRIES)},
    "email": ["null", "string"],
    "amount": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "currency": "string",
    "quantity": "int",
    "discount": "double",
    "is_paid": "boolean",
    "created": {"type": "long", "logicalType": "timestamp-millis"},
    "shipped": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
    "day": {"type": "int", "logicalType": "date"},
    "tracking": {"type": "string", "logicalType": "uuid"},
    "note": ["null", "string"],
    "score": "float",
}


def avro(orders: list[dict[str, Any]]) -> EncodedOrders:
    schema = {"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in _AVRO.items()]}
    parsed = fastavro.parse_schema(schema)

    def encode(fields: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, fields)
        return FRAME + out.getvalue()

    return EncodedOrders(_writer("AVRO", json.dumps(schema)), [encode(fields) for fields in orders])


# Protobuf

_PROTOBUF: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Country { DE = 0; FR = 1; GB = 2; IT = 3; US = 4; }
message Order {
  int64 id = 1;
  string customer = 2;
  Country country = 3;
  optional string email = 4;
  int64 amount = 5;
  string currency = 6;
  int32 quantity = 7;
  double discount = 8;
  bool is_paid = 9;
  google.protobuf.Timestamp created = 10;
  google.protobuf.Timestamp shipped = 11;
  int32 day = 12;
  string tracking = 13;
  optional string note = 14;
  float score = 15;
}
"""


def protobuf(orders: list[dict[str, Any]]) -> EncodedOrders:
    schema = read_protobuf(Source(Format.PROTOBUF, _PROTOBUF))
    order_of: Any = message_factory.GetMessageClass(schema.descriptor)

    def encode(fields: dict[str, Any]) -> bytes:
        present = {name: value for name, value in fields.items() if value is not None}
        present["amount"] = int(fields["amount"] * 100)
        message = order_of(**{name: value for name, value in present.items() if name not in ("created", "shipped")})
        message.created.FromMilliseconds(fields["created"])
        if fields["shipped"] is not None:
            message.shipped.FromMicroseconds(fields["shipped"])
        return FRAME + b"\0" + bytes(message.SerializeToString())

    return EncodedOrders(_writer("PROTOBUF", _PROTOBUF), [encode(fields) for fields in orders])


# JSON, as written by Python's json

_JSON: Final[dict[str, Any]] = {
    "id": {"type": "integer"},
    "customer": {"type": "string"},
    "country": {"enum": list(COUNTRIES)},
    "email": {"type": ["string", "null"]},
    "amount": {"type": "number"},
    "currency": {"type": "string"},
    "quantity": {"type": "integer"},
    "discount": {"type": "number"},
    "is_paid": {"type": "boolean"},
    "created": {"type": "string", "format": "date-time"},
    "shipped": {"type": ["string", "null"], "format": "date-time"},
    "day": {"type": "string", "format": "date"},
    "tracking": {"type": "string", "format": "uuid"},
    "note": {"type": ["string", "null"]},
    "score": {"type": "number"},
}


def json_schema(orders: list[dict[str, Any]]) -> EncodedOrders:
    schema = {"type": "object", "title": "Order", "properties": _JSON}
    texts = [_json(fields) for fields in orders]
    style = style_of(ByteSpans.of(pa.array(texts)))
    return EncodedOrders(_writer("JSON", json.dumps(schema), style), [FRAME + text for text in texts])


def plain_json(orders: list[dict[str, Any]]) -> EncodedOrders:
    """Encodes orders without a schema; their columns are inferred from the values."""
    texts = [_json(fields) for fields in orders]
    inferred = infer(ByteSpans.of(pa.array(texts)))
    assert inferred is not None, "orders have columns"
    return EncodedOrders(WriterSchema(-1, "JSON", inferred.text, style=inferred.style), texts)


def _json(fields: dict[str, Any]) -> bytes:
    values = dict(fields)
    values["amount"] = float(fields["amount"])
    values["created"] = _time(fields["created"] * 1000)
    values["shipped"] = None if fields["shipped"] is None else _time(fields["shipped"])
    values["day"] = str(datetime.date.fromordinal(EPOCH_DAY + fields["day"]))
    return json.dumps(values).encode()


def _time(us: int) -> str:
    return (EPOCH + datetime.timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")


def _writer(kind: str, text: str, style: str = "") -> WriterSchema:
    return WriterSchema(NUMBER, kind, text, schema_id=NUMBER, framed=True, style=style)


FORMATS: Final[Mapping[str, Callable[[list[dict[str, Any]]], EncodedOrders]]] = {
    "Avro": avro,
    "Protobuf": protobuf,
    "JSON with a schema": json_schema,
    "JSON without a schema": plain_json,
}
