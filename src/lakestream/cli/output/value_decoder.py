"""Decodes keys and values by the schema of their topic, for `lakestream consume`: one value at a time, for people.

    topic settings  →  schema id of the value, or the subject  →  registry, over HTTP  →  decoder of the format

A value that cannot be decoded is printed as its bytes, and the reason is reported once.
"""

import base64
import io
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

from lakestream.cli.output.http_client import NOT_FOUND, request
from lakestream.coordination.config_values import SchemaChoice
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.value_format import SchemaMode, ValuePart
from lakestream.schemas.writer_schema import DEFAULT_CONTEXT

PREFIX_SIZE: Final = 5
REFERENCES_MAX: Final = 200
"""Requests for the references of one schema."""
REGISTRY_S: Final = 10.0
SCHEMAS_MAX: Final = 1_000
"""Schemas that are kept in memory."""

Decode = Callable[[bytes], Any]


class NotDecodable(Exception):
    """The value has no schema, or does not fit it; the text is the reason."""


class ValueDecoder:
    """Decodes the keys or the values of one topic."""

    def __init__(self, topic: str, part: ValuePart, choice: SchemaChoice, context: str, registry: "Registry") -> None:
        self._choice = choice
        self._context = context
        self._subject = choice.subject or f"{topic}-{part.value}"
        self._registry = registry
        self._decoders: dict[int, Decode | NotDecodable] = {}

    @property
    def is_typed(self) -> bool:
        return self._choice.mode is not SchemaMode.NONE

    def decode(self, data: bytes) -> Any:
        """Returns the value as JSON types. NotDecodable: it has to be printed as bytes."""
        if self._choice.mode is SchemaMode.JSON:
            return _decode(_read_json, data)
        if self._choice.mode is not SchemaMode.REGISTRY:
            return _decode(self._decoder(0), data)
        if len(data) < PREFIX_SIZE or data[0]:
            raise NotDecodable("a value does not start with a zero byte and a schema id")
        schema_id = int.from_bytes(data[1:PREFIX_SIZE], "big")
        return _decode(self._decoder(schema_id), data[PREFIX_SIZE:])

    def _decoder(self, schema_id: int) -> Decode:
        found = self._decoders.get(schema_id)
        if found is None:
            if len(self._decoders) >= SCHEMAS_MAX:
                self._decoders.clear()
            found = self._decoders[schema_id] = self._load(schema_id)
        if isinstance(found, NotDecodable):
            raise found
        return found

    def _load(self, schema_id: int) -> Decode | NotDecodable:
        try:
            if schema_id or self._choice.mode is SchemaMode.REGISTRY:
                source = self._registry.by_id(self._context, schema_id)
            else:
                source = self._registry.by_subject(self._context, self._subject, self._choice.version)
            return decoder_of(source, has_indexes=self._choice.mode is SchemaMode.REGISTRY)
        except LakestreamError as error:
            return NotDecodable(str(error))


def _decode(decode: Decode, data: bytes) -> Any:
    try:
        return decode(data)
    except NotDecodable:
        raise
    except Exception as error:  # of a library, at bytes that do not fit the schema
        raise NotDecodable(f"a value does not fit its schema ({type(error).__name__}: {str(error)[:200]})") from error


