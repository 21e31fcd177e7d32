# ruff: noqa: SIM102, SIM109, SIM110 - written as machine code is: comparisons, not tuples and generators
"""Kernel that decodes JSON text into column buffers, with the program that `program.py` makes.

Implements RFC 8259 in one pass over the bytes. Invalid JSON, invalid UTF-8, excessive nesting and duplicate keys are
problems of a value, and so is a type for which its place has no column. Keys that are not in the program are skipped
and flagged.

Rows of lists, unescaped strings and doubles for Python have limited space. If it is too small, the kernel stops and
returns the index of the value; `codec.py` calls it again with more space. It also stops at the value with which the
values have too many slots; a value that has too many by itself is a problem.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numba.extending
import numpy as np
from numba.cpython.unsafe import numbers

from lakestream.data.table.kernels.compile import (
    Array,
    Long,
    Longs,
    byte_at,
    high_product,
    inlined,
    kernel,
    put_byte,
    put_word,
    word_at,
)
from lakestream.data.typed.codec import TOO_MANY

# Columns of places: the node for each JSON type that is allowed there, -1: none.
INTEGER, NUMBER, STRING, BOOLEAN, OBJECT, ARRAY, RAW = range(7)
PLACE_WIDTH: Final = 8

# Columns of nodes.
READ, FIRST_KEY, TABLE, MASK, CHILD, DOMAIN, OPENED, _UNUSED = range(8)
NODE_WIDTH: Final = 8

# Columns of keys.
AT, SIZE, PLACE, _NO_COLUMN = range(4)
KEY_WIDTH: Final = 4

# What a node reads.
RECORD, NAMED, MANY = 0, 1, 2
READ_BOOLEAN, READ_INT, READ_LONG, READ_DAYS, READ_MILLIS_OF_DAY, READ_MILLIS, READ_DOUBLE = range(3, 10)
READ_STRING, READ_DATE, READ_TIME, READ_TIMESTAMP, READ_UUID, READ_RAW = range(10, 16)

# Problems.
FINE, INVALID_JSON, INVALID_UTF8, UNPAIRED_SURROGATE, TOO_DEEP, EXTRA_DATA, DUPLICATE_KEY = range(7)
WRONG_TYPE: Final = 16
"""Plus eight times the place, plus the type of the value."""

# Flags of a value: it has a key that is not in the program; a field is null because its column cannot hold it.
HAS_UNKNOWN, HAS_NULLED = 1, 2

# Why the kernel stopped, in state[STOPPED].
STOPPED, ARENA_USED, SLOW_USED = range(3)
NOT_STOPPED, NO_ROWS, NO_ARENA, NO_SLOW, NO_SLOTS = range(5)
STATE_WIDTH: Final = 3
UNLIMITED: Final = 2**62

DEPTH_MAX: Final = 512
_STACK_MAX: Final = 128
"""More than the depth of any shape."""
_SLACK: Final = 64
"""Space that short texts of fixed size use without a check."""

_QUOTE, _BACKSLASH, _COMMA, _COLON, _SLASH = 34, 92, 44, 58, 47
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = 123, 125, 91, 93
_ZERO, _NINE, _MINUS, _PLUS, _POINT = 48, 57, 45, 43, 46
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_FNV_START: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)
_DAY: Final = 86_400_000_000

POWER_MIN, POWER_MAX = -348, 347
_Function = TypeVar("_Function", bound=Callable[..., Any])
_types, _intrinsic = cast(Any, numba.types), cast(Any, numba.extending.intrinsic)
leading_zeros, trailing_zeros = cast(Any, numbers.leading_zeros), cast(Any, numbers.trailing_zeros)


def _always_inlined(function: _Function) -> _Function:
    """Forces inlining of a function called for many fields of every value, where the call costs as much as its work."""
    return cast(_Function, cast(Any, numba).njit(nogil=True, forceinline=True)(function))


def _powers() -> tuple[Array, Array]:
    """Returns the first 128 bits of every power of ten, rounded down, as upper and lower halves."""
    upper, lower = [], []
    for power in range(POWER_MIN, POWER_MAX + 1):
        if power >= 0:
            whole = 10**power
            bits = whole << 128 if whole.bit_length() < 128 else whole
            bits = bits >> (bits.bit_length() - 128)
        else:
            scale = 10**-power
            bits = (1 << (scale.bit_length() + 200)) // scale
            bits >>= bits.bit_length() - 128
        upper.append(bits >> 64)
        lower.append(bits & (2**64 - 1))
    return np.array(upper, np.uint64), np.array(lower, np.uint64)


_UPPER, _LOWER = _powers()
_EXACT: Final = 10.0 ** np.arange(23)
"""Powers of ten that a double represents exactly."""
_TENS: Final = 10 ** np.arange(9, dtype=np.uint64)


@inlined
def _after_space(at: Long, end: Long) -> Long:
    while at < end:
        char = byte_at(at)
        if char != 32 and char != 10 and char != 13 and char != 9:
            break
        at += 1
    return at


@inlined
def _is_digit(char: Long) -> bool:
    return bool(_ZERO <= char <= _NINE)


@inlined
def _hex(char: Long) -> Long:
    """Returns the value of a hexadecimal digit; -1: it is none."""
    if _ZERO <= char <= _NINE:
        return char - _ZERO
    char |= 32
    return char - 87 if 97 <= char <= 102 else np.int64(-1)


@inlined
def _four_hex(at: Long, end: Long) -> Long:
    if end - at < 4:
        return np.int64(-1)
    value = np.int64(0)
    for place in range(4):
        digit = _hex(byte_at(at + place))
        if digit < 0:
            return np.int64(-1)
        value = value << 4 | digit
    return value


@inlined
def _after_character(at: Long, end: Long) -> Long:
    """Returns the position after a UTF-8 character of more than one byte; -1: it is invalid."""
    first = byte_at(at)
    size = np.int64(2) if first < 0xE0 else np.int64(3) if first < 0xF0 else np.int64(4)
    if first < 0xC2 or first > 0xF4 or end - at < size:
        return np.int64(-1)
    second = byte_at(at + 1)
    low, high = np.int64(0x80), np.int64(0xBF)
    if first == 0xE0:
        low = np.int64(0xA0)
    elif first == 0xED:
        high = np.int64(0x9F)
    elif first == 0xF0:
        low = np.int64(0x90)
    elif first == 0xF4:
        high = np.int64(0x8F)
    if second < low or second > high:
        return np.int64(-1)
    for place in range(2, size):
        if byte_at(at + place) & 0xC0 != 0x80:
            return np.int64(-1)
    return at + size


@inlined
def _string_end(at: Long, end: Long) -> tuple[Long, Long]:
    """Returns the position of the closing quote (or minus a problem), and whether the string has escapes."""
    escaped = np.int64(0)
    while True:
        while end - at >= 8:
            word = word_at(at)
            quotes, slashes = word ^ (_ONES * np.uint64(_QUOTE)), word ^ (_ONES * np.uint64(_BACKSLASH))
            odd = ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes) | word
            odd = (odd | ((word - _ONES * np.uint64(32)) & ~word)) & _HIGHS
            if odd:
                at += np.int64(trailing_zeros(odd)) >> 3
                break
            at += 8
        if at >= end:
            return np.int64(-INVALID_JSON), escaped
        char = byte_at(at)
        if char == _QUOTE:
            return at, escaped
        if char == _BACKSLASH:
            escaped = np.int64(1)
            if end - at < 2:
                return np.int64(-INVALID_JSON), escaped
            char = byte_at(at + 1)
            if char == 117:  # u
                if _four_hex(at + 2, end) < 0:
                    return np.int64(-INVALID_JSON), escaped
                at += 6
            elif char == _QUOTE or char == _BACKSLASH or char == _SLASH or _unescaped(char) != 0:
                at += 2
            else:
                return np.int64(-INVALID_JSON), escaped
        elif char < 32:
            return np.int64(-INVALID_JSON), escaped
        elif char < 128:
            at += 1
        else:
            at = _after_character(at, end)
            if at < 0:
                return np.int64(-INVALID_UTF8), escaped


@inlined
def _unescaped(char: Long) -> Long:
    """Returns the character of \\b \\f \\n \\r \\t; 0: it is none of them."""
    if char == 110:
        return np.int64(10)
    if char == 116:
        return np.int64(9)
    if char == 114:
        return np.int64(13)
    if char == 98:
        return np.int64(8)
    if char == 102:
        return np.int64(12)
    return np.int64(0)


@inlined
def _put_character(target: Long, code: Long) -> Long:
    """Writes a character in UTF-8. Returns its end."""
    if code < 0x80:
        put_byte(target, code)
        return target + 1
    if code < 0x800:
        put_byte(target, 0xC0 | code >> 6)
        put_byte(target + 1, 0x80 | code & 0x3F)
        return target + 2
    if code < 0x10000:
        put_byte(target, 0xE0 | code >> 12)
        put_byte(target + 1, 0x80 | code >> 6 & 0x3F)
        put_byte(target + 2, 0x80 | code & 0x3F)
        return target + 3
    put_byte(target, 0xF0 | code >> 18)
    put_byte(target + 1, 0x80 | code >> 12 & 0x3F)
    put_byte(target + 2, 0x80 | code >> 6 & 0x3F)
    put_byte(target + 3, 0x80 | code & 0x3F)
    return target + 4


@inlined
def _unescape(at: Long, end: Long, target: Long) -> Long:
    """Unescapes a checked string; the result is never longer. Returns its end; -1: unpaired surrogate."""
    while at < end:
        char = byte_at(at)
        if char != _BACKSLASH:
            put_byte(target, char)
            at += 1
            target += 1
            continue
        char = byte_at(at + 1)
        at += 2
        if char != 117:
            plain = _unescaped(char)
            put_byte(target, plain if plain else char)
            target += 1
            continue
        code = _four_hex(at, end)
        at += 4
        if 0xDC00 <= code < 0xE000:
            return np.int64(-1)
        if 0xD800 <= code < 0xDC00:
            if end - at < 6 or byte_at(at) != _BACKSLASH or byte_at(at + 1) != 117:
                return np.int64(-1)
            second = _four_hex(at + 2, end)
            if second < 0xDC00 or second >= 0xE000:
                return np.int64(-1)
            at += 6
            code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)
        target = _put_character(target, code)
    return target


@inlined
def _leading_digits(word: Long) -> tuple[Long, Long, Long]:
    """Reads the leading digits of eight characters.

    Returns how many there are, their number, and the digits of that number without leading zeros.
    """
    word ^= _ONES * np.uint64(_ZERO)
    others = ((word + _ONES * np.uint64(0x76)) | word) & _HIGHS
    found = np.int64(trailing_zeros(others)) >> 3 if others else np.int64(8)
    if found == 0:
        return found, np.uint64(0), np.int64(0)
    word <<= np.uint64(8 * (8 - found))
    if word == 0:
        return found, np.uint64(0), np.int64(0)
    count = np.int64(8) - (np.int64(trailing_zeros(word)) >> 3)
    # Combines digits to pairs, pairs to groups of four, these to the number of eight digits.
    word = (word * np.uint64(10 << 8 | 1)) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100 << 16 | 1)) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    return found, (word * np.uint64(10_000 << 32 | 1)) >> np.uint64(32), count


@inlined
def _more_digits(at: Long, end: Long, digits: Long, count: Long) -> tuple[Long, Long, Long]:
    """Reads more digits, eight per step, while the number cannot overflow. Returns end, number and count of digits."""
    while end - at >= 8 and count <= 11:
        found, chunk, of_chunk = _leading_digits(word_at(at))
        digits = digits * _TENS[found] + chunk
        count = count + found if count else of_chunk
        at += found
        if found < 8:
            break
    return at, digits, count


@_always_inlined
def _number(at: Long, end: Long) -> tuple[Long, Long, Long, Long]:
    """Reads a number. Returns its end, its digits as one number, the power of ten to multiply these by, and flags.

    Flags: 1: not an integer; 2: the text has more digits than were read. End -1: it is not a number.
    """
    digits, power, count, kind = np.uint64(0), np.int64(0), np.int64(0), np.int64(0)
    bad = np.int64(-1), np.uint64(0), np.int64(0), np.int64(0)
    if at < end and byte_at(at) == _MINUS:
        at += 1
    if at >= end or not _is_digit(byte_at(at)):
        return bad
    if byte_at(at) == _ZERO and end - at > 1 and _is_digit(byte_at(at + 1)):
        return bad
    at, digits, count = _more_digits(at, end, digits, count)
    while at < end:
        char = byte_at(at)
        if not _is_digit(char):
            break
        if count < 19:
            digits = digits * np.uint64(10) + np.uint64(char - _ZERO)
            if digits:
                count += 1
        else:
            power += 1
            kind |= 2
        at += 1
    if at < end and byte_at(at) == _POINT:
        kind |= 1
        at += 1
        first = at
        at, digits, count = _more_digits(at, end, digits, count)
        power -= at - first
        while at < end:
            char = byte_at(at)
            if not _is_digit(char):
                break
            if count < 19:
                digits = digits * np.uint64(10) + np.uint64(char - _ZERO)
                if digits:
                    count += 1
                power -= 1
            else:
                kind |= 2
            at += 1
        if at == first:
            return bad
    if at < end and byte_at(at) | 32 == 101:  # e
        kind |= 1
        at += 1
        minus = at < end and byte_at(at) == _MINUS
        if at < end and (minus or byte_at(at) == _PLUS):
            at += 1
        first = at
        raised = np.int64(0)
        while at < end:
            char = byte_at(at)
            if not _is_digit(char):
                break
            if raised < 100_000:
                raised = raised * 10 + char - _ZERO
            at += 1
        if at == first:
            return bad
        power += -raised if minus else raised
    return at, digits, power, kind


@_intrinsic  # type: ignore[untyped-decorator]
def _bits_of(_typing: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return _types.uint64(_types.float64), generate


@inlined
def _as_integer(digits: Long, power: Long, kind: Long) -> tuple[Long, bool]:
    """Returns the integer that a number like 1.0 or 1e3 equals, and whether there is one."""
    if kind & 2:
        return digits, False
    while power < 0 and digits % np.uint64(10) == 0 and digits != 0:
        digits //= np.uint64(10)
        power += 1
    while power > 0 and digits < np.uint64(2**59):
        digits *= np.uint64(10)
        power -= 1
    return digits, bool(power == 0 or digits == 0)


@_always_inlined
def _double_bits(digits: Long, power: Long) -> tuple[Long, bool]:
    """Returns the bits of the nearest double without sign; False: Python has to parse it.

    One rounded operation on two exact doubles, or else the algorithm of Eisel and Lemire.
    """
    if digits == 0:
        return np.uint64(0), True
    if digits < np.uint64(2**53) and -22 <= power <= 22:
        exact = np.float64(digits) / _EXACT[-power] if power < 0 else np.float64(digits) * _EXACT[power]
        return _bits_of(exact), True
    if power < POWER_MIN or power > POWER_MAX:
        return np.uint64(0), False
    shift = np.uint64(leading_zeros(digits))
    digits <<= shift
    raised = ((217706 * power) >> 16) + 64 + 1023 - np.int64(shift)
    upper = high_product(digits, _UPPER[power - POWER_MIN])
    lower = digits * _UPPER[power - POWER_MIN]
    if upper & np.uint64(0x1FF) == np.uint64(0x1FF) and lower + digits < lower:
        more = high_product(digits, _LOWER[power - POWER_MIN])
        rest = digits * _LOWER[power - POWER_MIN]
        merged = lower + more
        if merged < lower:
            upper += np.uint64(1)
        if upper & np.uint64(0x1FF) == np.uint64(0x1FF) and merged + np.uint64(1) == 0 and rest + digits < rest:
            return np.uint64(0), False
        lower = merged
    top = upper >> np.uint64(63)
    mantissa = upper >> (top + np.uint64(9))
    raised -= np.int64(np.uint64(1) ^ top)
    if lower == 0 and upper & np.uint64(0x1FF) == 0 and mantissa & np.uint64(3) == np.uint64(1):
        return np.uint64(0), False
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    if mantissa >> np.uint64(53):
        mantissa >>= np.uint64(1)
        raised += 1
    if raised < 1 or raised >= 0x7FF:
        return np.uint64(0), False
    return np.uint64(raised) << np.uint64(52) | mantissa & np.uint64(0xFFFFFFFFFFFFF), True


@inlined
def _two(at: Long) -> Long:
    """Reads a number of two digits; -1000: they are not digits."""
    tens, ones = byte_at(at) - _ZERO, byte_at(at + 1) - _ZERO
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else np.int64(-1000)


@inlined
def _pairs(word: Long, form: Long, between: Long) -> tuple[Long, bool]:
    """Reads eight characters: digits where `form` has a zero, equal to `form` where `between` has bits.

    Each byte of the result is the number of the digit at that place and the next one.
    """
    word ^= form
    is_good = ((word + _ONES * np.uint64(0x76)) | word) & _HIGHS == 0 and word & between == 0
    return np.int64(word * np.uint64(10) + (word >> np.uint64(8))), bool(is_good)


@inlined
def _date(at: Long, size: Long) -> Long:
    """Returns the days since 1970 of YYYY-MM-DD; -2^62: it is not a date."""
    bad = np.int64(-(2**62))
    if size < 10:
        return bad
    pairs, is_good = _pairs(word_at(at), np.uint64(0x2D30302D30303030), np.uint64(0xFF0000FF00000000))
    if not is_good:
        return bad
    year, month, day = (pairs & 0xFF) * 100 + (pairs >> 16 & 0xFF), pairs >> 40 & 0xFF, _two(at + 8)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return bad
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = 30 + ((month + (month >> 3)) & 1)
    if month == 2:
        length = 29 if leap else 28
    if day > length:
        return bad
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@inlined
def _time(at: Long, end: Long) -> tuple[Long, Long]:
    """Returns the microseconds of HH:MM:SS or HH:MM:SS.f…, and its end; -1: it is not a time."""
    bad = np.int64(-1), np.int64(-1)
    if end - at < 8:
        return bad
    pairs, is_good = _pairs(word_at(at), np.uint64(0x30303A30303A3030), np.uint64(0x0000FF0000FF0000))
    hour, minute, second = pairs & 0xFF, pairs >> 24 & 0xFF, pairs >> 48 & 0xFF
    if not is_good or hour > 23 or minute > 59 or second > 59:
        return bad
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000
    at += 8
    if at < end and byte_at(at) == _POINT:
        at += 1
        rest = end - at
        # At least eight characters precede the point, so reading before `at` is safe.
        word = word_at(at) if rest >= 8 else word_at(end - 8) >> np.uint64(8 * (8 - rest)) if rest else np.uint64(0)
        found, fraction, _ = _leading_digits(word)
        if found == 0:
            return bad
        micros += np.int64(fraction * _TENS[6 - found] if found <= 6 else fraction // _TENS[found - 6])
        at += found
        while at < end and _is_digit(byte_at(at)):
            at += 1
    return micros, at


@inlined
def _zone(at: Long, end: Long) -> Long:
    """Returns the offset to UTC in minutes of Z or +HH:MM at the end; 10000: it is not a zone."""
    if end - at == 1 and byte_at(at) == 90:
        return np.int64(0)
    if end - at != 6 or byte_at(at + 3) != _COLON:
        return np.int64(10000)
    sign, hours, minutes = byte_at(at), _two(at + 1), _two(at + 4)
    if (sign != _PLUS and sign != _MINUS) or hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return np.int64(10000)
    return hours * 60 + minutes if sign == _PLUS else -(hours * 60 + minutes)


@inlined
def _timestamp(at: Long, size: Long) -> tuple[Long, bool]:
    """Returns the microseconds since 1970 of a timestamp."""
    end = at + size
    day = _date(at, size)
    if day == -(2**62) or size < 19 or (byte_at(at + 10) != 84 and byte_at(at + 10) != 32):
        return np.int64(0), False
    micros, at = _time(at + 11, end)
    zone = _zone(at, end) if at >= 0 else np.int64(10000)
    if zone == 10000:
        return np.int64(0), False
    return day * _DAY + micros - zone * 60_000_000, True


@inlined
def _eight_hex(word: Long) -> tuple[Long, bool]:
    """Returns the four bytes of eight hexadecimal digits, the first one lowest; False: they are not digits."""
    small = word | _ONES * np.uint64(32)
    digits = (word + _ONES * np.uint64(0x50)) & ~(word + _ONES * np.uint64(0x46))
    letters = (small + _ONES * np.uint64(0x1F)) & ~(small + _ONES * np.uint64(0x19)) & _HIGHS
    is_good = (digits | letters) & ~word & _HIGHS == _HIGHS
    nibbles = (word & _ONES * np.uint64(0x0F)) + (letters >> np.uint64(7)) * np.uint64(9)
    found = (nibbles << np.uint64(4) | nibbles >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    found = (found | found >> np.uint64(8)) & np.uint64(0x0000FFFF0000FFFF)
    return (found | found >> np.uint64(16)) & np.uint64(0xFFFFFFFF), bool(is_good)


@inlined
def _uuid(at: Long, size: Long, target: Long) -> bool:
    """Writes the sixteen bytes of a UUID (8-4-4-4-12 digits). Returns False if it is invalid."""
    if size != 36:
        return False
    dashes = (
        byte_at(at + 8) ^ _MINUS | byte_at(at + 13) ^ _MINUS | byte_at(at + 18) ^ _MINUS | byte_at(at + 23) ^ _MINUS
    )
    half, upper = np.uint64(0xFFFFFFFF), np.uint64(32)
    one, is_one = _eight_hex(word_at(at))
    two, is_two = _eight_hex(word_at(at + 9) & half | word_at(at + 14) << upper)
    three, is_three = _eight_hex(word_at(at + 19) & half | word_at(at + 24) << upper)
    four, is_four = _eight_hex(word_at(at + 28))
    put_word(target, one | two << upper)
    put_word(target + 8, three | four << upper)
    return bool(dashes == 0 and is_one and is_two and is_three and is_four)


@_always_inlined
def _scalar_text(read: Long, at: Long, size: Long, target: Long) -> tuple[Long, bool]:
    """Parses a date, time or timestamp, or a UUID, whose bytes are written to `target`."""
    if read == READ_DATE:
        days = _date(at, size)
        return days, days != -(2**62) and size == 10
    if read == READ_TIMESTAMP:
        return _timestamp(at, size)
    if read == READ_TIME:
        micros, after = _time(at, at + size)
        is_whole = after == at + size or (after == at + size - 1 and byte_at(after) == 90)
        return micros, micros >= 0 and is_whole
    return target, _uuid(at, size, target)


@_always_inlined
def _literal_end(at: Long, end: Long) -> Long:
    """Returns the end of true, false or null; -1: it is none of them."""
    if end - at >= 4:
        first, second, third, fourth = byte_at(at), byte_at(at + 1), byte_at(at + 2), byte_at(at + 3)
        if first == 116 and second == 114 and third == 117 and fourth == 101:
            return at + 4
        if first == 110 and second == 117 and third == 108 and fourth == 108:
            return at + 4
        if (
            first == 102
            and second == 97
            and third == 108
            and fourth == 115
            and end - at >= 5
            and byte_at(at + 4) == 101
        ):
            return at + 5
    return np.int64(-1)


@inlined
def _scalar_end(at: Long, end: Long) -> Long:
    """Returns the end of a string, number or literal; or minus a problem."""
    char = byte_at(at)
    if char == _QUOTE:
        after, _ = _string_end(at + 1, end)
        return after + 1 if after >= 0 else after
    if char == _MINUS or _is_digit(char):
        after, _, _, _ = _number(at, end)
    else:
        after = _literal_end(at, end)
    return after if after >= 0 else np.int64(-INVALID_JSON)


@inlined
def _value_end(at: Long, end: Long, opened: Array) -> Long:
    """Returns the end of any value; or minus a problem."""
    depth = np.int64(0)
    while True:
        at = _after_space(at, end)
        if at >= end:
            return np.int64(-INVALID_JSON)
        char = byte_at(at)
        if char == _OPEN_OBJECT or char == _OPEN_ARRAY:
            if depth == DEPTH_MAX:
                return np.int64(-TOO_DEEP)
            opened[depth] = char
            at = _after_space(at + 1, end)
            if at >= end:
                return np.int64(-INVALID_JSON)
            if byte_at(at) != char + 2:
                depth += 1
                if char == _OPEN_OBJECT:
                    at = _after_key(at, end)
                    if at < 0:
                        return at
                continue
            at += 1
        else:
            at = _scalar_end(at, end)
            if at < 0:
                return at
        while True:
            if depth == 0:
                return at
            at = _after_space(at, end)
            if at >= end:
                return np.int64(-INVALID_JSON)
            char = byte_at(at)
            at += 1
            if char == np.int64(opened[depth - 1]) + 2:
                depth -= 1
                continue
            if char != _COMMA:
                return np.int64(-INVALID_JSON)
            if opened[depth - 1] == _OPEN_OBJECT:
                at = _after_key(_after_space(at, end), end)
                if at < 0:
                    return at
            break


@inlined
def _after_key(at: Long, end: Long) -> Long:
    """Returns the position after a key and its colon; or minus a problem."""
    if at >= end or byte_at(at) != _QUOTE:
        return np.int64(-INVALID_JSON)
    at, _ = _string_end(at + 1, end)
    return _after_colon(at + 1, end) if at >= 0 else at


@inlined
def _after_colon(at: Long, end: Long) -> Long:
    at = _after_space(at, end)
    return at + 1 if at < end and byte_at(at) == _COLON else np.int64(-INVALID_JSON)


@inlined
def _equal(one: Long, other: Long, size: Long) -> bool:
    if size < 8:
        for place in range(size):
            if byte_at(one + place) != byte_at(other + place):
                return False
        return True
    done = np.int64(0)
    while done + 8 <= size:
        if word_at(one + done) != word_at(other + done):
            return False
        done += 8
    return bool(word_at(one + size - 8) == word_at(other + size - 8))


@inlined
def _is_key(at: Long, end: Long, key: Long, size: Long) -> bool:
    """Compares a key with one of the program; the program's keys have padding, so reading eight bytes is safe."""
    if 0 < size < 8 <= end - at:
        return bool((word_at(at) ^ word_at(key)) << np.uint64(64 - 8 * size) == 0)
    return _equal(at, key, size)


