"""The slow path of parsing: removes tagged fields that are not in the schema.

The protocol requires brokers to skip them, so that newer clients work with older brokers; kio rejects them. codec.py
uses this for every body with a tagged field, which are few. The body is traversed by its schema without building
objects, as in length_check.py, and copied without the unknown fields.
"""

from typing import Final

from kio.static.protocol import Entity

from lakestream.errors import Rejected
from lakestream.model import Buffer
from lakestream.protocol.kafka.wire.length_check import NULL_STRUCT, PRESENT_STRUCT, SIZES, read_uvarint
from lakestream.protocol.kafka.wire.message_schema import Shape, Slot, shape_of
from lakestream.protocol.kafka.wire.primitives import uvarint

STRUCTS_MAX: Final = 1 << 16
"""More structs than any real request has. To traverse them blocks the event loop for about 0.3 s."""


def strip_unknown(entity_type: type[Entity], body: Buffer) -> bytes:
    """Returns `body` without unknown tagged fields, at any depth, and without bytes after its end.

    Raises Rejected if the body is malformed.
    """
    shape = shape_of(entity_type)
    assert shape.flexible, "only flexible messages have tagged fields"
    stripper = _Stripper(memoryview(body), STRUCTS_MAX)
    stripper.struct(shape)
    return stripper.copied()


def skip_tagged(data: Buffer, at: int) -> int:
    """Returns the end of a section of tagged fields that starts at `at`. Raises Rejected if it is malformed."""
    if at < len(data) and data[at] == 0:
        return at + 1
    stripper = _Stripper(memoryview(data), 0)
    stripper.at = at
    for _ in range(stripper.uvarint()):
        stripper.uvarint()
        stripper.skip(stripper.uvarint())
    return stripper.at


class _Stripper:
    def __init__(self, data: memoryview, structs_left: int) -> None:
        self.at = 0
        self.structs_left = structs_left
        self._data = data
        self._out: list[Buffer] = []
        self._copied_to = 0

    def copied(self) -> bytes:
        return b"".join([*self._out, self._data[self._copied_to : self.at]])

    def struct(self, shape: Shape) -> None:
        self.structs_left -= 1
        if self.structs_left < 0:
            raise Rejected(f"more than {STRUCTS_MAX} structs in a message with unknown tagged fields")
        for slot in shape.slots:
            self.value(slot)
        self._section(shape)

    def value(self, slot: Slot) -> None:
        if slot.array:
            self._array(slot)
        elif slot.shape is not None:
            if not slot.nullable or self._present():
                self.struct(slot.shape)
        elif slot.kind in SIZES:
            self.skip(SIZES[slot.kind])
        else:
            self.skip(self._length())

    def skip(self, size: int) -> None:
        if size > len(self._data) - self.at:
            raise Rejected(f"a length of {size} at byte {self.at}, with {len(self._data) - self.at} bytes left")
        self.at += size

    def uvarint(self) -> int:
        try:
            number, self.at = read_uvarint(self._data, self.at)
        except IndexError:
            raise Rejected(f"it ends inside a number at byte {self.at}") from None
        return number

    def _array(self, slot: Slot) -> None:
        count = self.uvarint() - 1
        if count < 0 and not slot.nullable:  # kio would accept the null
            raise Rejected(f"a null before byte {self.at} instead of a list")
        item = slot.item()
        if item.kind in SIZES:
            self.skip(max(0, count) * SIZES[item.kind])
            return
        for _ in range(count):  # each item has at least a byte, so a false count ends with the data
            self.value(item)

    def _section(self, shape: Shape) -> None:
        """Copies the bytes before the section, then its known fields. An empty section is copied later."""
        start_of_section = self.at
        count = self.uvarint()
        if count == 0:
            return
        self._out.append(self._data[self._copied_to : start_of_section])
        known = {slot.tag: slot for slot in shape.tagged}
        kept: list[Buffer] = []
        for _ in range(count):
            tag, size = self.uvarint(), self.uvarint()
            start = self.at
            self.skip(size)
            if slot := known.get(tag):
                value = self._tagged(slot, self._data[start : self.at])
                kept += (uvarint(tag), uvarint(len(value)), value)
        self._out += (uvarint(len(kept) // 3), *kept)
        self._copied_to = self.at

    def _tagged(self, slot: Slot, data: memoryview) -> bytes:
        inner = _Stripper(data, self.structs_left)
        inner.value(slot.present())
        self.structs_left = inner.structs_left
        if inner.at != len(data):
            raise Rejected(f"tagged field {slot.name} is {len(data)} bytes long but ends after {inner.at}")
        return inner.copied()

    def _length(self) -> int:
        """Returns the length of a string or bytes, 0 for null. kio checks whether null is allowed."""
        return max(0, self.uvarint() - 1)

    def _present(self) -> bool:
        start = self.at
        self.skip(1)
        marker = self._data[start]
        if marker not in (PRESENT_STRUCT, NULL_STRUCT):
            raise Rejected(f"a null marker of {marker} at byte {start}")
        return marker == PRESENT_STRUCT
