"""The slow path of parsing: drops the tagged fields that our schema does not know.

The protocol demands that they be skipped, so that newer clients can talk to older brokers; kio refuses them. codec.py
comes here with every body that has a tagged field, which few have. It is walked by its schema without building
anything, as guard.py does, and copied without the unknown ones.
"""

from typing import Final

from kio.static.protocol import Entity

from lakestream.errors import Rejected
from lakestream.model import Buffer
from lakestream.protocol.kafka.guard import NULL_STRUCT, PRESENT_STRUCT, SIZES, read_uvarint
from lakestream.protocol.kafka.schema import Shape, Slot, shape_of
from lakestream.protocol.kafka.words import uvarint

STRUCTS_MAX: Final = 1 << 16
"""More structs than any sane request has; walking them takes about 0.3 s, during which nothing else runs."""


def strip_unknown(entity_type: type[Entity], body: Buffer) -> bytes:
    """`body` without unknown tagged fields, at any depth, and without what follows its end. Malformed: Rejected."""
    shape = shape_of(entity_type)
    assert shape.flexible, "only flexible messages have tagged fields"
    walk = _Walk(memoryview(body), STRUCTS_MAX)
    walk.struct(shape)
    return walk.copied()


def skip_tagged(data: Buffer, at: int) -> int:
    """Where a section of tagged fields that starts at `at` ends. Malformed: Rejected."""
    if at < len(data) and data[at] == 0:
        return at + 1
    walk = _Walk(memoryview(data), 0)
    walk.at = at
    for _ in range(walk.uvarint()):
        walk.uvarint()
        walk.skip(walk.uvarint())
    return walk.at


class _Walk:
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
            raise Rejected(f"more than {STRUCTS_MAX} structs, with tagged fields that are unknown here")
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
            raise Rejected(f"{size} bytes announced at byte {self.at}, {len(self._data) - self.at} are there")
        self.at += size

    def uvarint(self) -> int:
        try:
            number, self.at = read_uvarint(self._data, self.at)
        except IndexError:
            raise Rejected(f"it ends inside a number at byte {self.at}") from None
        return number

    def _array(self, slot: Slot) -> None:
        count = self.uvarint() - 1
        if count < 0 and not slot.nullable:  # kio would read it as a null all the same
            raise Rejected(f"a null before byte {self.at}, where a list must be")
        item = slot.item()
        if item.kind in SIZES:
            self.skip(max(0, count) * SIZES[item.kind])
            return
        for _ in range(count):  # each item takes at least a byte, so a hostile count ends with the data
            self.value(item)

    def _section(self, shape: Shape) -> None:
        """Copies what came before, then the known ones of this section. An empty one is copied with what follows."""
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
        inner = _Walk(data, self.structs_left)
        inner.value(slot.present())
        self.structs_left = inner.structs_left
        if inner.at != len(data):
            raise Rejected(f"tagged field {slot.name} is {len(data)} bytes long but ends after {inner.at}")
        return inner.copied()

    def _length(self) -> int:
        """Of a string or bytes; null counts as nothing: whether null is allowed is for the real parser to say."""
        return max(0, self.uvarint() - 1)

    def _present(self) -> bool:
        start = self.at
        self.skip(1)
        marker = self._data[start]
        if marker not in (PRESENT_STRUCT, NULL_STRUCT):
            raise Rejected(f"a marker of {marker} at byte {start}")
        return marker == PRESENT_STRUCT
