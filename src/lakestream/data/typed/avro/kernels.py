"""Kernels of `codec.py`: decode values and encode rows, by executing the program that program.py makes of a schema.

An instruction is an operation, a node (-1: no column), the node's domain, and operands:

    STRUCT BOOLEAN INT LONG FLOAT DOUBLE BYTES STRING
    SCALED      whether it is an int; factor (negative: divisor); lowest and highest number that fit the column
    FIXED       number of bytes
    DECIMAL     number of bytes (-1: length prefix); low and high half of the first number that is too large
    UUID_TEXT   room for its sixteen bytes
    ENUM        first symbol; number of symbols
    UNION       number of branches; branch to write if the node is null, and if it is not null but no branch's node is
                (-1: none); for each branch its target and the node that is not null if the value is of this branch
    LIST        domain it opens; target after the list; whether items take no bytes
    JUMP CALL   target
    AGAIN RETURN END

Input is not trusted: each length is compared with the bytes that are left, each number of items with the bytes they
need, the rows of lists with their limit before memory is allocated for them, and recursion has a depth limit.
"""

from typing import Any, Final

import numpy as np

from lakestream.data.table.kernels.compile import (
    Array,
    Long,
    byte_at,
    copy,
    inlined,
    is_utf8,
    kernel,
    put_byte,
    put_word,
    word_at,
)
from lakestream.data.typed.codec import TOO_MANY

END, STRUCT, BOOLEAN, INT, LONG, SCALED, FLOAT, DOUBLE, BYTES, STRING = range(10)
FIXED, DECIMAL, UUID_TEXT, ENUM, UNION, JUMP, LIST, AGAIN, CALL, RETURN = range(10, 20)

CUT_OFF, TOO_WIDE, LENGTH, NOT_TEXT, NOT_BOOLEAN, NO_SYMBOL, NO_BRANCH, TOO_DEEP, LEFT_OVER = range(1, 10)
PROBLEM_BITS: Final = 4
"""Lower bits of a problem; the bits above are the position in the program."""

DEPTH_MAX: Final = 256
"""Of lists in lists and of recursive records."""
FULL: Final = -2
UNLIMITED: Final = 2**62
_SPARE: Final = 64
"""Bytes that any instruction may write, apart from strings and bytes."""
_LOW_BITS: Final = 0x7FFF_FFFF_FFFF_FFFF
_SIGN: Final = np.int64(-(2**63))
_UUID_TEXT_SIZE: Final = 36


# Reading


@inlined
def _number(at: Long, end: Long) -> tuple[Long, Long]:
    """Reads a zigzag varint. Returns the number and its end; end -1: truncated, or wider than 64 bits."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = byte_at(at)
    at += 1
    raw, shift = byte & 0x7F, np.int64(7)
    while byte >= 0x80:
        if at >= end or shift > 63:
            return np.int64(0), np.int64(-1)
        byte = byte_at(at)
        at += 1
        if shift == 63 and byte > 1:
            return np.int64(0), np.int64(-1)
        raw |= (byte & 0x7F) << shift
        shift += 7
    return ((raw >> 1) & _LOW_BITS) ^ -(raw & 1), at


@inlined
def _below(low: Long, high: Long, limit_low: Long, limit_high: Long) -> bool:
    """Returns whether the absolute value of a number of 128 bits is below a limit."""
    if high < 0:
        low, high = -low, ~high + (1 if low == 0 else 0)
    if high != limit_high:
        return bool(0 <= high < limit_high)
    return bool(low ^ _SIGN < limit_low ^ _SIGN)


@inlined
def _decimal(at: Long, size: Long) -> tuple[Long, Long, bool]:
    """Reads a big-endian number as two halves. False: it has no bytes, or needs more than 128 bits."""
    if size == 0:
        return np.int64(0), np.int64(0), False
    low = high = np.int64(-1) if byte_at(at) >= 0x80 else np.int64(0)
    for place in range(at, at + size):
        if high >> 55 != 0 and high >> 55 != -1:
            return low, high, False
        high = (high << 8) | ((low >> 56) & 255)
        low = (low << 8) | byte_at(place)
    return low, high, True


@inlined
def _hex(byte: Long) -> Long:
    if 0x30 <= byte <= 0x39:
        return byte - 0x30
    byte |= 0x20
    if 0x61 <= byte <= 0x66:
        return byte - 0x61 + 10
    return np.int64(-1)


@inlined
def _put_uuid(at: Long, room: Long) -> bool:
    """Writes the sixteen bytes of a UUID's text. False: it is not a UUID."""
    for place in range(16):
        if place == 4 or place == 6 or place == 8 or place == 10:
            if byte_at(at) != 0x2D:
                return False
            at += 1
        high, low = _hex(byte_at(at)), _hex(byte_at(at + 1))
        if high < 0 or low < 0:
            return False
        put_byte(room + place, high << 4 | low)
        at += 2
    return True


