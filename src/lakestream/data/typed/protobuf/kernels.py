"""Kernels of `codec.py`: decode messages and encode rows, with the tables that program.py makes of a descriptor.

A *scope* is a message at one place of the shape's tree: the whole value, a struct below it, the entries of a map, a
message that is one value in the table (Timestamp, …). The shape has no recursive messages, so every scope is open at
most once at a time, and its state is in plain arrays.

Decoding detects problems, counts the rows of lists and fills the buffers: in one pass if the estimated buffers are
large enough, else in two passes of the same code. It supports messages as serializers write them: fields in any order,
each in one piece. A message with a duplicate field, or a list in several pieces, is IRREGULAR: it must be merged, which
Google's library does. Input is not trusted: each length is compared with the bytes that are left, and each element
takes bytes.

Encoding goes from the last byte to the first, so that the length of a message is known when it is written.
"""

from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import (
    Array,
    Long,
    byte_at,
    copy,
    inlined,
    is_utf8,
    kernel,
    memory,
    put_byte,
    put_word,
    word_at,
)
from lakestream.data.typed.codec import TOO_MANY

# Fields, one row each: those of a scope together, by number.
NUMBER, TYPE, NODE, LIST, SCOPE, PRESENCE, ONEOF, PACKED = range(8)
ENUM, BITS, MORE, FLAGS, DOMAIN, LIST_DOMAIN, OPENED, TAG = range(8, 16)
"""NODE: node of its value, -1 - n: register n. LIST: list or map that it is an element of, or -1. SCOPE: of a message,
else -1. ONEOF: index in `seen`, or -1. ENUM: start of its table. BITS, MORE: default value. DOMAIN, LIST_DOMAIN: of
NODE and LIST; OPENED: domain that LIST opens."""
FIELD_WIDTH: Final = 16

# Scopes, one row each.
FIRST, END, KIND, AT_NODE, AT_DOMAIN, SCALE, PRECISION = range(7)
SCOPE_WIDTH: Final = 8

PLAIN, ENTRY, WRAPPER, TIMESTAMP, DATE, TIME, DECIMAL, EMPTY = range(8)
"""Kinds of scopes."""

INT32, INT64, UINT32, UINT64, SINT32, SINT64, BOOL, ENUMERATION = range(8)
FIXED32, SFIXED32, FLOAT = 8, 9, 10
FIXED64, SFIXED64, DOUBLE = 11, 12, 13
STRING, BYTES, MESSAGE = 14, 15, 16
"""Types of fields, in the order of their wire types: varints, four bytes, eight bytes, with a length."""

IMPLICIT, EXPLICIT, REQUIRED, ALWAYS = range(4)
"""Presence. IMPLICIT: not written if it is zero. ALWAYS: keys and values of maps."""
LAX, CLOSED = 1, 2
"""Flags. LAX: a string that is not UTF-8 becomes null, not a problem. CLOSED: numbers without name are skipped."""

CUT_OFF, VARINT, TAG_WRONG, LENGTH, GROUP, NOT_TEXT, PACKED_WRONG, NOT_MERGED, IRREGULAR = range(1, 10)
LOOK, FILL = 1, 2
"""Steps of reading."""
FULL: Final = -1
"""Result of reading: lists have more rows than the buffers."""
UNLIMITED: Final = 2**62
PROBLEM_BITS: Final = 8
"""Lower bits of a problem; the bits above are 1 + the field."""