class Registry:
    """Reads schemas from the registry of a broker."""

    def __init__(self, address: str) -> None:
        self._address = address

    def by_id(self, context: str, schema_id: int) -> Source:
        return self._source(context, self._get(context, f"/schemas/ids/{schema_id}"))

    def by_subject(self, context: str, subject: str, version: int) -> Source:
        path = f"/subjects/{quote(subject, safe='')}/versions/{version or 'latest'}"
        return self._source(context, self._get(context, path))

    def _source(self, context: str, schema: Any) -> Source:
        references = self._references(context, schema, [REFERENCES_MAX])
        return Source(Format(schema.get("schemaType", "AVRO")), schema["schema"], references)

    def _references(self, context: str, schema: Any, left: list[int]) -> tuple[Reference, ...]:
        found = []
        for one in schema.get("references") or ():
            left[0] -= 1
            if left[0] < 0:
                raise Rejected(f"the schema has more than {REFERENCES_MAX} references")
            path = f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"
            referred = self._get(context, path)
            found.append(Reference(one["name"], referred["schema"], self._references(context, referred, left)))
        return tuple(found)

    def _get(self, context: str, path: str) -> Any:
        prefix = "" if context == DEFAULT_CONTEXT else f"/contexts/{quote(context, safe='')}"
        status, body = request(self._address, "GET", prefix + path, what="schema registry", wait_s=REGISTRY_S)
        try:
            content = json.loads(body)
        except ValueError as error:
            raise Unavailable(f"{self._address} is no schema registry: its response is not JSON") from error
        if status >= 400:
            message = content.get("message") if isinstance(content, dict) else None
            raise (Missing if status == NOT_FOUND else Rejected)(message or f"the schema registry returned {status}")
        return content


def decoder_of(source: Source, *, has_indexes: bool) -> Decode:
    """Returns a decoder of payloads. Rejected if the schema is not valid.

    `has_indexes`: Protobuf payloads begin with message indexes."""
    match source.format:
        case Format.AVRO:
            return _avro_decoder(source)
        case Format.JSON:
            return _read_json
        case Format.PROTOBUF:
            return _protobuf_decoder(source, has_indexes=has_indexes)


def _read_json(payload: bytes) -> Any:
    return json.loads(payload)


def _avro_decoder(source: Source) -> Decode:
    import fastavro

    from lakestream.schemas.avro.schema import read_avro
    from lakestream.schemas.parse import flatten_references

    if has_unbounded_arrays(read_avro(source).type):
        raise Rejected("an array of the schema has elements without bytes, so a short value may have any size")
    names: dict[str, Any] = {}
    for _, text in flatten_references(source):
        fastavro.parse_schema(json.loads(text), named_schemas=names)
    schema = fastavro.parse_schema(json.loads(source.text), named_schemas=names)

    def decode(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        value = plain(fastavro.schemaless_reader(stream, schema, None))
        if stream.tell() != len(payload):
            raise NotDecodable(f"a value has {len(payload) - stream.tell()} more bytes than its schema")
        return value

    return decode


def has_unbounded_arrays(top: Any) -> bool:
    """Whether a few bytes may be an array of any length, because its elements have no bytes."""
    from lakestream.schemas.avro.analysis import TypeProperties
    from lakestream.schemas.avro.types import Array, Map, Record, Union

    properties = TypeProperties.of(top)
    waiting, seen = [top], set[int]()
    while waiting:
        match one := waiting.pop():
            case Array():
                if properties.is_empty(one.items):
                    return True
                waiting.append(one.items)
            case Map():
                waiting.append(one.values)
            case Union():
                waiting += one.branches
            case Record() if id(one) not in seen:
                seen.add(id(one))
                waiting += [field.type for field in one.fields]
    return False


def _protobuf_decoder(source: Source, *, has_indexes: bool) -> Decode:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message_factory import GetMessageClass

    from lakestream.schemas.protobuf import message_indexes
    from lakestream.schemas.protobuf.schema import read_protobuf

    read_protobuf(source)

    def decode(payload: bytes) -> Any:
        indexes: tuple[int, ...] = ()
        if has_indexes:
            if (found := message_indexes.decode(payload)) is None:
                raise NotDecodable("a value has invalid message indexes after the schema id")
            indexes, size = found
            payload = payload[size:]
        schema = read_protobuf(source, indexes)
        message = GetMessageClass(schema.descriptor)()
        message.ParseFromString(payload)
        return MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=schema.pool)

    return decode


def plain(value: Any) -> Any:
    """Returns a decoded value with JSON types only: bytes that are not UTF-8 as {"base64": …}, times as ISO 8601."""
    match value:
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case datetime() | date() | time():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return str(value)
    return str(value)