@inlined
def _items(at: Long, end: Long, is_empty: Long) -> tuple[Long, Long]:
    """Reads the start of the next block of a list. Returns the number of items and the position after it.

    0 items: end of the list. Each item takes at least one byte; items without bytes are skipped without counting them.
    Position -1: the block is damaged.
    """
    while True:
        count, at = _number(at, end)
        if at >= 0 and count < 0:
            count = -count
            _, at = _number(at, end)
        if at < 0:
            return np.int64(0), np.int64(-1)
        if count == 0 or not is_empty:
            if count < 0 or count > end - at:
                return np.int64(0), np.int64(-1)
            return count, at


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " uint8[::1], int64[::1], int64[::1], int32[::1], int64[::1], int64, int64, boolean, boolean)"
)
def read_values(
    code: Array,
    addresses: Array,
    sizes: Array,
    symbols: Array,
    symbol_sizes: Array,
    rooms: Array,
    base: Array,
    rows: Array,
    valid: Array,
    bits: Array,
    more: Array,
    problems: Array,
    weights: Array,
    value_slots_max: Long,
    slots_max: Long,
    filling: Any,
    validating: Any,
) -> Long:
    """Decodes values, each into a row of the buffers. Returns their number: `slots_max` limits that of their slots.

    Without `filling`, only counts the rows of each domain, in `rows`. With `validating`, checks that strings are UTF-8.
    Skips values that already have a problem. `weights`: the slots of a row of each domain.
    """
    slots = np.int64(0)
    stack, left, before = np.empty(DEPTH_MAX, np.int64), np.empty(DEPTH_MAX, np.int64), rows.copy()
    for value in range(addresses.size):
        if sizes[value] < 0 or problems[value]:
            continue
        at = addresses[value]
        end = at + sizes[value]
        rows[0] = value
        slots_before = slots
        slots += weights[0]
        for domain in range(1, rows.size):
            before[domain] = rows[domain]
        pc, depth, problem = np.int64(0), 0, 0
        while True:
            op, node = code[pc], code[pc + 1]
            slot = base[node] + rows[code[pc + 2]] if node >= 0 else np.int64(0)
            writes = filling and node >= 0
            if op in (INT, LONG):
                number, at = _number(at, end)
                if at < 0:
                    problem = CUT_OFF
                    break
                if op == INT and number != np.int64(np.int32(number)):
                    problem = TOO_WIDE
                    break
                if writes:
                    valid[slot], bits[slot] = 1, number
                pc += 3
            elif op in (STRING, BYTES):
                size, at = _number(at, end)
                if at < 0 or size < 0 or size > end - at:
                    problem = LENGTH
                    break
                if op == STRING and validating and not is_utf8(at, at + size):
                    problem = NOT_TEXT
                    break
                if writes:
                    valid[slot], bits[slot], more[slot] = 1, at, size
                at += size
                pc += 3
            elif op == UNION:
                number, at = _number(at, end)
                if at < 0 or number < 0 or number >= code[pc + 3]:
                    problem = NO_BRANCH
                    break
                pc = code[pc + 6 + 2 * number]
            elif op == STRUCT:
                if writes:
                    valid[slot] = 1
                pc += 3
            elif op == JUMP:
                pc = code[pc + 3]
            elif op == SCALED:
                number, at = _number(at, end)
                if at < 0:
                    problem = CUT_OFF
                    break
                if code[pc + 3] and number != np.int64(np.int32(number)):
                    problem = TOO_WIDE
                    break
                if writes and code[pc + 5] <= number <= code[pc + 6]:
                    factor = code[pc + 4]
                    valid[slot] = 1
                    bits[slot] = number * factor if factor > 0 else number // -factor
                pc += 7
            elif op == DOUBLE:
                if end - at < 8:
                    problem = CUT_OFF
                    break
                if writes:
                    valid[slot], bits[slot] = 1, np.int64(word_at(at))
                at += 8
                pc += 3
            elif op == FLOAT:
                if end - at < 4:
                    problem = CUT_OFF
                    break
                if writes:
                    valid[slot] = 1
                    bits[slot] = byte_at(at) | byte_at(at + 1) << 8 | byte_at(at + 2) << 16 | byte_at(at + 3) << 24
                at += 4
                pc += 3
            elif op == BOOLEAN:
                if at >= end:
                    problem = CUT_OFF
                    break
                if byte_at(at) > 1:
                    problem = NOT_BOOLEAN
                    break
                if writes:
                    valid[slot], bits[slot] = 1, byte_at(at)
                at += 1
                pc += 3
            elif op == ENUM:
                number, at = _number(at, end)
                if at < 0 or number < 0 or number >= code[pc + 4]:
                    problem = NO_SYMBOL
                    break
                if writes:
                    symbol = code[pc + 3] + number
                    valid[slot], bits[slot], more[slot] = 1, symbols[symbol], symbol_sizes[symbol]
                pc += 5
            elif op == UUID_TEXT:
                size, at = _number(at, end)
                if at < 0 or size < 0 or size > end - at:
                    problem = LENGTH
                    break
                if writes and size == _UUID_TEXT_SIZE:
                    room = rooms[code[pc + 3]] + 16 * rows[code[pc + 2]]
                    if _put_uuid(at, room):
                        valid[slot], bits[slot], more[slot] = 1, room, 16
                at += size
                pc += 4
            elif op == FIXED:
                size = code[pc + 3]
                if size > end - at:
                    problem = CUT_OFF
                    break
                if writes:
                    valid[slot], bits[slot], more[slot] = 1, at, size
                at += size
                pc += 4
            elif op == DECIMAL:
                size = code[pc + 3]
                if size < 0:
                    size, at = _number(at, end)
                if at < 0 or size < 0 or size > end - at:
                    problem = LENGTH
                    break
                if writes:
                    low, high, fits = _decimal(at, size)
                    if fits and _below(low, high, code[pc + 4], code[pc + 5]):
                        valid[slot], bits[slot], more[slot] = 1, low, high
                at += size
                pc += 6
            elif op in (LIST, AGAIN):
                if op == LIST:
                    if depth == DEPTH_MAX:
                        problem = TOO_DEEP
                        break
                    stack[depth], left[depth] = pc, 0
                    depth += 1
                    if writes:
                        valid[slot], bits[slot] = 1, rows[code[pc + 3]]
                else:
                    pc = stack[depth - 1]
                    left[depth - 1] -= 1
                    if code[pc + 3] >= 0:
                        rows[code[pc + 3]] += 1
                        slots += weights[code[pc + 3]]
                if left[depth - 1] == 0:
                    left[depth - 1], at = _items(at, end, code[pc + 5])
                    if at < 0:
                        problem = LENGTH
                        break
                if left[depth - 1] > 0:
                    pc += 6
                else:
                    depth -= 1
                    node = code[pc + 1]
                    if filling and node >= 0:
                        slot = base[node] + rows[code[pc + 2]]
                        more[slot] = rows[code[pc + 3]] - bits[slot]
                    pc = code[pc + 4]
            elif op == CALL:
                if depth == DEPTH_MAX:
                    problem = TOO_DEEP
                    break
                stack[depth] = pc + 4
                depth += 1
                pc = code[pc + 3]
            elif op == RETURN:
                depth -= 1
                pc = stack[depth]
            else:
                if at != end:
                    problem = LEFT_OVER
                break
        has_too_many = problem == 0 and slots - slots_before > value_slots_max
        if problem:
            problems[value] = np.int32(pc << PROBLEM_BITS | problem)
        elif has_too_many:
            problems[value] = TOO_MANY
        if problem or has_too_many or slots > slots_max:
            for domain in range(1, rows.size):
                rows[domain] = before[domain]
            if filling:
                # All nodes are of domain 0: with lists, the counting pass has found the values with problems.
                for node in range(base.size):
                    valid[base[node] + value] = 0
            if not problem and not has_too_many:
                return np.int64(value)
            slots = slots_before
    return np.int64(addresses.size)


