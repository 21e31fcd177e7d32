"""Groups values by writer schema and strips the prefix: the first step of values_to_columns.py.

    0x00 · schema id, four bytes, big-endian · Protobuf: message indexes · payload

This is Confluent's wire format, used in the mode `registry`. Python code runs per writer schema, never per value.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.kernels.values import NO_ID, NULL_ID, PREFIX_SIZE, find_prefix, read_ids
from lakestream.model import MiB
from lakestream.schemas.model import Format
from lakestream.schemas.protobuf import message_indexes
from lakestream.schemas.writer_schema import WriterSchema

PROTOBUF: Final = Format.PROTOBUF.value
MESSAGES_MAX: Final = 64
"""Messages of one schema that get writer schemas; bounds what a client can cause with ever new message indexes."""
MESSAGE_INDEXES_MAX: Final = 1 + 5 * (message_indexes.STEPS_MAX + 1)
"""Bytes of message indexes."""
BYTES_MAX: Final = 4 * MiB
"""Bytes of the values of a chunk: a list of small numbers takes fifty times as much memory as its bytes."""
VALUE_BYTES_MAX: Final = 8 * MiB
"""Larger values get no columns."""
NO_SCHEMA_ID: Final = "does not start with a zero byte and a schema id"
INVALID_MESSAGE_INDEXES: Final = "invalid message indexes after the schema id"
TOO_MANY_MESSAGES: Final = f"more than {MESSAGES_MAX} different messages of its schema are in use"

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class WriterGroup:
    """Values with one writer schema."""

    writer: WriterSchema
    places: Longs
    payload: ByteSpans
    """The values without their prefix, one for each place."""
    is_other_spelling: Mask | None = None
    """Values whose prefix has the same meaning but other bytes than `prefix_of`: their columns do not restore them."""


@dataclass(frozen=True, slots=True, eq=False)
class Unconvertible:
    """Values that cannot be decoded, and the reason."""

    reason: str
    schema_id: int
    places: Longs


@dataclass(frozen=True, slots=True, eq=False)
class MissingWriter:
    """Values whose schema, or whose message of it, has no writer schema yet."""

    schema_id: int
    message: tuple[int, ...]
    """Message indexes; meaningless if the schema is not Protobuf."""
    places: Longs

    @property
    def unconvertible(self) -> Unconvertible:
        """The same values if the schema cannot be requested."""
        return Unconvertible(f"schema {self.schema_id} is unknown", self.schema_id, self.places)


@dataclass(frozen=True, slots=True, eq=False)
class SplitValues:
    """All values of a chunk except null values."""

    groups: list[WriterGroup] = field(default_factory=list)
    unconvertible: list[Unconvertible] = field(default_factory=list)
    missing: list["MissingWriter"] = field(default_factory=list)


def chunk_bounds(sizes: Longs, rows_max: int, bytes_max: int) -> list[int]:
    """Returns the bounds of chunks that have at most so many rows and, unless they have a single row, so many bytes."""
    ends = np.cumsum(np.maximum(sizes, 0))
    bounds, start = [0], 0
    while start < sizes.size:
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, side="right"))
        start = min(max(fitting, start + 1), start + rows_max)
        bounds.append(start)
    return bounds


def prefix_of(writer: WriterSchema) -> bytes:
    """Returns the prefix of the values of a writer schema."""
    if not writer.framed:
        return b""
    head = b"\0" + writer.schema_id.to_bytes(4, "big")
    return head + message_indexes.encode(writer.message) if writer.format == PROTOBUF else head


def split_by_schema_id(values: ByteSpans, writers: Sequence[WriterSchema]) -> SplitValues:
    """Groups values that start with the id of their schema."""
    ids = np.empty(values.size.size, np.int64)
    read_ids(values.address, values.size, ids)
    split = SplitValues()
    for schema_id, places in group_by_number(ids):
        registered = [writer for writer in writers if writer.framed and writer.schema_id == schema_id]
        if schema_id == NULL_ID:
            continue
        if schema_id == NO_ID:
            split.unconvertible.append(Unconvertible(NO_SCHEMA_ID, 0, places))
        elif not registered:
            split.missing.append(MissingWriter(schema_id, _message_at(values, int(places[0])) or (), places))
        elif registered[0].format == PROTOBUF:
            _split_messages(values, schema_id, places, registered, split)
        else:
            split.groups.append(WriterGroup(registered[0], places, skip_prefix(values.picked(places), PREFIX_SIZE)))
    return split


def single_group(values: ByteSpans, writer: WriterSchema) -> SplitValues:
    """Returns values without a prefix as one group."""
    places = np.flatnonzero(values.size >= 0)
    return SplitValues([WriterGroup(writer, places, values.picked(places))] if places.size else [])


def group_by_number(ids: Longs) -> Iterator[tuple[int, Longs]]:
    """Yields each distinct number and its places."""
    if not ids.size:
        return
    if (ids == ids[0]).all():
        yield int(ids[0]), np.arange(ids.size)
        return
    order = np.argsort(ids, kind="stable")
    borders = np.flatnonzero(np.diff(ids[order])) + 1
    for places in np.split(order, borders):
        yield int(ids[places[0]]), places


def skip_prefix(values: ByteSpans, size: int) -> ByteSpans:
    """Returns the values without their first bytes."""
    return ByteSpans(values.address + size, values.size - size, values.held)


# Protobuf: message indexes


def _split_messages(
    values: ByteSpans, schema_id: int, places: Longs, registered: Sequence[WriterSchema], split: SplitValues
) -> None:
    for writer in registered:
        for head, is_other_spelling in _message_encodings(writer):
            here = values.picked(places)
            mask = _starts_with(here, head)
            if mask.any():
                odd = np.full(int(mask.sum()), True) if is_other_spelling else None
                payload = skip_prefix(here.picked(np.flatnonzero(mask)), PREFIX_SIZE + len(head))
                split.groups.append(WriterGroup(writer, places[mask], payload, odd))
                places = places[~mask]
            if not places.size:
                return
    _split_rest(values, schema_id, places, registered, split)


def _split_rest(
    values: ByteSpans, schema_id: int, places: Longs, registered: Sequence[WriterSchema], split: SplitValues
) -> None:
    """Sorts values that no writer schema matched into new messages, which are rare, and invalid message indexes."""
    messages = [_message_at(values, place) for place in places.tolist()]
    # A message with a writer schema that was not matched is encoded in an unusual way: it must not be requested again.
    registered_messages = {message_indexes.or_first(writer.message) for writer in registered}
    new = list(
        dict.fromkeys(message for message in messages if message is not None and message not in registered_messages)
    )
    requested = new[: max(0, MESSAGES_MAX - len(registered))]
    for message in requested:
        mask = np.array([one == message for one in messages], np.bool_)
        split.missing.append(MissingWriter(schema_id, message, places[mask]))
    for reason, rejected in (
        (INVALID_MESSAGE_INDEXES, {None, *registered_messages}),
        (TOO_MANY_MESSAGES, set(new) - set(requested)),
    ):
        mask = np.array([message in rejected for message in messages], np.bool_)
        if mask.any():
            split.unconvertible.append(Unconvertible(reason, schema_id, places[mask]))


def _message_encodings(writer: WriterSchema) -> list[tuple[bytes, bool]]:
    """Returns the encodings of the message indexes, and whether each differs from what `prefix_of` writes."""
    usual = message_indexes.encode(writer.message)
    return [(usual, False), (b"\x02\x00", True)] if usual == b"\0" else [(usual, False)]


def _starts_with(values: ByteSpans, head: bytes) -> Mask:
    found = np.empty(values.size.size, np.uint8)
    find_prefix(values.address, values.size, PREFIX_SIZE, np.frombuffer(head, np.uint8).copy(), found)
    return found.astype(np.bool_)


def _message_at(values: ByteSpans, place: int) -> tuple[int, ...] | None:
    read = message_indexes.decode(bytes_at(skip_prefix(values, PREFIX_SIZE), place, MESSAGE_INDEXES_MAX))
    return None if read is None else read[0]


def bytes_at(values: ByteSpans, place: int, size_max: int) -> bytes:
    """Returns the first bytes of a value."""
    return ctypes.string_at(int(values.address[place]), min(int(values.size[place]), size_max))
