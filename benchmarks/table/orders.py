"""Orders of 15 fields, as each format writes them: the load of typed.py and from_avro.py."""

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

from lakestream.data.table.located import Located
from lakestream.data.typed.json_infer import infer, style_of
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf
from lakestream.schemas.writers import Writer

NUMBER: Final = 7
FRAMES: Final = struct.Struct(">bi")
FRAME: Final = FRAMES.pack(0, NUMBER)
COUNTRIES: Final = ("DE", "FR", "GB", "IT", "US")
CREATED_MS: Final = 1_700_000_000_000
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()


class Made(NamedTuple):
    writer: Writer
    values: list[bytes]
    """With what stands in front of them."""


def order(luck: random.Random, number: int) -> dict[str, Any]:
    """As Avro's fields want it."""
    return {
        "id": number,
        "customer": f"customer-{luck.randrange(10**6)}",
        "country": luck.choice(COUNTRIES),
        "email": None if luck.random() < 1 / 3 else f"user{luck.randrange(10**6)}@example.com",
        "amount": decimal.Decimal(luck.randrange(10**7)).scaleb(-2),
        "currency": "EUR",
        "quantity": luck.randrange(100),
        "discount": luck.random(),
        "is_paid": luck.random() < 0.5,
        "created": CREATED_MS + 250 * number,
        "shipped": None if luck.random() < 1 / 3 else 1000 * CREATED_MS + luck.randrange(10**12),
        "day": 19_000 + number % 1000,
        "tracking": str(uuid.UUID(int=luck.getrandbits(128))),
        "note": None if luck.random() < 1 / 3 else "please ring twice at the back door",
        "score": luck.randrange(1000) / 8,
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


def avro(orders: list[dict[str, Any]]) -> Made:
    schema = {"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in _AVRO.items()]}
    parsed = fastavro.parse_schema(schema)

    def written(one: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, one)
        return FRAME + out.getvalue()

    return Made(_writer("AVRO", json.dumps(schema)), [written(one) for one in orders])


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


def protobuf(orders: list[dict[str, Any]]) -> Made:
    schema = read_protobuf(Source(Format.PROTOBUF, _PROTOBUF))
    order_of: Any = message_factory.GetMessageClass(schema.descriptor)

    def written(one: dict[str, Any]) -> bytes:
        said = {name: value for name, value in one.items() if value is not None}
        said["amount"] = int(one["amount"] * 100)
        made = order_of(**{name: value for name, value in said.items() if name not in ("created", "shipped")})
        made.created.FromMilliseconds(one["created"])
        if one["shipped"] is not None:
            made.shipped.FromMicroseconds(one["shipped"])
        return FRAME + b"\0" + bytes(made.SerializeToString())

    return Made(_writer("PROTOBUF", _PROTOBUF), [written(one) for one in orders])


# JSON, as Python's json writes it

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


def json_schema(orders: list[dict[str, Any]]) -> Made:
    schema = {"type": "object", "title": "Order", "properties": _JSON}
    texts = [_json(one) for one in orders]
    style = style_of(Located.of(pa.array(texts)))
    return Made(_writer("JSON", json.dumps(schema), style), [FRAME + text for text in texts])


def plain_json(orders: list[dict[str, Any]]) -> Made:
    """Without a schema: its shape is found in it."""
    texts = [_json(one) for one in orders]
    learnt = infer(Located.of(pa.array(texts)))
    assert learnt is not None, "orders have columns"
    return Made(Writer(-1, "JSON", learnt.text, style=learnt.style), texts)


def _json(one: dict[str, Any]) -> bytes:
    said = dict(one)
    said["amount"] = float(one["amount"])
    said["created"] = _time(one["created"] * 1000)
    said["shipped"] = None if one["shipped"] is None else _time(one["shipped"])
    said["day"] = str(datetime.date.fromordinal(EPOCH_DAY + one["day"]))
    return json.dumps(said).encode()


def _time(us: int) -> str:
    return (EPOCH + datetime.timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")


def _writer(kind: str, text: str, style: str = "") -> Writer:
    return Writer(NUMBER, kind, text, schema_id=NUMBER, framed=True, style=style)


FORMATS: Final[Mapping[str, Callable[[list[dict[str, Any]]], Made]]] = {
    "Avro": avro,
    "Protobuf": protobuf,
    "JSON with a schema": json_schema,
    "JSON without": plain_json,
}
