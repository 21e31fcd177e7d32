"""Measures a body before kio reads it: one generated function per message and version.

Before: codec.py, with a frame.  After: kio's reader, if the answer is yes; tags.py, if the body has tagged fields.

kio 0.6.5 believes an array's count and reserves room for it at once. A count of 2^35 in a frame of 30 bytes asks for
256 GB; the allocation fails and Rust ends the whole process, not the request. So every count and length is walked
first: what kio gets to see fits into its bytes. The walk builds nothing, and costs about a third of the reading.

It must agree with kio byte by byte on where things end, or a client could show it one message and kio another. What kio
and Kafka might read differently (a negative length that is not -1, a marker that is neither "null" nor "here") is
refused.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from kio.static.protocol import Entity

from lakestream.errors import Rejected
from lakestream.model import Buffer
from lakestream.protocol.kafka.schema import FIXED, Shape, Slot, shape_of

Guard = Callable[[Buffer, int], int | None]

UVARINT_BYTES_MAX: Final = 5
SIZES: Final = {kind: struct.calcsize(f">{code}") for kind, code in FIXED.items()}
NULL_STRUCT: Final = 255
PRESENT_STRUCT: Final = 1


@cache
def compile_guard(entity_type: type[Entity]) -> Guard:
    """A function of (frame, where the body starts) that says where it ends, or None if it has tagged fields.

    Rejected, IndexError or struct.error: it does not fit into the frame.
    """
    return _Source(shape_of(entity_type)).function()


def read_uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """The number that starts at `at`, and where it ends. Cut off: IndexError. Too long: Rejected."""
    number = 0
    for place in range(UVARINT_BYTES_MAX):
        byte = data[at + place]
        number |= (byte & 127) << (7 * place)
        if byte < 128:
            return number, at + place + 1
    raise Rejected(f"a number at byte {at} is longer than {UVARINT_BYTES_MAX} bytes")


def _past_compact(data: Buffer, at: int) -> int:
    """The end of a compact string or bytes field that is null or long."""
    number, at = read_uvarint(data, at)
    return at + number - 1 if number else at


def _past_null(length: int, at: int) -> int:
    if length != -1:
        raise Rejected(f"a length of {length} before byte {at}")
    return at


def _past_null_list(at: int) -> None:
    raise Rejected(f"a null before byte {at}, where a list must be")


def _fixed_size(slot: Slot) -> int | None:
    """How long this field always is, or None if that depends."""
    if slot.array or (slot.shape is not None and slot.nullable):
        return None
    if slot.shape is not None:
        return _struct_size(slot.shape)
    return SIZES.get(slot.kind)


def _struct_size(shape: Shape) -> int | None:
    if shape.flexible:
        return None  # it ends with tagged fields
    sizes = [_fixed_size(slot) for slot in shape.slots]
    return None if None in sizes else sum(size for size in sizes if size is not None)


class _Source:
    """Python source in the making. `at` is the place in the frame; `self._ahead` bytes after it are known to be passed.

    Places only grow, so a length that points outside is noticed at the latest by the check at the end.
    """

    def __init__(self, shape: Shape) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._ahead = 0
        self._struct(shape)
        self._catch_up()

    def function(self) -> Guard:
        end = [" if at > len(data): raise IndexError", " return at"]
        source = "\n".join(["def guard(data, at):", *self._lines, *end])
        constants: dict[str, Any] = {
            "h": struct.Struct(">h").unpack_from,
            "i": struct.Struct(">i").unpack_from,
            "read_uvarint": read_uvarint,
            "past_compact": _past_compact,
            "past_null": _past_null,
            "past_null_list": _past_null_list,
        }
        exec(compile(source, "<guard>", "exec"), constants)
        guard: Guard = constants["guard"]
        return guard

    def _struct(self, shape: Shape) -> None:
        for slot in shape.slots:
            self._slot(slot, shape.flexible)
        if shape.flexible:
            self._line(f"if data[{self._place()}]: return None")
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
        place, self._ahead = self._place(), 0
        if flexible:  # a length of n bytes is written as n + 1, which is also how far to go
            self._line(f"at = {place}")
            self._line("n = data[at]")
            self._line("at = at + n if 0 < n < 128 else past_compact(data, at)")
        else:
            self._line(f"n = {code}(data, {place})[0]")
            self._line(f"at = {place} + {struct.calcsize('>' + code)}")
            self._line("at = at + n if n >= 0 else past_null(n, at)")

    def _array(self, slot: Slot, flexible: bool) -> None:
        self._count(flexible)
        if not slot.nullable:  # kio reads it as a null all the same, and handlers count on a list
            self._line("if n < 0: past_null_list(at)")
        item = slot.item()
        if (size := _fixed_size(item)) is not None:
            self._line(f"if n > 0: at += n * {size}")
            return
        with self._block("for _ in range(n):"):
            self._slot(item, flexible)

    def _count(self, flexible: bool) -> None:
        """Leaves the count in n: -1 for null, which is as good as none."""
        place, self._ahead = self._place(), 0
        if flexible:
            self._line(f"n = data[{place}] - 1")
            self._line(f"at = {place} + 1")
            self._line("if n > 126:")
            self._line(" n, at = read_uvarint(data, at - 1)")
            self._line(" n -= 1")
        else:
            self._line(f"n = i(data, {place})[0]")
            self._line(f"at = {place} + 4")
            self._line("if n < 0: past_null(n, at)")

    def _nullable(self, shape: Shape) -> None:
        self._line(f"n = data[{self._place()}]")
        self._ahead += 1
        with self._block(f"if n == {PRESENT_STRUCT}:"):
            self._struct(shape)
        self._line(f"elif n != {NULL_STRUCT}: past_null(n, at)")

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._catch_up()
        self._line(head)
        self._depth += 1
        yield
        self._catch_up()
        self._depth -= 1

    def _catch_up(self) -> None:
        if self._ahead:
            self._line(f"at += {self._ahead}")
            self._ahead = 0

    def _place(self) -> str:
        return f"at + {self._ahead}" if self._ahead else "at"

    def _line(self, text: str) -> None:
        self._lines.append(" " * self._depth + text)
