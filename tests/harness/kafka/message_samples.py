"""Sample messages of all kio classes, and kio's own encoder as the reference."""

import random
import struct
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from types import UnionType
from typing import Any, get_origin
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._introspect import classify_field, get_field_tag, is_optional
from kio.serial._serialize import get_field_writer

from lakestream.protocol.kafka.wire.produce_request import ProduceRequest

PAIRS = [(key, version) for key, name in api_key_map.items() for version in schema_name_map[name]]
FLEXIBLE_REQUESTS = [pair for pair in PAIRS if load_request_schema(*pair).__flexible__]
MESSAGES = [(*pair, load) for pair in PAIRS for load in (load_request_schema, load_response_schema)]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "timedelta_i32": 31, "timedelta_i64": 45}
_WORDS = ["", "a", "topic-1", "gruß", "日本", "x" * 126, "y" * 127, "z" * 300]


class Maker:
    """Makes instances of kio's classes. The base class makes minimal ones: defaults, nulls and empty lists."""

    def null(self) -> bool:
        return True

    def tagged(self) -> bool:
        return False

    def default(self) -> bool:
        return True

    def count(self) -> int:
        return 0

    def primitive(self, kind: str) -> Any:
        if kind in ("string", "bytes", "records"):
            return "" if kind == "string" else b""
        if kind.startswith("timedelta"):
            return timedelta(0)
        return {
            "error_code": ErrorCode.none,
            "bool": False,
            "float64": 0.0,
            "uuid": None,
            "datetime_i64": _EPOCH,
        }.get(kind, 0)

    def make(self, entity_type: type[Any]) -> Any:
        return entity_type(**{field.name: self._field(field) for field in fields(entity_type)})

    def _field(self, field: Field[Any]) -> Any:
        if get_field_tag(field) is not None and not self.tagged():
            return get_tagged_field_default(field)
        if field.default is not MISSING and self.default():
            return field.default
        classified = classify_field(field)
        if classified.is_array:
            tagged = get_field_tag(field) is not None
            null = get_origin(field.type) is UnionType and not tagged and self.count() == 0 and self.null_list()
            return None if null else tuple(self._one(field, classified.type_) for _ in range(self.count()))
        if is_optional(field) and get_field_tag(field) is None and self.null():
            return None
        return self._one(field, classified.type_)

    def null_list(self) -> bool:
        return False

    def _one(self, field: Field[Any], inner: type[Any]) -> Any:
        return self.make(inner) if is_dataclass(inner) else self.primitive(field.metadata["kafka_type"])


class FullMaker(Maker):
    """Makes instances with all fields set, and none at its default."""

    def null(self) -> bool:
        return False

    def tagged(self) -> bool:
        return True

    def default(self) -> bool:
        return False

    def count(self) -> int:
        return 2

    def primitive(self, kind: str) -> Any:
        if kind.startswith("timedelta"):
            return timedelta(milliseconds=12345)
        return {
            "string": "word",
            "bytes": b"\x00\xff",
            "records": b"r" * 130,
            "error_code": ErrorCode.offset_out_of_range,
            "bool": True,
            "float64": 2.5,
            "uuid": UUID(int=1 << 100 | 5),
            "datetime_i64": _EPOCH + timedelta(seconds=1_700_000_000),
        }.get(kind, 7)


class RandomMaker(Maker):
    """Makes random instances, also with minimum and maximum values."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def null(self) -> bool:
        return self._rng.random() < 0.3

    null_list = null

    def tagged(self) -> bool:
        return self._rng.random() < 0.6

    def default(self) -> bool:
        return self._rng.random() < 0.2

    def count(self) -> int:
        return self._rng.choice((0, 1, 2, 3))

    def primitive(self, kind: str) -> Any:
        rng = self._rng
        if kind in _BITS:
            bits = _BITS[kind]
            number = rng.choice((0, 1, -1, 2**bits - 1, -(2**bits), rng.randrange(-(2**bits), 2**bits)))
            return timedelta(milliseconds=number) if kind.startswith("timedelta") else number
        if kind == "string":
            return rng.choice(_WORDS)
        if kind in ("bytes", "records"):
            return rng.randbytes(rng.choice((0, 1, 126, 127, 128, 20_000)))
        if kind == "uuid":
            return rng.choice((None, UUID(int=rng.randrange(1, 2**128))))
        if kind == "datetime_i64":
            return _EPOCH + timedelta(milliseconds=rng.randrange(2**42))
        if kind == "error_code":
            return rng.choice(list(ErrorCode))
        return {
            "bool": rng.random() < 0.5,
            "float64": rng.uniform(-1e9, 1e9),
            "uint16": rng.randrange(2**16),
        }[kind]


def kio_bytes(entity: Any) -> bytes:
    """Encodes an instance with kio's writer."""
    buffer = BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """Returns a kio instance as the mapping that a handler would return."""
    if isinstance(value, ProduceRequest):
        return _plain_produce(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value


class TagInjector:
    """Encodes a kio instance with unknown tagged fields in all sections, or only in section `only`."""

    def __init__(self, only: int | None = None) -> None:
        self.sections = 0
        self._only = only

    def body(self, entity: Any) -> bytes:
        plain_fields, tagged = [], {}
        for field in fields(entity):
            tag, value = get_field_tag(field), getattr(entity, field.name)
            if tag is None:
                plain_fields.append(self._value(entity, field, value, tagged=False))
            elif value != get_tagged_field_default(field):
                tagged[int(tag)] = self._value(entity, field, value, tagged=True)
        return b"".join(plain_fields) + self._section(tagged)

    def _section(self, tagged: dict[int, bytes]) -> bytes:
        if self._only in (None, self.sections):
            tagged = {**tagged, 6: b"new" * 50, 5_000: b"new" * 50, 40: b""}
        self.sections += 1
        parts = [varint(tag) + varint(len(data)) + data for tag, data in sorted(tagged.items())]
        return varint(len(tagged)) + b"".join(parts)

    def _value(self, entity: Any, field: Field[Any], value: Any, *, tagged: bool) -> bytes:
        classified = classify_field(field)
        if is_dataclass(classified.type_):
            if classified.is_array:
                return b"\0" if value is None else varint(len(value) + 1) + b"".join(map(self.body, value))
            if is_optional(field) and not tagged:
                return b"\xff" if value is None else b"\x01" + self.body(value)
            return self.body(value)
        buffer = BytesIO()
        get_field_writer(field, flexible=True, is_request_header=False, is_tag=tagged)(buffer, value)
        return buffer.getvalue()


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes((number & 127 | 128,))
        number >>= 7
    return out + bytes((number,))


def request_frames(maker: Maker) -> Iterator[tuple[int, int, bytes]]:
    """Yields one frame of every request, without its size."""
    for key, version in PAIRS:
        request_type = load_request_schema(key, version)
        header = struct.pack(">hhih2s", key, version, 99, 2, b"me") + (b"\0" if request_type.__flexible__ else b"")
        yield key, version, header + kio_bytes(maker.make(request_type))


def _plain_produce(request: ProduceRequest) -> dict[str, Any]:
    """Returns a Produce request, which kio does not parse, in the form of kio."""
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": request.timeout_ms,
        "topic_data": [
            (
                {"name": topic.name}
                if topic.topic_id is None
                else {"topic_id": topic.topic_id if topic.topic_id.int else None}
            )
            | {
                "partition_data": [
                    {"index": part.number, "records": None if part.records is None else bytes(part.records)}
                    for part in topic.partitions
                ]
            }
            for topic in request.topics
        ],
    }