_GROUPS_MAX: Final = 100
_TAG_MAX: Final = 2**32 - 1
_HASH: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND, _MINUTE, _HOUR = 1_000_000, 60_000_000, 3_600_000_000
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999, the range of Timestamp."""
_DAYS_MIN, _DAYS_MAX = -719_162, 2_932_896
_TENS: Final = np.array([(10**n & 2**64 - 1, 10**n >> 64) for n in range(39)], np.uint64)
"""Powers of ten, low and high half."""
_SHORT: Final = 16
"""Bytes that a loop copies faster than a call."""
_SPARE: Final = 64
"""Maximum bytes of a number with its tag."""


# Decoding. Positions are addresses.


@inlined
def _varint(at: Long, end: Long) -> tuple[Long, Long]:
    """Reads a varint. Returns the number and its end, or -CUT_OFF or -VARINT (too long) as the end."""
    if at == end:
        return np.uint64(0), np.int64(-CUT_OFF)
    byte = byte_at(at)
    at += 1
    if byte < 0x80:
        return np.uint64(byte), at
    raw = np.uint64(byte & 0x7F)
    shift = 7
    while at < end:
        byte = byte_at(at)
        at += 1
        raw |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            return raw, at
        shift += 7
        if shift == 70:
            return np.uint64(0), np.int64(-VARINT)
    return np.uint64(0), np.int64(-CUT_OFF)


@inlined
def _short_varint(at: Long, end: Long) -> tuple[Long, Long]:
    """Reads a tag or a length, which have at most five bytes."""
    raw, after = _varint(at, end)
    return raw, np.int64(-VARINT) if after > at + 5 else after


@inlined
def _fixed(at: Long, end: Long, size: Long) -> Long:
    """Reads four or eight bytes."""
    if end - at >= 8:
        raw = word_at(at)
        return raw if size == 8 else raw & np.uint64(0xFFFFFFFF)
    raw = np.uint64(0)
    for place in range(size):
        raw |= np.uint64(byte_at(at + place)) << np.uint64(8 * place)
    return raw


@inlined
def _skipped(at: Long, end: Long, tag: Long, open_groups: Array) -> Long:
    """Returns the end of an unknown field; negative: minus a problem."""
    depth = 0
    while True:
        wire = tag & 7
        if wire == 0:
            _, at = _varint(at, end)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
            if at > end:
                return np.int64(-CUT_OFF)
        elif wire == 2:
            size, at = _short_varint(at, end)
            if at >= 0:
                if size > np.uint64(end - at):
                    return np.int64(-LENGTH)
                at += np.int64(size)
        elif wire == 3:
            if depth == _GROUPS_MAX:
                return np.int64(-GROUP)
            open_groups[depth] = tag >> 3
            depth += 1
        elif wire == 4:
            depth -= 1
            if depth < 0 or open_groups[depth] != tag >> 3:
                return np.int64(-GROUP)
        else:
            return np.int64(-TAG_WRONG)
        if at < 0 or depth == 0:
            return np.int64(at)
        raw, at = _short_varint(at, end)
        if at < 0:
            return np.int64(at)
        if raw > np.uint64(_TAG_MAX) or raw < np.uint64(8):
            return np.int64(-TAG_WRONG)
        tag = np.int64(raw)


@inlined
def _wire_of(kind: Long) -> Long:
    if kind < FIXED32:
        return 0
    if kind < FIXED64:
        return 5
    return 1 if kind < STRING else 2


@inlined
def _found(fields: Array, first: Long, end: Long, guess: Long, tag: Long) -> Long:
    """Returns the field of a tag; -1: unknown number, or not the wire type of the field."""
    low, high, number = first, end, tag >> 3
    if guess > first and fields[guess - 1, NUMBER] == number:  # lists are usually in one piece
        low, high = guess - 1, guess
    while low < high:
        middle = (low + high) >> 1
        if fields[middle, NUMBER] < number:
            low = middle + 1
        else:
            high = middle
    if low >= end or fields[low, NUMBER] != number:
        return np.int64(-1)
    kind, wire = fields[low, TYPE], tag & 7
    is_packed = wire == 2 and kind < STRING and fields[low, LIST] >= 0
    return low if is_packed or wire == _wire_of(kind) else np.int64(-1)


@inlined
def _named(enums: Array, at: Long, number: Long) -> Long:
    """Returns the row with the name of a number in the table of an enum; -1: none."""
    mask = enums[at]
    place = np.int64((np.uint64(number) * _HASH) >> np.uint64(32)) & mask
    while True:
        row = at + 1 + 3 * place
        if enums[row + 1] < 0:
            return np.int64(-1)
        if enums[row] == number:
            return np.int64(row)
        place = (place + 1) & mask


@inlined
def _number_of(kind: Long, raw: Long) -> Long:
    """Converts the bits on the wire to the bits of the column buffers."""
    if kind in (INT32, SFIXED32, ENUMERATION, FLOAT):
        return np.int64(np.int32(raw))
    if kind in (UINT32, FIXED32):
        return np.int64(raw & np.uint64(0xFFFFFFFF))
    if kind == SINT32:
        low = np.uint32(raw)
        return np.int64(np.int32(low >> np.uint32(1)) ^ -np.int32(low & np.uint32(1)))
    if kind == SINT64:
        return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
    if kind == BOOL:
        return np.int64(raw != np.uint64(0))
    return np.int64(raw)


@inlined
def _days(year: Long, month: Long, day: Long) -> Long:
    """Returns days since 1970 in the Gregorian calendar. Years begin in March here, so the leap day is the last day."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@inlined
