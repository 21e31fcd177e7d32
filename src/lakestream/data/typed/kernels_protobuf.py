"""Kernels of `protobuf.py`: messages to frames and back, by the tables that protobuf_program.py makes of a descriptor.

A *scope* is a message at one place of the shape's tree: the whole value, a struct below it, the entries of a map, a
message that is one value in the table (Timestamp, …). A message inside itself is not in the shape, so every scope is
open at most once at a time, and what is known of it lies in plain arrays.

Reading looks for what is wrong, counts the rows of lists and fills the frame: all at once where the frame was made
large enough on a guess, else in two walks by the same code. It is written for messages as serializers write them,
fields in any order but each in one piece. A message that has a field twice, or a list in pieces, is IRREGULAR: its
meaning is a merge, which is left to Google's own library. Nothing is believed: no length before it was compared with
what is left, no number of elements that takes no bytes.

Writing goes from the last byte to the first, so that the length of a message is known when it is written.
"""

from typing import Final

import numpy as np

from lakestream.data.table.compiled import (
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

# Fields, one row each: those of a scope together, by number.
NUMBER, TYPE, NODE, LIST, SCOPE, PRESENCE, ONEOF, PACKED = range(8)
ENUM, BITS, MORE, FLAGS, DOMAIN, LIST_DOMAIN, OPENED, TAG = range(8, 16)
"""NODE: where its value goes, -1 - n: a register. LIST: the list or map that it is an element of, or -1. SCOPE: of a
message, else -1. ONEOF: a place in `seen`, or -1. ENUM: where its table begins. BITS, MORE: what it is if it is not
there. DOMAIN, LIST_DOMAIN: of NODE and LIST; OPENED: by LIST."""
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
"""Flags. LAX: text that is not UTF-8 is null, and the rest goes on. CLOSED: a number that has no name is no element."""

CUT_OFF, VARINT, TAG_WRONG, LENGTH, GROUP, NOT_TEXT, PACKED_WRONG, TOO_MANY, IRREGULAR = range(1, 10)
LOOK, FILL = 1, 2
"""Steps of reading."""
PROBLEM_BITS: Final = 8
"""Above them: 1 + the field."""

_GROUPS_MAX: Final = 100
_TAG_MAX: Final = 2**32 - 1
_HASH: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND, _MINUTE, _HOUR = 1_000_000, 60_000_000, 3_600_000_000
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999: what Protobuf says of Timestamp."""
_DAYS_MIN, _DAYS_MAX = -719_162, 2_932_896
_TENS: Final = np.array([(10**n & 2**64 - 1, 10**n >> 64) for n in range(39)], np.uint64)
"""Powers of ten, low and high half."""
_SHORT: Final = 16
"""Bytes that are copied sooner than somebody is called to do it."""
_SPARE: Final = 64
"""Bytes that any number with its tag fits in."""


# Reading. Places are addresses.


@inlined
def _varint(at: Long, end: Long) -> tuple[Long, Long]:
    """A number and where it ends; -CUT_OFF: it does not; -VARINT: it is longer than it may be."""
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
    """A tag or a length: of five bytes at most."""
    raw, after = _varint(at, end)
    return raw, np.int64(-VARINT) if after > at + 5 else after


@inlined
def _fixed(at: Long, end: Long, size: Long) -> Long:
    """Four or eight bytes."""
    if end - at >= 8:
        raw = word_at(at)
        return raw if size == 8 else raw & np.uint64(0xFFFFFFFF)
    raw = np.uint64(0)
    for place in range(size):
        raw |= np.uint64(byte_at(at + place)) << np.uint64(8 * place)
    return raw


@inlined
def _skipped(at: Long, end: Long, tag: Long, open_groups: Array) -> Long:
    """Behind a field that nobody knows; negative: what is wrong with it."""
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
    """The field of a tag, or -1: nobody knows the number, or it has another wire type than it should."""
    low, high, number = first, end, tag >> 3
    if guess > first and fields[guess - 1, NUMBER] == number:  # Lists mostly come in one piece.
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
    """Where the table of an enumeration has the name of a number; -1: nowhere."""
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
    """What the bits on the wire say, as a frame has it."""
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
    """Since 1970, in the Gregorian calendar; years begin in March: the day that comes and goes is their last."""
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
    """How many decimal digits a number of 128 bits, two's complement, has without its sign."""
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
    """The one value that a message is: whether it can be said, bits, more."""
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
    """The fields of a message that are not there: lists are empty, and what need not be written is zero."""
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
    """The rows of a value that turned out to be wrong."""
    for node in range(domains.size):
        domain = domains[node]
        if domain == 0:
            valid[base[node] + value] = 0
        else:
            for place in range(base[node] + before[domain], base[node] + used[domain]):
                valid[place] = 0


@kernel(
    "boolean(int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64, int64,"
    " int64, int64, int32[::1], int64[::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1])"
)
def read_messages(
    addresses: Array,
    sizes: Array,
    fields: Array,
    scopes: Array,
    enums: Array,
    domains: Array,
    widths: Array,
    depth_max: int,
    seen_size: int,
    slots_max: int,
    steps: int,
    problems: Array,
    used: Array,
    rows_max: Array,
    base: Array,
    valid: Array,
    bits: Array,
    more: Array,
) -> bool:
    """What is wrong with each value (LOOK), and the frame of those that nothing is wrong with (FILL): at once, or one
    after the other. In `used` the rows of each domain. False: these are more than the frame has room for, `rows_max`.

    `widths`: the nodes of each domain. `slots_max`: how many slots all lists together may have.
    """
    looking, filling = steps & LOOK != 0, steps & FILL != 0
    # Of the scopes around the one that is read: where each ends, which it is, its next field, its serial number.
    around = np.empty((depth_max + 1, 4), np.int64)
    # The serial number of the last message that had a field, or one of a oneof.
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
                    # A value that is not there is a message without fields.
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
            said = (field + 1) << PROBLEM_BITS
            size = np.int64(0)
            if wire == 2:
                raw, at = _short_varint(at, end)
                if at < 0:
                    problem = -at | said
                    break
                if raw > np.uint64(end - at):
                    problem = LENGTH | said
                    break
                size = np.int64(raw)
            width = 4 if FIXED32 <= kind < FIXED64 else 8
            if is_packed and kind >= FIXED32 and size % width:
                problem = PACKED_WRONG | said
                break

            if is_list and is_first and filling:
                slot = base[fields[field, LIST]] + row[fields[field, LIST_DOMAIN]]
                valid[slot], bits[slot], more[slot] = 1, used[fields[field, OPENED]], 0

            # Once, but for packed numbers.
            last = at + size
            while not is_packed or at < last:
                low, high, is_fine = np.int64(0), np.int64(0), True
                if kind < FIXED32:
                    raw, at = _varint(at, last if is_packed else end)
                    if at < 0:
                        problem = -at | said
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
                        problem = CUT_OFF | said
                        break
                    low = _number_of(kind, _fixed(at, end, width))
                    at += width
                elif kind < MESSAGE:
                    is_lax = fields[field, FLAGS] & LAX != 0
                    is_fine = kind == BYTES or (not looking and not is_lax) or is_utf8(at, last)
                    if not is_fine and not is_lax:
                        problem = NOT_TEXT | said
                        break
                    low, high, at = at, size, last

                node_row = row[fields[field, DOMAIN]]
                if is_list:
                    domain = fields[field, OPENED]
                    node_row = row[domain] = used[domain]
                    used[domain] += 1
                    slots += widths[domain]
                    if slots > slots_max:
                        problem = TOO_MANY | said
                        break
                    if filling:
                        if node_row == rows_max[domain]:
                            return False
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
        if problem != 0:
            problems[value] = problem
            slots = slots_before
            if filling:
                _forget(domains, base, valid, value, before, used)
            for domain in range(1, used.size):
                used[domain] = before[domain]
    return True


# Writing


@inlined
def _put_varint(at: Long, raw: Long) -> Long:
    """In front of what is there: where it begins."""
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
    """With their length in front."""
    at -= size
    if size < _SHORT:
        for place in range(size):
            put_byte(at + place, byte_at(address + place))
    else:
        copy(at, address, size)
    return _put_varint(at, np.uint64(size))


@inlined
def _enum_number(enums: Array, at: Long, address: Long, size: Long) -> Long:
    """Where the table of an enumeration has a name; -1: nowhere. Behind the numbers lie the names, in the same way."""
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
    """Columns may say more than the fields that they were made for."""
    if kind in (UINT64, FIXED64):
        return high == 0
    if kind in (UINT32, FIXED32):
        return 0 <= low <= 0xFFFFFFFF
    if kind in (INT32, SINT32, SFIXED32):
        return -0x80000000 <= low <= 0x7FFFFFFF
    return True


@inlined
def _unfold(kind: Long, scale: Long, precision: Long, low: Long, high: Long, registers: Array, room: Array) -> Long:
    """The fields of a message that is one value, into the registers. False: it is none that can be written so."""
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
    """The messages of all rows, from the end of the room. How much of it is left in front; -1: it was too small.

    Serializers write fields by their numbers, numbers in lists packed where the schema says so, both halves of every
    entry of a map, and what is zero only where it might as well be missing.
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
