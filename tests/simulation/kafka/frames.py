"""Encodes requests and decodes responses of clients with kio alone, independent of Lakestream's codecs."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple, get_args

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 9, 10, 11, 12, 13, 14
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 19, 20, 21, 22
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
CONSUMER_GROUP_HEARTBEAT = 68

VERSIONS = {
    PRODUCE: (3, 8, 11, 13),
    FETCH: (4, 11, 12, 13, 17),
    LIST_OFFSETS: (1, 5, 10),
    METADATA: (1, 8, 12),
    CREATE_TOPICS: (2, 7),
    DELETE_TOPICS: (1, 6),
    DELETE_RECORDS: (0, 2),
    INIT_PRODUCER_ID: (1, 5),
    OFFSET_COMMIT: (7, 9),
    OFFSET_FETCH: (7, 9),
    FIND_COORDINATOR: (2, 4, 6),
    JOIN_GROUP: (5, 9),
    HEARTBEAT: (3, 4),
    LEAVE_GROUP: (3, 5),
    SYNC_GROUP: (3, 5),
    ADD_PARTITIONS_TO_TXN: (1, 3),
    ADD_OFFSETS_TO_TXN: (1, 4),
    END_TXN: (1, 3, 5),
    TXN_OFFSET_COMMIT: (3, 4, 5),
    CONSUMER_GROUP_HEARTBEAT: (0, 1),
}
"""Old and new versions: without and with flexible headers, topic ids, log start offsets and fetch sessions."""

PRODUCE_BY_ID_FROM, FETCH_BY_ID_FROM = 13, 13


class _Shape(NamedTuple):
    nested: Mapping[str, Any]
    """Field → class of the items if it is a list of structures, else None."""


@lru_cache(maxsize=500)
def _shape(entity_type: Any) -> _Shape:
    nested = {}
    for field in fields(entity_type):
        inner = [part for arg in (field.type, *get_args(field.type)) for part in (arg, *get_args(arg))]
        nested[field.name] = next((part for part in inner if is_dataclass(part)), None)
    return _Shape(nested)


def _entity(entity_type: Any, values: Mapping[str, Any]) -> Any:
    """Builds kio's class from plain values. Omits fields that this version does not have."""
    arguments = {}
    for name, nested in _shape(entity_type).nested.items():
        if name in values:
            value = values[name]
            many = nested is not None and value is not None
            arguments[name] = tuple(_entity(nested, item) for item in value) if many else value
    return entity_type(**arguments)


@lru_cache(maxsize=100)
def _request_codec(key: int, version: int) -> tuple[Any, Any, Callable[..., None], Callable[..., None]]:
    body = load_request_schema(key, version)
    header = body.__header_schema__
    return body, header, entity_writer(header), entity_writer(body)


@lru_cache(maxsize=100)
def _response_codec(key: int, version: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    body = load_response_schema(key, version)
    return entity_reader(body.__header_schema__), entity_reader(body)


def request(key: int, version: int, correlation_id: int, client_id: str, values: Mapping[str, Any]) -> bytes:
    """Returns the frame of a request, with its size."""
    body_type, header_type, write_header, write_body = _request_codec(key, version)
    header = {
        "request_api_key": key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    buffer = BytesIO()
    write_header(buffer, _entity(header_type, header))
    write_body(buffer, _entity(body_type, values))
    frame = buffer.getvalue()
    return len(frame).to_bytes(4, "big") + frame


def correlation_of(frame: bytes) -> int:
    return int.from_bytes(frame[:4], "big", signed=True)


def response(key: int, version: int, frame: bytes) -> Any:
    """Returns the body of a response. Asserts that it fills the frame."""
    read_header, read_body = _response_codec(key, version)
    _, at = read_header(frame, 0)
    body, size = read_body(frame, at)
    assert at + size == len(frame), f"response to {key} v{version}: {len(frame) - at - size} bytes too many"
    return body
