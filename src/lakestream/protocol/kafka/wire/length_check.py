"""Checks all counts and lengths of a body before kio parses it, with one generated function per message and version.

Before: codec.py, with a frame.  After: kio's reader, or tagged_fields.py if the body has tagged fields.

kio 0.6.5 trusts the count of an array and allocates memory for it before it reads the items. A count of 2^35 in a
frame of 30 bytes requests 256 GB; the allocation fails, and Rust aborts the whole process, not the request. So every
count and length is checked first, and kio only gets bodies that fit into their bytes. The check builds no objects, and
costs about a third of the parsing.

It must agree with kio byte by byte on where each field ends, or a client could pass one message to this check and
another one to kio. Bytes that kio and Kafka may interpret differently (a negative length other than -1, a null marker
that is neither "null" nor "present") are rejected.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from kio.static.protocol import Entity

from lakestream.errors import Rejected
from lakestream.model import Buffer
from lakestream.protocol.kafka.wire.message_schema import FIXED, Shape, Slot, shape_of

LengthCheck = Callable[[Buffer, int], int | None]

UVARINT_BYTES_MAX: Final = 5
SIZES: Final = {kind: struct.calcsize(f">{code}") for kind, code in FIXED.items()}
NULL_STRUCT: Final = 255
PRESENT_STRUCT: Final = 1


@cache
def compile_length_check(entity_type: type[Entity]) -> LengthCheck:
    """Returns a function of (frame, start of the body) that returns the end of the body, or None if it has tagged
    fields.

    The function raises Rejected, IndexError or struct.error if the body does not fit into the frame.
    """
    return _CheckSource(shape_of(entity_type)).function()


def read_uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """Returns the number that starts at `at`, and its end. Raises IndexError if it is cut off, Rejected if too long."""
    number = 0
    for position in range(UVARINT_BYTES_MAX):
        byte = data[at + position]
        number |= (byte & 127) << (7 * position)
        if byte < 128:
            return number, at + position + 1
    raise Rejected(f"a number at byte {at} is longer than {UVARINT_BYTES_MAX} bytes")


def _past_compact(data: Buffer, at: int) -> int:
    """Returns the end of a compact string or bytes field that is null or long."""
    number, at = read_uvarint(data, at)
    return at + number - 1 if number else at


def _past_null(length: int, at: int) -> int:
    if length != -1:
        raise Rejected(f"a length of {length} before byte {at}")
    return at


def _past_null_list(at: int) -> None:
    raise Rejected(f"a null before byte {at} instead of a list")


def _fixed_size(slot: Slot) -> int | None:
    """Returns the size of a field of fixed size, else None."""
    if slot.array or (slot.shape is not None and slot.nullable):
        return None
    if slot.shape is not None:
        return _struct_size(slot.shape)
    return SIZES.get(slot.kind)


def _struct_size(shape: Shape) -> int | None:
    if shape.flexible:
        return None  # a flexible struct ends with tagged fields
    sizes = [_fixed_size(slot) for slot in shape.slots]
    return None if None in sizes else sum(size for size in sizes if size is not None)


class _CheckSource:
    """Generates Python source. `at` is the position in the frame; the next `self._ahead` bytes are to be skipped.

    Positions only grow, so the check at the end finds any length that points outside of the frame.
    """

    def __init__(self, shape: Shape) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._ahead = 0
        self._struct(shape)
        self._advance()

    def function(self) -> LengthCheck:
        end = [" if at > len(data): raise IndexError", " return at"]
        source = "\n".join(["def check(data, at):", *self._lines, *end])
        constants: dict[str, Any] = {
            "h": struct.Struct(">h").unpack_from,
            "i": struct.Struct(">i").unpack_from,
            "read_uvarint": read_uvarint,
            "past_compact": _past_compact,
            "past_null": _past_null,
            "past_null_list": _past_null_list,
        }
        exec(compile(source, "<length check>", "exec"), constants)
        check: LengthCheck = constants["check"]
        return check

    def _struct(self, shape: Shape) -> None:
        for slot in shape.slots:
            self._slot(slot, shape.flexible)
        if shape.flexible:
            self._line(f"if data[{self._position()}]: return None")
            self._ahead += 1

    def _slot(self, slot: Slot, flexible: bool) -> None:
        if (size := _fixed_size(slot)) is not None:
            self._ahead += size
        elif slot.array:
            self._array(slot, flexible)
        elif slot.shape is None:
            self._string(flexible, "h" if slot.kind == "string" else "i")
        elif slot.nullable:
            self._nullable(slot.shape)
        else:
            self._struct(slot.shape)

    def _string(self, flexible: bool, code: str) -> None:
        position, self._ahead = self._position(), 0
        if flexible:  # a length of n bytes is encoded as n + 1, which is also the distance to the end
            self._line(f"at = {position}")
            self._line("n = data[at]")
            self._line("at = at + n if 0 < n < 128 else past_compact(data, at)")
        else:
            self._line(f"n = {code}(data, {position})[0]")
            self._line(f"at = {position} + {struct.calcsize('>' + code)}")
            self._line("at = at + n if n >= 0 else past_null(n, at)")

    def _array(self, slot: Slot, flexible: bool) -> None:
        self._count(flexible)
        if not slot.nullable:  # kio accepts a null even here, and handlers require a list
            self._line("if n < 0: past_null_list(at)")
        item = slot.item()
        if (size := _fixed_size(item)) is not None:
            self._line(f"if n > 0: at += n * {size}")
            return
        with self._block("for _ in range(n):"):
            self._slot(item, flexible)

    def _count(self, flexible: bool) -> None:
        """Adds code that sets n to the count, -1 for null."""
        position, self._ahead = self._position(), 0
        if flexible:
            self._line(f"n = data[{position}] - 1")
            self._line(f"at = {position} + 1")
            self._line("if n > 126:")
            self._line(" n, at = read_uvarint(data, at - 1)")
            self._line(" n -= 1")
        else:
            self._line(f"n = i(data, {position})[0]")
            self._line(f"at = {position} + 4")
            self._line("if n < 0: past_null(n, at)")

    def _nullable(self, shape: Shape) -> None:
        self._line(f"n = data[{self._position()}]")
        self._ahead += 1
        with self._block(f"if n == {PRESENT_STRUCT}:"):
            self._struct(shape)
        self._line(f"elif n != {NULL_STRUCT}: past_null(n, at)")

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._advance()
        self._line(head)
        self._depth += 1
        yield
        self._advance()
        self._depth -= 1

    def _advance(self) -> None:
        if self._ahead:
            self._line(f"at += {self._ahead}")
            self._ahead = 0

    def _position(self) -> str:
        return f"at + {self._ahead}" if self._ahead else "at"

    def _line(self, text: str) -> None:
        self._lines.append(" " * self._depth + text)