@inlined
def _key_of(at: Long, size: Long, node: Long, nodes: Longs, keys: Longs, table: Longs, blob: Long) -> Long:
    """Returns the key of a record with this text; -1: it has none."""
    value = _FNV_START
    for place in range(size):
        value = (value ^ np.uint64(byte_at(at + place))) * _FNV_PRIME
    mask = nodes[node, MASK]
    slot = np.int64(value & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask
    while True:
        key = table[nodes[node, TABLE] + slot]
        if key < 0 or (keys[key, SIZE] == size and _equal(at, blob + keys[key, AT], size)):
            return key
        slot = (slot + 1) & mask


@inlined
def _clear(row: Long, nodes: Longs, base: Longs, counts: Longs, before: Longs, valid: Array) -> None:
    """Removes the rows of a value that has a problem."""
    for node in range(nodes.shape[0]):
        domain = nodes[node, DOMAIN]
        if domain == 0:
            valid[base[node] + row] = 0
        else:
            for place in range(before[domain], counts[domain]):
                valid[base[node] + place] = 0
    for domain in range(1, counts.size):
        counts[domain] = before[domain]


@kernel(
    "int64(int64[::1], int64[::1], boolean, int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1], int64, "
    "int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, uint8[::1], int64[::1], int64[::1], "
    "int64, int64, int64[:, ::1], int64[::1], int32[::1], uint8[::1])"
)
def read_values(
    addresses: Longs,
    sizes: Longs,
    is_wrapped: bool,
    places: Longs,
    nodes: Longs,
    keys: Longs,
    table: Longs,
    blob: Long,
    hints: Longs,
    base: Longs,
    rooms: Longs,
    counts: Longs,
    weights: Longs,
    value_slots_max: Long,
    slots_max: Long,
    valid: Array,
    bits: Longs,
    more: Longs,
    arena: Long,
    arena_size: Long,
    slow: Longs,
    state: Longs,
    problems: Array,
    flags: Array,
) -> Long:
    """Decodes values that have no problem yet.

    Returns the number of values, or the index of the first one for which the space was too small.

    `is_wrapped`: the value is not a record: it becomes the only column of one. `hints`: for each key, and for the start
    of each record, the key that followed the last time. `slow`: slot, address and size of doubles that Python has to
    parse. `flags`: of each value, HAS_UNKNOWN and HAS_NULLED. `weights`: the slots of a row of each domain.
    """
    inside, rows, starts = (
        np.empty(_STACK_MAX, np.int64),
        np.empty(_STACK_MAX, np.int64),
        np.empty(_STACK_MAX, np.int64),
    )
    previous, serials = np.empty(_STACK_MAX, np.int64), np.empty(_STACK_MAX, np.int64)
    opened, before = np.empty(DEPTH_MAX, np.uint8), np.zeros(counts.size, np.int64)
    seen = np.zeros(keys.shape[0] + 1, np.int64)
    serial, used, waiting, slots = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    key_count = keys.shape[0]
    state[STOPPED] = NOT_STOPPED
    for value in range(addresses.size):
        size = sizes[value]
        if size < 0 or problems[value]:
            continue
        at, end = addresses[value], addresses[value] + size
        for domain in range(1, counts.size):
            before[domain] = counts[domain]
        waited, slots_before = waiting, slots
        slots += weights[0]
        depth, place, row, problem, stopped = np.int64(0), np.int64(0), np.int64(value), np.int64(FINE), np.int64(0)
        if is_wrapped:
            valid[base[0] + row] = 1
        while True:  # one JSON value per iteration
            at = _after_space(at, end)
            if at >= end:
                problem = np.int64(INVALID_JSON)
                break
            char = byte_at(at)
            is_first = False
            node = np.int64(-1)
            if char == 110:  # null
                at = _literal_end(at, end)
                if at < 0:
                    problem = np.int64(INVALID_JSON)
                    break
            elif places[place, RAW] >= 0:
                after = _value_end(at, end, opened)
                if after < 0:
                    problem = -after
                    break
                slot = base[places[place, RAW]] + row
                valid[slot], bits[slot], more[slot] = 1, at, after - at
                at = after
            elif char == _QUOTE:
                after, escaped = _string_end(at + 1, end)
                if after < 0:
                    problem = -after
                    break
                node = places[place, STRING]
                if node < 0:
                    problem = np.int64(WRONG_TYPE + 8 * place + STRING)
                    break
                text, length = at + 1, after - at - 1
                at = after + 1
                read = nodes[node, READ]
                if escaped or read == READ_UUID:
                    if arena_size - used < length + _SLACK:
                        state[STOPPED], stopped = NO_ARENA, np.int64(1)
                        break
                if escaped:
                    after = _unescape(text, text + length, arena + used)
                    if after < 0:
                        problem = np.int64(UNPAIRED_SURROGATE)
                        break
                    text, length = arena + used, after - arena - used
                slot = base[node] + row
                if read == READ_STRING:
                    valid[slot], bits[slot], more[slot] = 1, text, length
                    if escaped:
                        used += length
                else:
                    meant, is_good = _scalar_text(read, text, length, arena + used + 36)
                    if is_good:
                        valid[slot], bits[slot], more[slot] = 1, meant, 16
                        if read == READ_UUID:
                            used += 52
                    else:
                        flags[value] |= HAS_NULLED
            elif char == _OPEN_OBJECT or char == _OPEN_ARRAY:
                is_object = char == _OPEN_OBJECT
                node = places[place, OBJECT if is_object else ARRAY]
                after = _after_space(at + 1, end)
                if after >= end:
                    problem = np.int64(INVALID_JSON)
                    break
                is_empty = byte_at(after) == char + 2
                if node < 0 and not is_empty:
                    problem = np.int64(WRONG_TYPE + 8 * place + (OBJECT if is_object else ARRAY))
                    break
                at = after + 1 if is_empty else after
                if node >= 0:
                    slot = base[node] + row
                    valid[slot] = 1
                    domain = nodes[node, OPENED]
                    if domain >= 0:
                        bits[slot], more[slot] = counts[domain], 0
                    if not is_empty:
                        is_first = True
                        serial += 1
                        inside[depth], rows[depth], serials[depth] = node, row, serial
                        previous[depth] = key_count + node
                        starts[depth] = counts[domain] if domain >= 0 else 0
                        depth += 1
            elif char == _MINUS or _is_digit(char):
                after, digits, power, kind = _number(at, end)
                if after < 0:
                    problem = np.int64(INVALID_JSON)
                    break
                minus = char == _MINUS
                whole, is_whole = digits, kind == 0
                if kind != 0 and places[place, NUMBER] < 0:
                    whole, is_whole = _as_integer(digits, power, kind)
                if is_whole and whole <= np.uint64(0x7FFFFFFFFFFFFFFF) + np.uint64(minus):
                    node = places[place, INTEGER]
                if node >= 0:
                    number = -np.int64(whole) if minus else np.int64(whole)
                    read = nodes[node, READ]
                    if read != READ_LONG:
                        limit = np.int64(2**31) if read <= READ_DAYS else np.int64(9 * 10**15)
                        if number >= limit or number < -limit:
                            problem = np.int64(WRONG_TYPE + 8 * place + INTEGER)
                            break
                        if read >= READ_MILLIS_OF_DAY:
                            number *= 1000
                        if read == READ_MILLIS_OF_DAY and (number < 0 or number >= _DAY):
                            problem = np.int64(WRONG_TYPE + 8 * place + INTEGER)
                            break
                    slot = base[node] + row
                    valid[slot], bits[slot] = 1, number
                else:
                    node = places[place, NUMBER]
                    if node < 0:
                        problem = np.int64(WRONG_TYPE + 8 * place + (NUMBER if kind & 1 else INTEGER))
                        break
                    slot = base[node] + row
                    if nodes[node, READ] == READ_RAW:  # a decimal: its text has all digits
                        valid[slot], bits[slot], more[slot] = 1, at, after - at
                    else:
                        found, is_exact = np.uint64(0), False
                        if kind < 2:
                            found, is_exact = _double_bits(digits, power)
                        if not is_exact:
                            if waiting == slow.shape[0]:
                                state[STOPPED], stopped = NO_SLOW, np.int64(1)
                                break
                            slow[waiting, 0], slow[waiting, 1], slow[waiting, 2] = slot, at, after - at
                            waiting += 1
                        valid[slot] = 1
                        bits[slot] = np.int64(found | np.uint64(minus) << np.uint64(63))
                at = after
            else:
                after = _literal_end(at, end)
                if after < 0:
                    problem = np.int64(INVALID_JSON)
                    break
                node = places[place, BOOLEAN]
                if node < 0:
                    problem = np.int64(WRONG_TYPE + 8 * place + BOOLEAN)
                    break
                slot = base[node] + row
                valid[slot], bits[slot] = 1, np.int64(char == 116)
                at = after
            has_next = False
            while depth > 0:  # what follows the JSON value
                node = inside[depth - 1]
                read = nodes[node, READ]
                at = _after_space(at, end)
                if at >= end:
                    problem = np.int64(INVALID_JSON)
                    break
                char = byte_at(at)
                if is_first:
                    is_first = False
                elif char == _COMMA:
                    at = _after_space(at + 1, end)
                    if at >= end:
                        problem = np.int64(INVALID_JSON)
                        break
                    char = byte_at(at)
                elif char == (_CLOSE_ARRAY if read == MANY else _CLOSE_OBJECT):
                    at += 1
                    depth -= 1
                    if read != RECORD:
                        more[base[node] + rows[depth]] = counts[nodes[node, OPENED]] - starts[depth]
                    continue
                else:
                    problem = np.int64(INVALID_JSON)
                    break
                if read != RECORD:
                    domain = nodes[node, OPENED]
                    row = counts[domain]
                    slots += weights[domain]
                    if slots - slots_before > value_slots_max:
                        break
                    if row >= rooms[domain]:
                        state[STOPPED], stopped = NO_ROWS, np.int64(1)
                        break
                    counts[domain] = row + 1
                    place = nodes[node, CHILD]
                    if read == MANY:
                        has_next = True
                        break
                if char != _QUOTE:
                    problem = np.int64(INVALID_JSON)
                    break
                at += 1
                key = np.int64(-1)
                if read == RECORD:
                    key = hints[previous[depth - 1]]
                    if key >= 0:
                        length = keys[key, SIZE]
                        if (
                            end - at > length
                            and byte_at(at + length) == _QUOTE
                            and _is_key(at, end, blob + keys[key, AT], length)
                        ):
                            at += length + 1
                        else:
                            key = np.int64(-1)
                if key < 0:
                    after, escaped = _string_end(at, end)
                    if after < 0:
                        problem = -after
                        break
                    text, length = at, after - at
                    at = after + 1
                    if escaped:
                        if arena_size - used < length + _SLACK:
                            state[STOPPED], stopped = NO_ARENA, np.int64(1)
                            break
                        after = _unescape(text, text + length, arena + used)
                        if after < 0:
                            problem = np.int64(UNPAIRED_SURROGATE)
                            break
                        text, length = arena + used, after - arena - used
                    if read == RECORD:
                        key = _key_of(text, length, node, nodes, keys, table, blob)
                        if key >= 0:
                            hints[previous[depth - 1]] = key
                    else:
                        slot = base[node + 1] + row
                        valid[slot], bits[slot], more[slot] = 1, text, length
                        if escaped:
                            used += length
                at = _after_colon(at, end)
                if at < 0:
                    problem = -at
                    break
                if read != RECORD:
                    has_next = True
                    break
                if key < 0:
                    flags[value] |= HAS_UNKNOWN
                    at = _value_end(at, end, opened)
                    if at < 0:
                        problem = -at
                        break
                    continue
                if seen[key] == serials[depth - 1]:
                    problem = np.int64(DUPLICATE_KEY)
                    break
                seen[key] = serials[depth - 1]
                previous[depth - 1] = key
                place, row = keys[key, PLACE], rows[depth - 1]
                has_next = True
                break
            if problem or stopped or not has_next:
                break
        if stopped:
            return np.int64(value)
        if slots - slots_before > value_slots_max:
            problem = np.int64(TOO_MANY)
        elif slots > slots_max:
            state[STOPPED], waiting = NO_SLOTS, waited
            state[ARENA_USED], state[SLOW_USED] = used, waiting
            _clear(np.int64(value), nodes, base, counts, before, valid)
            return np.int64(value)
        if not problem and _after_space(at, end) != end:
            problem = np.int64(EXTRA_DATA)
        if problem:
            waiting, slots = waited, slots_before
            problems[value] = problem
            _clear(np.int64(value), nodes, base, counts, before, valid)
    state[ARENA_USED], state[SLOW_USED] = used, waiting
    return np.int64(addresses.size)
