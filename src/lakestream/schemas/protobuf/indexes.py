"""Which message of a schema a value is, in Confluent's wire format: between the schema's id and the message itself.

The way to it from the file down, each step the place among its siblings: how many steps, then the steps, as zigzag
varints. The first message, [0], is one zero byte.
"""

from typing import Final

STEPS_MAX: Final = 100
_FIRST: Final = (0,)


def whole(message: tuple[int, ...]) -> tuple[int, ...]:
    """As `Writer.message` has it: nothing said means the first."""
    return message or _FIRST


def written(message: tuple[int, ...]) -> bytes:
    message = whole(message)
    if message == _FIRST:
        return b"\0"
    return b"".join(map(_varint, (len(message), *message)))


def read(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """Which message, and how many bytes that took. None: it says none."""
    head = _number(data, 0)
    if head is None or not 0 <= head[0] <= STEPS_MAX:
        return None
    steps, at = head
    if steps == 0:
        return _FIRST, at
    message = []
    for _ in range(steps):
        step = _number(data, at)
        if step is None or step[0] < 0:
            return None
        message.append(step[0])
        at = step[1]
    return tuple(message), at


def _varint(number: int) -> bytes:
    raw = number << 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _number(data: bytes, at: int) -> tuple[int, int] | None:
    raw, shift = 0, 0
    for place in range(at, min(at + 5, len(data))):
        raw |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return (raw >> 1) ^ -(raw & 1), place + 1
        shift += 7
    return None
