"""Which writer each value is of, and where the part of it lies that a codec reads: the first step of typing.py.

    0x00 · id of the schema, four bytes, big-endian · Protobuf: which message of it · the value

That is Confluent's wire format, in front of values of `registry`. Python runs per writer, never per value.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located
from lakestream.data.typed.kernels_values import FRAME_SIZE, NO_ID, NULL_ID, read_ids, starting_with
from lakestream.model import MiB
from lakestream.schemas.model import Format
from lakestream.schemas.protobuf import indexes
from lakestream.schemas.writers import Writer

PROTOBUF: Final = Format.PROTOBUF.value
MESSAGES_MAX: Final = 64
"""Of one schema that have writers: who names ever new ones is not believed."""
HEAD_MAX: Final = 1 + 5 * (indexes.STEPS_MAX + 1)
"""Bytes that say which message it is."""
BYTES_MAX: Final = 4 * MiB
"""Of values worked on at a time: a list of small numbers takes fifty times as much memory as its bytes."""
VALUE_BYTES_MAX: Final = 8 * MiB
"""Larger ones have no columns."""
UNFRAMED: Final = "it does not begin with a zero byte and the id of a schema"
NO_MESSAGE: Final = "what follows the schema's id names no message"
TOO_MANY_MESSAGES: Final = f"it is of one more message of its schema than {MESSAGES_MAX}"

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Values of one writer."""

    writer: Writer
    places: Longs
    payload: Located
    """Behind the frame, one for each place."""
    is_odd: Mask | None = None
    """Their frame is not written as we write it, though it says the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """Values that no codec is asked about, and why."""

    reason: str
    schema_id: int
    places: Longs


@dataclass(frozen=True, slots=True, eq=False)
class Missed:
    """Values of a schema that has no writer, or of one more message of it."""

    schema_id: int
    message: tuple[int, ...]
    """If it is Protobuf; else it means nothing."""
    places: Longs

    @property
    def unknown(self) -> Unknown:
        """Where nobody can be asked."""
        return Unknown(f"schema {self.schema_id} is not known", self.schema_id, self.places)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Null values are in none of them."""

    groups: list[Group] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    wanted: list["Missed"] = field(default_factory=list)


def cuts(sizes: Longs, rows_max: int, bytes_max: int) -> list[int]:
    """Where to cut rows, so that none of the parts has too many, or too many bytes."""
    ends = np.cumsum(np.maximum(sizes, 0))
    found, start = [0], 0
    while start < sizes.size:
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, side="right"))
        start = min(max(fitting, start + 1), start + rows_max)
        found.append(start)
    return found


def framed(writer: Writer) -> bytes:
    """What stands in front of the values of a writer."""
    if not writer.framed:
        return b""
    head = b"\0" + writer.schema_id.to_bytes(4, "big")
    return head + indexes.written(writer.message) if writer.format == PROTOBUF else head


def split(values: Located, writers: Sequence[Writer]) -> Split:
    """Values that have the id of their schema in front."""
    ids = np.empty(values.size.size, np.int64)
    read_ids(values.address, values.size, ids)
    found = Split()
    for schema_id, places in by_number(ids):
        known = [writer for writer in writers if writer.framed and writer.schema_id == schema_id]
        if schema_id == NULL_ID:
            continue
        if schema_id == NO_ID:
            found.unknown.append(Unknown(UNFRAMED, 0, places))
        elif not known:
            found.wanted.append(Missed(schema_id, _message_at(values, int(places[0])) or (), places))
        elif known[0].format == PROTOBUF:
            _split_messages(values, schema_id, places, known, found)
        else:
            found.groups.append(Group(known[0], places, behind(values.picked(places), FRAME_SIZE)))
    return found


def whole(values: Located, writer: Writer) -> Split:
    """Values of one writer without anything in front."""
    places = np.flatnonzero(values.size >= 0)
    return Split([Group(writer, places, values.picked(places))] if places.size else [])


def by_number(ids: Longs) -> Iterator[tuple[int, Longs]]:
    """Each number that there is, and where."""
    if not ids.size:
        return
    if (ids == ids[0]).all():
        yield int(ids[0]), np.arange(ids.size)
        return
    order = np.argsort(ids, kind="stable")
    borders = np.flatnonzero(np.diff(ids[order])) + 1
    for places in np.split(order, borders):
        yield int(ids[places[0]]), places


def behind(values: Located, size: int) -> Located:
    """Without what is in front."""
    return Located(values.address + size, values.size - size, values.held)


# Protobuf: which message


def _split_messages(values: Located, schema_id: int, places: Longs, known: Sequence[Writer], found: Split) -> None:
    for writer in known:
        for head, is_odd in _heads(writer):
            here = values.picked(places)
            mask = _starting(here, head)
            if mask.any():
                odd = np.full(int(mask.sum()), True) if is_odd else None
                payload = behind(here.picked(np.flatnonzero(mask)), FRAME_SIZE + len(head))
                found.groups.append(Group(writer, places[mask], payload, odd))
                places = places[~mask]
            if not places.size:
                return
    _split_rest(values, schema_id, places, known, found)


def _split_rest(values: Located, schema_id: int, places: Longs, known: Sequence[Writer], found: Split) -> None:
    """What no writer is for: new messages, seldom and one at a time, or what somebody has made up."""
    messages = [_message_at(values, place) for place in places.tolist()]
    # Whoever is known and was not found by it is spelled in a way that nobody spells it: none is asked for twice.
    spelled = {indexes.whole(writer.message) for writer in known}
    new = list(dict.fromkeys(message for message in messages if message is not None and message not in spelled))
    wanted = new[: max(0, MESSAGES_MAX - len(known))]
    for message in wanted:
        mask = np.array([one == message for one in messages], np.bool_)
        found.wanted.append(Missed(schema_id, message, places[mask]))
    for reason, given_up in ((NO_MESSAGE, {None, *spelled}), (TOO_MANY_MESSAGES, set(new) - set(wanted))):
        mask = np.array([message in given_up for message in messages], np.bool_)
        if mask.any():
            found.unknown.append(Unknown(reason, schema_id, places[mask]))


def _heads(writer: Writer) -> list[tuple[bytes, bool]]:
    """The ways to say which message it is; others than ours are odd."""
    ours = indexes.written(writer.message)
    return [(ours, False), (b"\x02\x00", True)] if ours == b"\0" else [(ours, False)]


def _starting(values: Located, head: bytes) -> Mask:
    found = np.empty(values.size.size, np.uint8)
    starting_with(values.address, values.size, FRAME_SIZE, np.frombuffer(head, np.uint8).copy(), found)
    return found.astype(np.bool_)


def _message_at(values: Located, place: int) -> tuple[int, ...] | None:
    read = indexes.read(bytes_at(behind(values, FRAME_SIZE), place, HEAD_MAX))
    return None if read is None else read[0]


def bytes_at(values: Located, place: int, size_max: int) -> bytes:
    """The first of a value."""
    return ctypes.string_at(int(values.address[place]), min(int(values.size[place]), size_max))