# Writing


@inlined
def _put_number(at: Long, number: Long) -> Long:
    raw = (number << 1) ^ (number >> 63)
    while raw & ~np.int64(0x7F):
        put_byte(at, (raw & 0x7F) | 0x80)
        raw = (raw >> 7) & (_LOW_BITS >> 6)
        at += 1
    put_byte(at, raw)
    return at + 1


@inlined
def _decimal_byte(low: Long, high: Long, place: Long) -> Long:
    """Returns the byte at a place of a number, counted from the lowest."""
    if place >= 16:
        return (high >> 63) & 255
    return (high >> (8 * (place - 8))) & 255 if place >= 8 else (low >> (8 * place)) & 255


@inlined
def _decimal_size(low: Long, high: Long) -> Long:
    """Returns the fewest bytes that represent the number with its sign, as Java writes it."""
    sign = (high >> 63) & 255
    size = np.int64(8) if high == low >> 63 else np.int64(16)
    while size > 1 and _decimal_byte(low, high, size - 1) == sign:
        if (_decimal_byte(low, high, size - 2) ^ sign) & 0x80:
            break
        size -= 1
    return size


@inlined
def _put_uuid_text(at: Long, source: Long) -> Long:
    for place in range(16):
        if place == 4 or place == 6 or place == 8 or place == 10:
            put_byte(at, np.int64(0x2D))
            at += 1
        byte = byte_at(source + place)
        for digit in (byte >> 4, byte & 15):
            put_byte(at, digit + (0x30 if digit < 10 else 0x61 - 10))
            at += 1
    return at


