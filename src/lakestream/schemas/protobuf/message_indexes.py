"""Message indexes of Confluent's wire format, between the schema id and the message.

They select the message of a schema: the path from the file to the message, with its position at each level. Encoded are
the length of the path and its indexes, as zigzag varints. The first message, [0], is a single zero byte.
"""

from typing import Final

STEPS_MAX: Final = 100
_FIRST: Final = (0,)


def or_first(message: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the indexes of `WriterSchema.message`, where an empty tuple means the first message."""
    return message or _FIRST


def encode(message: tuple[int, ...]) -> bytes:
    message = or_first(message)
    if message == _FIRST:
        return b"\0"
    return b"".join(map(_varint, (len(message), *message)))


def decode(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """Returns the indexes and their size in bytes, or None if the data does not begin with valid indexes."""
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