def _date(days: Long) -> tuple[Long, Long, Long]:
    days += 719_468
    era = days // 146_097
    of_era = days - era * 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    return year + era * 400 + (month <= 2), month, day


@inlined
def _digits(low: Long, high: Long) -> Long:
    """Returns the decimal digits of a number of 128 bits, two's complement, without its sign."""
    one, two = np.uint64(low), np.uint64(high)
    if high < 0:
        one = ~one + np.uint64(1)
        two = ~two + np.uint64(one == 0)
    digits = 1
    while digits < 39 and (two > _TENS[digits, 1] or (two == _TENS[digits, 1] and one >= _TENS[digits, 0])):
        digits += 1
    return digits


@inlined
def _folded(kind: Long, scale: Long, precision: Long, registers: Array) -> tuple[bool, Long, Long]:
    """Returns the value of a message that is one value: whether it fits the column, bits, more."""
    a, b, c, d = registers[0, 0], registers[1, 0], registers[2, 0], registers[3, 0]
    if kind == TIMESTAMP:
        fits = _SECONDS_MIN <= a <= _SECONDS_MAX and 0 <= b < 1_000_000_000
        return fits, (a * _SECOND + b // 1000 if fits else np.int64(0)), np.int64(0)
    if kind == DATE:
        fits = 1 <= a <= 9999 and 1 <= b <= 12 and 1 <= c <= 31
        days = _days(a, b, c) if fits else np.int64(0)
        if fits:
            _, month, _ = _date(days)
            fits = month == b
        return fits, days, np.int64(0)
    if kind == TIME:
        fits = 0 <= a < 24 and 0 <= b < 60 and 0 <= c < 60 and 0 <= d < 1_000_000_000
        return fits, (a * _HOUR + b * _MINUTE + c * _SECOND + d // 1000 if fits else np.int64(0)), np.int64(0)
    if kind == DECIMAL:
        size = registers[0, 1]
        if c != scale or size > 16:
            return False, np.int64(0), np.int64(0)
        data = memory(a, size)
        low = high = np.uint64(0)
        if size > 0 and data[0] >= 0x80:
            low = high = ~np.uint64(0)
        for place in range(size):
            high = high << np.uint64(8) | low >> np.uint64(56)
            low = low << np.uint64(8) | np.uint64(data[place])
        one, two = np.int64(low), np.int64(high)
        return _digits(one, two) <= precision, one, two
    return True, np.int64(1), np.int64(0)


@inlined
def _complete(
    scope: Long,
    mine: Long,
    seen: Array,
    fields: Array,
    scopes: Array,
    row: Array,
    used: Array,
    base: Array,
    valid: Array,
    bits: Array,
    more: Array,
) -> None:
    """Sets the missing fields of a message: lists are empty, and fields with implicit presence have their default."""
    for field in range(scopes[scope, FIRST], scopes[scope, END]):
        if seen[field] == mine:
            continue
        presence = fields[field, PRESENCE]
        if fields[field, LIST] >= 0:
            slot = base[fields[field, LIST]] + row[fields[field, LIST_DOMAIN]]
            valid[slot], bits[slot], more[slot] = 1, used[fields[field, OPENED]], 0
        elif presence in (IMPLICIT, ALWAYS):
            slot = base[fields[field, NODE]] + row[fields[field, DOMAIN]]
            valid[slot], bits[slot], more[slot] = 1, fields[field, BITS], fields[field, MORE]


@inlined
def _forget(domains: Array, base: Array, valid: Array, value: Long, before: Array, used: Array) -> None:
    """Removes the rows of a value that has a problem."""
    for node in range(domains.size):
        domain = domains[node]
        if domain == 0:
            valid[base[node] + value] = 0
        else:
            for place in range(base[node] + before[domain], base[node] + used[domain]):
                valid[place] = 0


@kernel(
    "int64(int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64, int64,"
    " int64, int64, int64, int32[::1], int64[::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1])"
)
def read_messages(
    addresses: Array,
    sizes: Array,
    fields: Array,
    scopes: Array,
    enums: Array,
    domains: Array,
    weights: Array,
    depth_max: int,
    seen_size: int,
    value_slots_max: int,
    slots_max: int,
    steps: int,
    problems: Array,
    used: Array,
    rows_max: Array,
    base: Array,
    valid: Array,
    bits: Array,
    more: Array,
) -> Long:
    """Detects the problem of each value (LOOK), and fills the buffers with values that have none (FILL).

    Both steps may run in one call or in two. `used`: set to the rows of each domain. Returns FULL if these exceed
    `rows_max`, the rows of the buffers; else how many of the values were read: those with at most `slots_max` slots
    together. `weights`: the slots of a row of each domain.
    """
    looking, filling = steps & LOOK != 0, steps & FILL != 0
    # Of the enclosing scopes: end, number, next field, serial number.
    around = np.empty((depth_max + 1, 4), np.int64)
    # By field and by oneof, the serial number of the last message that had it.
    seen = np.zeros(seen_size, np.int64)
    row, before = np.zeros(used.size, np.int64), np.zeros(used.size, np.int64)
    registers, open_groups = np.zeros((4, 2), np.int64), np.empty(_GROUPS_MAX, np.int64)
    serial, slots = np.int64(0), np.int64(0)
    used[:] = 0
    for value in range(addresses.size):
        if sizes[value] < 0 or problems[value] != 0:
            continue
        for domain in range(1, used.size):
            before[domain] = used[domain]
        slots_before = slots
        slots += weights[0]
        row[0] = value
        problem, depth, opening = np.int64(0), 0, True
        at = np.int64(addresses[value])
        scope, end, guess, mine = np.int64(0), at + sizes[value], np.int64(0), np.int64(0)
        while True:
            if opening:
                opening = False
                serial += 1
                mine, guess = serial, scopes[scope, FIRST]
                kind = scopes[scope, KIND]
                if kind >= TIMESTAMP:
                    registers[:] = 0
                elif filling and kind == PLAIN:
                    valid[base[scopes[scope, AT_NODE]] + row[scopes[scope, AT_DOMAIN]]] = 1

            if at == end:
                kind = scopes[scope, KIND]
                if kind == ENTRY:
                    # A missing map value is a message without fields.
                    field = scopes[scope, END] - 1
                    if fields[field, TYPE] == MESSAGE and seen[field] != mine:
                        seen[field] = mine
                        around[depth, 0], around[depth, 1], around[depth, 2], around[depth, 3] = end, scope, guess, mine
                        depth += 1
                        scope, opening = fields[field, SCOPE], True
                        continue
                if kind >= TIMESTAMP and filling:
                    fits, low, high = _folded(kind, scopes[scope, SCALE], scopes[scope, PRECISION], registers)
                    slot = base[scopes[scope, AT_NODE]] + row[scopes[scope, AT_DOMAIN]]
                    valid[slot], bits[slot], more[slot] = fits, low, high
                elif filling:
                    _complete(scope, mine, seen, fields, scopes, row, used, base, valid, bits, more)
                if depth == 0:
                    break
                depth -= 1
                end, scope, guess, mine = around[depth, 0], around[depth, 1], around[depth, 2], around[depth, 3]
                continue

            raw, at = _short_varint(at, end)
            if at < 0:
                problem = -at
                break
            if raw > np.uint64(_TAG_MAX) or raw < np.uint64(8):
                problem = np.int64(TAG_WRONG)
                break
            tag = np.int64(raw)
            wire = tag & 7
            field = guess
            if guess >= scopes[scope, END] or fields[guess, TAG] != tag:
                field = _found(fields, scopes[scope, FIRST], scopes[scope, END], guess, tag)
                if field < 0:
                    at = _skipped(at, end, tag, open_groups)
                    if at < 0:
                        problem = -at
                        break
                    continue
            kind = fields[field, TYPE]
            is_list = fields[field, LIST] >= 0
            is_packed = is_list and wire == 2 and kind < STRING

            is_first = seen[field] != mine
            if looking:
                oneof = fields[field, ONEOF]
                is_again = not is_first and not (is_list and guess == field + 1)
                if is_again or (oneof >= 0 and seen[oneof] == mine):
                    problem = np.int64(IRREGULAR)
                    break
                if oneof >= 0:
                    seen[oneof] = mine
            seen[field] = mine
            guess = field + 1
            position = (field + 1) << PROBLEM_BITS
            size = np.int64(0)
            if wire == 2:
                raw, at = _short_varint(at, end)
                if at < 0:
                    problem = -at | position
                    break
                if raw > np.uint64(end - at):
                    problem = LENGTH | position
                    break
                size = np.int64(raw)
            width = 4 if FIXED32 <= kind < FIXED64 else 8
            if is_packed and kind >= FIXED32 and size % width:
                problem = PACKED_WRONG | position
                break

            if is_list and is_first and filling:
                slot = base[fields[field, LIST]] + row[fields[field, LIST_DOMAIN]]
                valid[slot], bits[slot], more[slot] = 1, used[fields[field, OPENED]], 0

            # One iteration, except for packed numbers.
            last = at + size
            while not is_packed or at < last:
                low, high, is_fine = np.int64(0), np.int64(0), True
                if kind < FIXED32:
                    raw, at = _varint(at, last if is_packed else end)
                    if at < 0:
                        problem = -at | position
                        break
                    low = _number_of(kind, raw)
                    if kind == ENUMERATION and (filling or is_list):
                        place = _named(enums, fields[field, ENUM], low)
                        is_fine = place >= 0
                        if is_fine:
                            low, high = enums[place + 1], enums[place + 2]
                        elif is_list and fields[field, FLAGS] & CLOSED != 0:
                            if is_packed:
                                continue
                            break
                elif kind < STRING:
                    if end - at < width:
                        problem = CUT_OFF | position
                        break
                    low = _number_of(kind, _fixed(at, end, width))
                    at += width
                elif kind < MESSAGE:
                    is_lax = fields[field, FLAGS] & LAX != 0
                    is_fine = kind == BYTES or (not looking and not is_lax) or is_utf8(at, last)
                    if not is_fine and not is_lax:
                        problem = NOT_TEXT | position
                        break
                    low, high, at = at, size, last

                node_row = row[fields[field, DOMAIN]]
                if is_list:
                    domain = fields[field, OPENED]
                    node_row = row[domain] = used[domain]
                    used[domain] += 1
                    if filling and node_row == rows_max[domain]:
                        return np.int64(FULL)
                    slots += weights[domain]
                    if slots - slots_before > value_slots_max:
                        problem = np.int64(TOO_MANY)
                        break
                    if filling:
                        more[base[fields[field, LIST]] + row[fields[field, LIST_DOMAIN]]] += 1
                if kind == MESSAGE:
                    around[depth, 0], around[depth, 1], around[depth, 2], around[depth, 3] = end, scope, guess, mine
                    depth += 1
                    scope, end, opening = fields[field, SCOPE], last, True
                elif fields[field, NODE] < 0:
                    registers[-1 - fields[field, NODE], 0], registers[-1 - fields[field, NODE], 1] = low, high
                elif filling:
                    slot = base[fields[field, NODE]] + node_row
                    valid[slot], bits[slot], more[slot] = is_fine, low, high
                if not is_packed:
                    break
            if problem != 0:
                break
        if problem == 0 and (slots - slots_before > value_slots_max or slots > slots_max):
            problem = np.int64(TOO_MANY)
        if problem != 0:
            if filling:
                _forget(domains, base, valid, value, before, used)
            for domain in range(1, used.size):
                used[domain] = before[domain]
            if problem == TOO_MANY and slots - slots_before <= value_slots_max:
                return np.int64(value)
            problems[value] = problem
            slots = slots_before
    return np.int64(addresses.size)


# Encoding


@inlined
def _put_varint(at: Long, raw: Long) -> Long:
    """Writes a varint that ends at `at`. Returns its start."""
    if raw < np.uint64(0x80):
        put_byte(at - 1, np.int64(raw))
        return at - 1
    at -= 1
    rest = raw >> np.uint64(7)
    while rest:
        at -= 1
        rest >>= np.uint64(7)
    place = at
    while raw >= np.uint64(0x80):
        put_byte(place, np.int64(raw & np.uint64(0x7F) | np.uint64(0x80)))
        raw >>= np.uint64(7)
        place += 1
    put_byte(place, np.int64(raw))
    return at


@inlined
def _put_number(at: Long, kind: Long, low: Long) -> Long:
    if kind >= FIXED64:
        put_word(at - 8, np.uint64(low))
        return at - 8
    if kind >= FIXED32:
        for place in range(4):
            put_byte(at - 4 + place, low >> 8 * place & 0xFF)
        return at - 4
    if kind in (SINT64, SINT32):
        low = low << 1 ^ low >> 63
    return _put_varint(at, np.uint64(low))


@inlined
def _put_bytes(at: Long, address: Long, size: Long) -> Long:
    """Writes bytes with their length, ending at `at`. Returns the start."""
    at -= size
    if size < _SHORT:
        for place in range(size):
            put_byte(at + place, byte_at(address + place))
    else:
        copy(at, address, size)
    return _put_varint(at, np.uint64(size))


@inlined
def _enum_number(enums: Array, at: Long, address: Long, size: Long) -> Long:
    """Returns the row of a name in the table of an enum; -1: none. The rows by name follow the rows by number."""
    mask = enums[at]
    names = at + 1 + 3 * (mask + 1)
    name = memory(address, size)
    hashed: Long = np.uint64(size)
    for letter in range(size):
        hashed = (hashed ^ np.uint64(name[letter])) * _HASH
    place: Long = np.int64(hashed >> np.uint64(32)) & mask
    while True:
        row = names + 3 * place
        if enums[row + 1] < 0:
            return np.int64(-1)
        if enums[row + 2] == size:
            other = memory(enums[row + 1], size)
            same = 0
            while same < size and other[same] == name[same]:
                same += 1
            if same == size:
                return np.int64(row)
        place = (place + 1) & mask


@inlined
def _writable(kind: Long, low: Long, high: Long) -> Long:
    """Returns whether a number fits its field: the column may have a wider range."""
    if kind in (UINT64, FIXED64):
        return high == 0
    if kind in (UINT32, FIXED32):
        return 0 <= low <= 0xFFFFFFFF
    if kind in (INT32, SINT32, SFIXED32):
        return -0x80000000 <= low <= 0x7FFFFFFF
    return True


@inlined
def _unfold(kind: Long, scale: Long, precision: Long, low: Long, high: Long, registers: Array, room: Array) -> Long:
    """Splits a value into the fields of its message, in the registers. Returns False if the message cannot hold it."""
    if kind == TIMESTAMP:
        seconds = low // _SECOND
        registers[0, 0], registers[1, 0] = seconds, (low - seconds * _SECOND) * 1000
    elif kind == DATE:
        if low < _DAYS_MIN or low > _DAYS_MAX:
            return False
        year, month, day = _date(low)
        registers[0, 0], registers[1, 0], registers[2, 0] = year, month, day
    elif kind == TIME:
        registers[0, 0], registers[1, 0] = low // _HOUR, low // _MINUTE % 60
        registers[2, 0], registers[3, 0] = low // _SECOND % 60, low % _SECOND * 1000
    elif kind == DECIMAL:
        for place in range(8):
            room[15 - place] = np.uint8(low >> 8 * place & 0xFF)
            room[7 - place] = np.uint8(high >> 8 * place & 0xFF)
        first = 0
        while first < 15 and (
            (room[first] == 0 and room[first + 1] < 0x80) or (room[first] == 0xFF and room[first + 1] >= 0x80)
        ):
            first += 1
        registers[0, 0], registers[0, 1] = room.ctypes.data + first, 16 - first
        registers[1, 0], registers[2, 0] = _digits(low, high), scale
    elif kind == EMPTY:
        return low != 0
    return True


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], int64[::1], int64, int64[::1], int64[::1], uint8[::1], int64[::1],"
    " int64[::1], int64, int64, int64[::1], int64[::1])"
)
def write_messages(
    fields: Array,
    scopes: Array,
    enums: Array,
    depth_max: int,
    counts: Array,
    base: Array,
    valid: Array,
    bits: Array,
    more: Array,
    address: int,
    room_size: int,
    addresses: Array,
    sizes: Array,
) -> Long:
    """Encodes all rows, from the end of the buffer. Returns the bytes left at its start; -1: it was too small.

    As serializers do, writes fields by number, lists of numbers packed if the schema says so, key and value of every
    map entry, and zeros only in fields with explicit presence.
    """
    marks, opened = np.empty(depth_max + 1, np.int64), np.empty(depth_max + 1, np.int64)
    places, row = np.empty(depth_max + 1, np.int64), np.zeros(counts.size, np.int64)
    registers, room = np.zeros((4, 2), np.int64), np.empty(16, np.uint8)
    floor, at = address + _SPARE, np.int64(address + room_size)
    for value in range(addresses.size - 1, -1, -1):
        sizes[value] = -1
        if not valid[base[0] + value]:
            continue
        row[0] = value
        stop, depth, is_fine = at, 0, True
        scope, field = np.int64(0), scopes[0, END] - 1
        while True:
            if at < floor:
                return -1
            entering = np.int64(-1)
            if field < scopes[scope, FIRST]:
                if depth == 0:
                    break
                depth -= 1
                field, scope = places[depth], opened[depth]
                at = _put_varint(at, np.uint64(marks[depth] - at))
                at = _put_varint(at, np.uint64(fields[field, TAG]))
                if fields[field, LIST] >= 0:
                    slot = base[fields[field, LIST]] + row[fields[field, LIST_DOMAIN]]
                    if row[fields[field, OPENED]] > bits[slot]:
                        row[fields[field, OPENED]] -= 1
                        entering = fields[field, SCOPE]
                if entering < 0:
                    field -= 1
                    continue
            kind, node = fields[field, TYPE], fields[field, NODE]
            if entering < 0 and fields[field, LIST] >= 0:
                slot = base[fields[field, LIST]] + row[fields[field, LIST_DOMAIN]]
                first, count = bits[slot], more[slot]
                if not valid[slot] or count <= 0:
                    field -= 1
                    continue
                domain = fields[field, OPENED]
                if first < 0 or first + count > counts[domain]:
                    return -1
                if kind == MESSAGE:
                    row[domain] = first + count - 1
                    entering = fields[field, SCOPE]
                else:
                    mark = at
                    for element in range(base[node] + first + count - 1, base[node] + first - 1, -1):
                        low, high = bits[element], more[element]
                        if at < floor:
                            return -1
                        if not valid[element]:
                            is_fine = False
                            break
                        if kind >= STRING:
                            if at - floor < high:
                                return -1
                            at = _put_bytes(at, low, high)
                        else:
                            if kind == ENUMERATION:
                                found = _enum_number(enums, fields[field, ENUM], low, high)
                                is_fine = found >= 0
                                low = enums[found] if is_fine else np.int64(0)
                            elif not _writable(kind, low, high):
                                is_fine = False
                            if not is_fine:
                                break
                            at = _put_number(at, kind, low)
                        if not fields[field, PACKED]:
                            at = _put_varint(at, np.uint64(fields[field, TAG]))
                    if not is_fine:
                        break
                    if fields[field, PACKED]:
                        at = _put_varint(at, np.uint64(mark - at))
                        at = _put_varint(at, np.uint64(fields[field, TAG]))
                    field -= 1
                    continue

            if kind == MESSAGE:
                inner = fields[field, SCOPE]
                form = scopes[inner, KIND]
                if form != ENTRY:
                    slot = base[scopes[inner, AT_NODE]] + row[scopes[inner, AT_DOMAIN]]
                    if not valid[slot]:
                        if entering >= 0 or fields[field, PRESENCE] >= REQUIRED:
                            is_fine = False
                            break
                        field -= 1
                        continue
                    if form >= TIMESTAMP and not _unfold(
                        form, scopes[inner, SCALE], scopes[inner, PRECISION], bits[slot], more[slot], registers, room
                    ):
                        is_fine = False
                        break
                marks[depth], opened[depth], places[depth] = at, scope, field
                depth += 1
                scope, field = inner, scopes[inner, END] - 1
                continue

            if node < 0:
                low, high = registers[-1 - node, 0], registers[-1 - node, 1]
            else:
                slot = base[node] + row[fields[field, DOMAIN]]
                low, high = bits[slot], more[slot]
                if not valid[slot]:
                    if fields[field, PRESENCE] >= REQUIRED:
                        is_fine = False
                        break
                    field -= 1
                    continue
            is_implicit = fields[field, PRESENCE] == IMPLICIT
            if kind >= STRING:
                if high > 0 or not is_implicit:
                    if at - floor < high:
                        return -1
                    at = _put_bytes(at, low, high)
                    at = _put_varint(at, np.uint64(fields[field, TAG]))
            else:
                if kind == ENUMERATION:
                    found = _enum_number(enums, fields[field, ENUM], low, high)
                    is_fine = found >= 0
                    low = enums[found] if is_fine else np.int64(0)
                elif not _writable(kind, low, high):
                    is_fine = False
                if not is_fine:
                    break
                if low != 0 or not is_implicit:
                    at = _put_number(at, kind, low)
                    at = _put_varint(at, np.uint64(fields[field, TAG]))
            field -= 1
        if is_fine:
            addresses[value], sizes[value] = at, stop - at
        else:
            at = stop
    return at - address