@inlined
def _compared(one: Long, other: Long, size: Long) -> Long:
    for place in range(size):
        difference = byte_at(one + place) - byte_at(other + place)
        if difference:
            return difference
    return np.int64(0)


@inlined
def _symbol(symbols: Array, sizes: Array, sorted_: Array, first: Long, count: Long, address: Long, size: Long) -> Long:
    """Returns the number of a symbol in its enum, or -1. `sorted_`: numbers sorted by size and text."""
    low, high = np.int64(0), count
    while low < high:
        middle = (low + high) >> 1
        number = sorted_[first + middle]
        order = sizes[first + number] - size
        if order == 0:
            order = _compared(symbols[first + number], address, size)
            if order == 0:
                return number
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return np.int64(-1)


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64)"
)
def write_values(
    code: Array,
    symbols: Array,
    symbol_sizes: Array,
    symbols_sorted: Array,
    base: Array,
    rows: Array,
    valid: Array,
    bits: Array,
    more: Array,
    addresses: Array,
    sizes: Array,
    value: Long,
    at: Long,
    room_end: Long,
) -> tuple[Long, Long]:
    """Encodes the rows from `value` on, one after the other from address `at` on.

    Returns the first row that did not fit, and the end of the written bytes. A row that is null or cannot be encoded
    with this schema gets the size -1.
    """
    stack, left = np.empty(DEPTH_MAX, np.int64), np.empty(DEPTH_MAX, np.int64)
    while value < addresses.size:
        start = at
        rows[0] = value
        pc, depth, size_now = np.int64(0), 0, np.int64(-1)
        while True:
            op, node = code[pc], code[pc + 1]
            slot = base[node] + rows[code[pc + 2]] if node >= 0 else np.int64(0)
            if room_end - at < _SPARE:
                size_now = np.int64(FULL)
                break
            if op == UNION:
                count, place = code[pc + 3], np.int64(0)
                row = rows[code[pc + 2]]
                while place < count:
                    witness = code[pc + 7 + 2 * place]
                    if witness >= 0 and valid[base[witness] + row]:
                        break
                    place += 1
                if place == count:
                    place = code[pc + 5] if node >= 0 and valid[slot] else code[pc + 4]
                if place < 0:
                    break
                at = _put_number(at, place)
                pc = code[pc + 6 + 2 * place]
            elif op == JUMP:
                pc = code[pc + 3]
            elif op == LIST:
                if node < 0 or (valid[slot] and more[slot] == 0):
                    put_byte(at, np.int64(0))
                    at += 1
                    pc = code[pc + 4]
                    continue
                if not valid[slot] or depth == DEPTH_MAX:
                    break
                at = _put_number(at, more[slot])
                stack[depth], left[depth] = pc, more[slot]
                depth += 1
                rows[code[pc + 3]] = bits[slot]
                pc += 6
            elif op == AGAIN:
                pc = stack[depth - 1]
                left[depth - 1] -= 1
                rows[code[pc + 3]] += 1
                if left[depth - 1] > 0:
                    pc += 6
                else:
                    depth -= 1
                    put_byte(at, np.int64(0))
                    at += 1
                    pc = code[pc + 4]
            elif op == CALL:
                if depth == DEPTH_MAX:
                    break
                stack[depth] = pc + 4
                depth += 1
                pc = code[pc + 3]
            elif op == RETURN:
                depth -= 1
                pc = stack[depth]
            elif op == END:
                size_now = at - start
                break
            elif op == FIXED and code[pc + 3] == 0:
                pc += 4
            elif node < 0 or not valid[slot]:
                break
            elif op == STRUCT:
                pc += 3
            elif op in (INT, LONG):
                if op == INT and bits[slot] != np.int64(np.int32(bits[slot])):
                    break
                at = _put_number(at, bits[slot])
                pc += 3
            elif op in (STRING, BYTES):
                size = more[slot]
                if size > room_end - at - _SPARE:
                    size_now = np.int64(FULL)
                    break
                at = _put_number(at, size)
                copy(at, bits[slot], size)
                at += size
                pc += 3
            elif op == SCALED:
                factor, number = code[pc + 4], bits[slot]
                if factor > 0:
                    if number % factor:
                        break
                    number //= factor
                else:
                    bound = code[pc + 6] // -factor
                    if not -bound <= number <= bound:
                        break
                    number *= -factor
                if not code[pc + 5] <= number <= code[pc + 6]:
                    break
                at = _put_number(at, number)
                pc += 7
            elif op == DOUBLE:
                put_word(at, np.uint64(bits[slot]))
                at += 8
                pc += 3
            elif op == FLOAT:
                for byte in range(4):
                    put_byte(at + byte, (bits[slot] >> (8 * byte)) & 255)
                at += 4
                pc += 3
            elif op == BOOLEAN:
                put_byte(at, np.int64(bits[slot] != 0))
                at += 1
                pc += 3
            elif op == ENUM:
                number = _symbol(
                    symbols, symbol_sizes, symbols_sorted, code[pc + 3], code[pc + 4], bits[slot], more[slot]
                )
                if number < 0:
                    break
                at = _put_number(at, number)
                pc += 5
            elif op == UUID_TEXT:
                at = _put_number(at, np.int64(_UUID_TEXT_SIZE))
                at = _put_uuid_text(at, bits[slot])
                pc += 4
            elif op == FIXED:
                size = code[pc + 3]
                if more[slot] != size:
                    break
                if size > room_end - at - _SPARE:
                    size_now = np.int64(FULL)
                    break
                copy(at, bits[slot], size)
                at += size
                pc += 4
            else:  # DECIMAL
                size, least = code[pc + 3], _decimal_size(bits[slot], more[slot])
                if size < 0:
                    size = least
                    at = _put_number(at, size)
                if size < least:
                    break
                if size > room_end - at - _SPARE:
                    size_now = np.int64(FULL)
                    break
                for byte in range(size):
                    put_byte(at + byte, _decimal_byte(bits[slot], more[slot], size - 1 - byte))
                at += size
                pc += 6
        if size_now == FULL:
            return np.int64(value), start
        if size_now < 0:
            at = start
        addresses[value], sizes[value] = start, size_now
        value += 1
    return np.int64(value), at
