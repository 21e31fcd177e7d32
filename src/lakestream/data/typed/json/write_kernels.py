# ruff: noqa: SIM109 - written as machine code is: comparisons, not tuples
"""Kernel that encodes column buffers as JSON text in the style of the produced values (`text_style.py`)."""

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
    copy,
    high_product,
    inlined,
    kernel,
    put_byte,
    put_word,
    word_at,
)

# Columns of places: the node for each JSON type, as in read_kernels.py; then the node if there is only one, or -1.
TYPES: Final = 7
ONLY: Final = 7

# Columns of nodes.
READ, FIRST_KEY, KEY_COUNT, CHILD, FORM, _ONE, _TWO, _THREE = range(8)

# Columns of keys, in the order in which they are written.
AT, SIZE, LEAD, PLACE = range(4)
"""AT, SIZE: of separator, key and colon together. LEAD: bytes of the separator, which the first key omits."""

# How a null is written, for each place.
OMITTED, AS_NULL, AS_ARRAY, AS_OBJECT = range(4)

# Formats of doubles: whether whole numbers end in .0; range of exponents that are not written; form of other exponents.
POINT_ZERO, LOW, HIGH, HAS_PLUS, IS_PADDED, IS_JAVA = range(6)
# Formats of times.
DIGITS, ZONE_MINUTES, ZONE, GAP = range(4)
FORM_WIDTH: Final = 6
NO_ZONE, AS_Z, AS_OFFSET = range(3)
DIGITS_IF_ANY, DIGITS_IN_GROUPS = -1, -2

# Bits of the escapes of strings.
ASCII, UPPER_HEX, SLASHES, HTML, LONG_CONTROLS = 1, 2, 4, 8, 16

RECORD, NAMED, MANY = 0, 1, 2
READ_BOOLEAN, READ_INT, READ_LONG, READ_DAYS, READ_MILLIS_OF_DAY, READ_MILLIS, READ_DOUBLE = range(3, 10)
READ_STRING, READ_DATE, READ_TIME, READ_TIMESTAMP, READ_UUID, READ_RAW = range(10, 16)

_STACK_MAX: Final = 128
_SLACK: Final = 64
"""Space that is written without a check: numbers, times, literals, and words of eight bytes at the end of a string."""
_QUOTE, _BACKSLASH = 34, 92
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_DAY: Final = 86_400_000_000
_DAYS_MIN, _DAYS_MAX = -719_162, 2_932_896
"""From the year 1 to the year 9999."""
_NULL: Final = -1
_PAGE: Final = 0xFFF
_HEX: Final = np.frombuffer(b"0123456789abcdef0123456789ABCDEF", np.uint8)

_POWER_MIN, _POWER_MAX = -293, 326
_TENS: Final = np.array([10**power for power in range(20)], np.uint64)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_types, _intrinsic = cast(Any, numba.types), cast(Any, numba.extending.intrinsic)
leading_zeros, trailing_zeros = cast(Any, numbers.leading_zeros), cast(Any, numbers.trailing_zeros)


def _always_inlined(function: _Function) -> _Function:
    """Forces inlining of a function called for each field: an array is a dozen arguments, a cost that LLVM ignores."""
    return cast(_Function, cast(Any, numba).njit(nogil=True, forceinline=True)(function))


def _powers() -> tuple[Array, Array]:
    """Returns the first 128 bits of every power of ten, rounded up, as upper and lower halves."""
    upper, lower = [], []
    for power in range(_POWER_MIN, _POWER_MAX + 1):
        exponent = (power * 1741647 >> 19) - 127
        if power >= 0:
            over, under = 10**power, 1
        else:
            over, under = 1, 10**-power
        over, under = (over, under << exponent) if exponent >= 0 else (over << -exponent, under)
        bits = -(-over // under)
        upper.append(bits >> 64)
        lower.append(bits & (2**64 - 1))
    return np.array(upper, np.uint64), np.array(lower, np.uint64)


_UPPER, _LOWER = _powers()


@_intrinsic  # type: ignore[untyped-decorator]
def _double_of(_typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return _types.float64(_types.uint64), generate


@inlined
def _rounded_to_odd(power: Long, factor: Long) -> Long:
    upper = _UPPER[power - _POWER_MIN]
    carried = high_product(_LOWER[power - _POWER_MIN], factor)
    lower = upper * factor
    result = high_product(upper, factor)
    total = lower + carried
    if total < lower:
        result += np.uint64(1)
    return result | np.uint64(total > np.uint64(1))


@inlined
def _shortest(bits: Long) -> tuple[Long, Long]:
    """Returns the shortest digits that identify a positive finite double, and the power of ten they are multiplied by.

    The algorithm is Schubfach by R. Giulietti.
    """
    mantissa, biased = bits & np.uint64(0xFFFFFFFFFFFFF), np.int64(bits >> np.uint64(52))
    if biased != 0:
        mantissa_whole = mantissa | np.uint64(1) << np.uint64(52)
        q = biased - 1075
        if -53 < q <= 0:
            shift = np.uint64(-q)
            if mantissa_whole & ((np.uint64(1) << shift) - np.uint64(1)) == 0:
                return mantissa_whole >> shift, np.int64(0)
    else:
        mantissa_whole = mantissa
        q = np.int64(-1074)
    is_odd = mantissa_whole & np.uint64(1)
    is_closer = mantissa == 0 and biased > 1
    k = (q * 1262611 - (524031 if is_closer else 0)) >> 22
    h = np.uint64(q + ((-k * 1741647) >> 19) + 1)
    middle = mantissa_whole << np.uint64(2)
    below = _rounded_to_odd(-k, (middle - np.uint64(2) + np.uint64(is_closer)) << h)
    center = _rounded_to_odd(-k, middle << h)
    above = _rounded_to_odd(-k, (middle + np.uint64(2)) << h)
    lower, upper = below + is_odd, above - is_odd
    digits = center >> np.uint64(2)
    if digits >= np.uint64(10):
        tens = digits // np.uint64(10)
        fits_down = lower <= np.uint64(40) * tens
        fits_up = np.uint64(40) * tens + np.uint64(40) <= upper
        if fits_down != fits_up:
            return tens + np.uint64(fits_up), k + 1
    fits_down = lower <= np.uint64(4) * digits
    fits_up = np.uint64(4) * digits + np.uint64(4) <= upper
    if fits_down != fits_up:
        return digits + np.uint64(fits_up), k
    half = np.uint64(4) * digits + np.uint64(2)
    goes_up = center > half or (center == half and digits & np.uint64(1) != 0)
    return digits + np.uint64(goes_up), k


@inlined
def _with_six_places(bits: Long) -> tuple[Long, Long]:
    """Returns the same as `_shortest` for numbers with up to six decimals, in a third of the time; 0: another number.

    No two numbers of up to 15 digits are the same double, so a number with these digits is the shortest one.
    """
    number = _double_of(bits)
    if not 1e-6 < number < 1e9:
        return np.uint64(0), np.int64(0)
    millionths = np.uint64(number * 1e6 + 0.5)
    if np.float64(millionths) / 1e6 != number:
        return np.uint64(0), np.int64(0)
    return millionths, np.int64(-6)


@inlined
def _digit_count(number: Long) -> Long:
    guess = ((np.int64(64) - np.int64(leading_zeros(number | np.uint64(1)))) * 1233) >> 12
    return guess + np.int64(number | np.uint64(1) >= _TENS[guess])


@inlined
def _eight_digits(number: Long) -> Long:
    """Returns the digits of a number below 10^8, the first one lowest, by splitting all groups in parallel."""
    upper = number // np.uint64(10_000)
    fours = upper | (number - upper * np.uint64(10_000)) << np.uint64(32)
    upper = fours * np.uint64(10_486) >> np.uint64(20) & np.uint64(0x0000007F0000007F)
    pairs = upper | (fours - upper * np.uint64(100)) << np.uint64(16)
    upper = pairs * np.uint64(103) >> np.uint64(10) & np.uint64(0x000F000F000F000F)
    return (upper | (pairs - upper * np.uint64(10)) << np.uint64(8)) + _ONES * np.uint64(48)


@inlined
def _put_digits(out: Long, number: Long, count: Long) -> Long:
    """Writes so many digits, up to 20, and maybe garbage after them. Returns the end of the digits."""
    if count > 8:
        upper = number // np.uint64(100_000_000)
        last, number = number - upper * np.uint64(100_000_000), upper
        if count > 16:
            upper = number // np.uint64(100_000_000)
            put_word(out, _eight_digits(upper) >> np.uint64(8 * (24 - count)))
            put_word(out + count - 16, _eight_digits(number - upper * np.uint64(100_000_000)))
        else:
            put_word(out, _eight_digits(number) >> np.uint64(8 * (16 - count)))
        put_word(out + count - 8, _eight_digits(last))
    elif count > 0:
        put_word(out, _eight_digits(number) >> np.uint64(8 * (8 - count)))
    return out + count


@inlined
def _put_long(out: Long, number: Long) -> Long:
    size = np.uint64(number)
    if number < 0:
        put_byte(out, 45)
        out += 1
        size = np.uint64(0) - size
    return _put_digits(out, size, _digit_count(size))


@inlined
def _put_zeros(out: Long, count: Long) -> Long:
    for _ in range(count):
        put_byte(out, 48)
        out += 1
    return out


@inlined
def _put_double(out: Long, bits: Long, forms: Longs, form: Long) -> Long:
    """Writes a double. Returns the end; -1: NaN or infinite, which JSON does not have."""
    raw = np.uint64(bits)
    if raw >> np.uint64(52) & np.uint64(0x7FF) == np.uint64(0x7FF):
        return np.int64(-1)
    if raw >> np.uint64(63):
        put_byte(out, 45)
        out += 1
        raw &= np.uint64(0x7FFFFFFFFFFFFFFF)
    digits, power = np.uint64(0), np.int64(0)
    if raw:
        digits, power = _with_six_places(raw)
        if digits == 0:
            digits, power = _shortest(raw)
        # Separate constants, because the compiler replaces division by a constant with a multiplication.
        while digits % np.uint64(100_000_000) == 0:
            digits //= np.uint64(100_000_000)
            power += 8
        if digits % np.uint64(10_000) == 0:
            digits //= np.uint64(10_000)
            power += 4
        if digits % np.uint64(100) == 0:
            digits //= np.uint64(100)
            power += 2
        if digits % np.uint64(10) == 0:
            digits //= np.uint64(10)
            power += 1
    count = _digit_count(digits)
    exponent = count - 1 + power
    if forms[form, LOW] <= exponent < forms[form, HIGH]:
        return _put_plain(out, digits, count, power, forms[form, POINT_ZERO] != 0)
    rest = digits // _TENS[count - 1]
    put_byte(out, 48 + np.int64(rest))
    out += 1
    if count > 1:
        put_byte(out, 46)
        out = _put_digits(out + 1, digits - rest * _TENS[count - 1], count - 1)
    elif forms[form, IS_JAVA]:
        put_byte(out, 46)
        put_byte(out + 1, 48)
        out += 2
    put_byte(out, 69 if forms[form, IS_JAVA] else 101)
    out += 1
    if exponent < 0:
        put_byte(out, 45)
        out += 1
        exponent = -exponent
    elif forms[form, HAS_PLUS]:
        put_byte(out, 43)
        out += 1
    if exponent < 10 and forms[form, IS_PADDED]:
        put_byte(out, 48)
        out += 1
    return _put_digits(out, np.uint64(exponent), _digit_count(np.uint64(exponent)))


@inlined
def _put_plain(out: Long, digits: Long, count: Long, power: Long, has_point: bool) -> Long:
    """Writes a double without an exponent."""
    if power >= 0:
        out = _put_zeros(_put_digits(out, digits, count), power)
        if has_point:
            put_byte(out, 46)
            put_byte(out + 1, 48)
            out += 2
        return out
    if count + power > 0:
        divisor = _TENS[-power]
        whole = digits // divisor
        out = _put_digits(out, whole, count + power)
        put_byte(out, 46)
        return _put_digits(out + 1, digits - whole * divisor, -power)
    put_byte(out, 48)
    put_byte(out + 1, 46)
    out = _put_zeros(out + 2, -power - count)
    return _put_digits(out, digits, count)


@inlined
def _put_date(out: Long, days: Long) -> Long:
    """Writes a date. Returns the end; -1: its year does not have four digits."""
    if days < _DAYS_MIN or days > _DAYS_MAX:
        return np.int64(-1)
    shifted = np.uint64(days + 719468)
    era = shifted // np.uint64(146097)
    of_era = shifted - era * np.uint64(146097)
    leaps = of_era // np.uint64(1460) + of_era // np.uint64(146096)
    year_of_era = (of_era - leaps + of_era // np.uint64(36524)) // np.uint64(365)
    before = year_of_era * np.uint64(365) + year_of_era // np.uint64(4) - year_of_era // np.uint64(100)
    of_year = of_era - before
    month = (of_year * np.uint64(5) + np.uint64(2)) // np.uint64(153)
    day = of_year - (month * np.uint64(153) + np.uint64(2)) // np.uint64(5) + np.uint64(1)
    is_next = month >= np.uint64(10)  # the years of this calculation begin in March
    year = year_of_era + era * np.uint64(400) + np.uint64(is_next)
    month = month - np.uint64(9) if is_next else month + np.uint64(3)
    digits = _eight_digits((year * np.uint64(100) + month) * np.uint64(100) + day)
    months = (digits & np.uint64(0x0000FFFF00000000)) << np.uint64(8)
    put_word(out, digits & np.uint64(0xFFFFFFFF) | months | np.uint64(0x2D00002D00000000))
    put_word(out + 8, digits >> np.uint64(48))
    return out + 10


@inlined
def _put_time(out: Long, micros: Long, digits: Long) -> Long:
    seconds = np.uint64(micros) // np.uint64(1_000_000)
    fraction = np.uint64(micros) - seconds * np.uint64(1_000_000)
    minutes = seconds // np.uint64(60)
    hours = minutes // np.uint64(60)
    text = _eight_digits(hours * np.uint64(4_000) + minutes * np.uint64(40) + seconds)  # 00HHMMSS
    text = (
        text >> np.uint64(16) & np.uint64(0xFFFF)
        | text >> np.uint64(8) & np.uint64(0xFFFF000000)
        | (text & np.uint64(0xFFFF000000000000))
    )
    put_word(out, text | np.uint64(0x00003A00003A0000))
    out += 8
    if digits == DIGITS_IF_ANY:
        digits = np.int64(6) if fraction else np.int64(0)
    elif digits == DIGITS_IN_GROUPS:
        digits = np.int64(0) if fraction == 0 else np.int64(3) if fraction % np.uint64(1000) == 0 else np.int64(6)
    if digits:
        put_byte(out, 46)
        put_word(out + 1, _eight_digits(fraction * np.uint64(100)))
        out += 1 + digits
    return out


@inlined
def _put_zone(out: Long, kind: Long, minutes: Long) -> Long:
    if kind == AS_Z:
        put_byte(out, 90)
        return out + 1
    if kind == AS_OFFSET:
        put_byte(out, 45 if minutes < 0 else 43)
        out = _put_digits(out + 1, np.uint64(abs(minutes) // 60), np.int64(2))
        put_byte(out, 58)
        return _put_digits(out + 1, np.uint64(abs(minutes) % 60), np.int64(2))
    return out


@inlined
def _put_moment(out: Long, read: Long, bits: Long, forms: Longs, form: Long) -> Long:
    """Writes a date, a time or a timestamp in quotes. Returns the end; -1: it is out of range."""
    put_byte(out, _QUOTE)
    out += 1
    if read == READ_DATE:
        out = _put_date(out, bits)
    elif read == READ_TIME:
        if bits < 0 or bits >= _DAY:
            return np.int64(-1)
        out = _put_zone(_put_time(out, bits, forms[form, DIGITS]), forms[form, ZONE], np.int64(0))
    else:
        minutes = forms[form, ZONE_MINUTES]
        if bits > 2**62 or bits < -(2**62):
            return np.int64(-1)
        local = bits + minutes * 60_000_000
        days = local // _DAY
        out = _put_date(out, days)
        if out >= 0:
            put_byte(out, forms[form, GAP])
            out = _put_time(out + 1, local - days * _DAY, forms[form, DIGITS])
            out = _put_zone(out, forms[form, ZONE], minutes)
    if out >= 0:
        put_byte(out, _QUOTE)
        out += 1
    return out


@inlined
def _eight_hex(word: Long) -> Long:
    """Returns the hexadecimal digits of the four lower bytes, those of the lowest byte first."""
    word &= np.uint64(0xFFFFFFFF)
    word = (word | word << np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    word = (word | word << np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    digits = (word >> np.uint64(4) | word << np.uint64(8)) & _ONES * np.uint64(0x0F)
    letters = (digits + _ONES * np.uint64(6)) >> np.uint64(4) & _ONES
    return digits + _ONES * np.uint64(48) + letters * np.uint64(39)


@inlined
def _put_uuid(out: Long, source: Long) -> Long:
    first, last = word_at(source), word_at(source + 8)
    two, three = _eight_hex(first >> np.uint64(32)), _eight_hex(last)
    put_byte(out, _QUOTE)
    put_word(out + 1, _eight_hex(first))
    put_byte(out + 9, 45)
    put_word(out + 10, two)
    put_byte(out + 14, 45)
    put_word(out + 15, two >> np.uint64(32))
    put_byte(out + 19, 45)
    put_word(out + 20, three)
    put_byte(out + 24, 45)
    put_word(out + 25, three >> np.uint64(32))
    put_word(out + 29, _eight_hex(last >> np.uint64(32)))
    put_byte(out + 37, _QUOTE)
    return out + 38


@inlined
def _put_hex(out: Long, code: Long, escapes: Long) -> Long:
    shift = 16 if escapes & UPPER_HEX else 0
    put_byte(out, _BACKSLASH)
    put_byte(out + 1, 117)
    for place in range(4):
        put_byte(out + 2 + place, np.int64(_HEX[shift + (code >> (12 - 4 * place) & 15)]))
    return out + 6


@inlined
def _short_escape(char: Long, escapes: Long) -> Long:
    """Returns the letter of a short escape like \\n; 0: there is none."""
    if char == 10:
        return np.int64(110)
    if char == 13:
        return np.int64(114)
    if char == 9:
        return np.int64(116)
    if char == 8 and not escapes & LONG_CONTROLS:
        return np.int64(98)
    if char == 12 and not escapes & LONG_CONTROLS:
        return np.int64(102)
    return np.int64(0)


@inlined
def _needs_escape(word: Long, escapes: Long) -> Long:
    """Returns flags at bytes that must be escaped. Only the lowest flag is exact."""
    quotes, slashes = word ^ (_ONES * np.uint64(_QUOTE)), word ^ (_ONES * np.uint64(_BACKSLASH))
    odd = ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes) | ((word - _ONES * np.uint64(32)) & ~word)
    if escapes & ASCII:
        odd |= (word + _ONES) | word  # from 127 on
    if escapes & (SLASHES | HTML):
        if escapes & SLASHES:
            strokes = word ^ (_ONES * np.uint64(47))
            odd |= (strokes - _ONES) & ~strokes
        if escapes & HTML:
            odd |= word
            for char in (38, 60, 62):
                marks = word ^ (_ONES * np.uint64(char))
                odd |= (marks - _ONES) & ~marks
    return odd & _HIGHS


@inlined
def _put_string(out: Long, limit: Long, at: Long, size: Long, escapes: Long) -> Long:
    """Writes a UTF-8 string with quotes. Returns the end; -1: not enough space."""
    if limit - out < size + _SLACK:
        return np.int64(-1)
    put_byte(out, _QUOTE)
    out += 1
    if 0 < size < 8 and at & _PAGE <= _PAGE - 7:
        # The bytes after the string are in the same page of memory, so reading them is safe.
        mask = (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
        word = word_at(at) & mask
        if not _needs_escape(word | _ONES * np.uint64(48) & ~mask, escapes):
            put_word(out, word)
            put_byte(out + size, _QUOTE)
            return out + size + 1
    end, plain_from = at + size, at
    while at < end:
        while end - at >= 8:
            word = word_at(at)
            odd = _needs_escape(word, escapes)
            put_word(out, word)
            if odd:
                plain = np.int64(trailing_zeros(odd)) >> 3
                at += plain
                out += plain
                break
            at += 8
            out += 8
        if at >= end:
            break
        rest = end - at
        if rest < 8 <= end - plain_from:
            # Writes the last bytes again, together with previous ones that need no escape.
            word = word_at(end - 8)
            if not _needs_escape(word, escapes):
                put_word(out + rest - 8, word)
                out += rest
                break
        if limit - out < rest + _SLACK:
            return np.int64(-1)
        char = byte_at(at)
        if char >= 128:
            size = np.int64(2) if char < 0xE0 else np.int64(3) if char < 0xF0 else np.int64(4)
            if char < 0xC0:  # the rest of a character that began in the previous word
                size = np.int64(1)
            if end - at < size:
                size = end - at
            code = char & (0x1F if size == 2 else 0x0F if size == 3 else 0x07)
            for place in range(1, size):
                code = code << 6 | byte_at(at + place) & 0x3F
            if escapes & ASCII or (escapes & HTML and (code == 0x2028 or code == 0x2029)):
                if code >= 0x10000:
                    out = _put_hex(out, 0xD800 + ((code - 0x10000) >> 10), escapes)
                    code = 0xDC00 + (code & 0x3FF)
                out = _put_hex(out, code, escapes)
            else:
                for place in range(size):
                    put_byte(out + place, byte_at(at + place))
                out += size
            at += size
            plain_from = at
            continue
        at += 1
        if char == _QUOTE or char == _BACKSLASH or (char == 47 and escapes & SLASHES):
            put_byte(out, _BACKSLASH)
            put_byte(out + 1, char)
            out += 2
        elif char < 32 or (char == 127 and escapes & ASCII):
            letter = _short_escape(char, escapes)
            if letter:
                put_byte(out, _BACKSLASH)
                put_byte(out + 1, letter)
                out += 2
            else:
                out = _put_hex(out, char, escapes)
        elif escapes & HTML and (char == 38 or char == 60 or char == 62):
            out = _put_hex(out, char, escapes)
        else:
            put_byte(out, char)
            out += 1
            continue
        plain_from = at
    put_byte(out, _QUOTE)
    return out + 1


@_always_inlined
def _node_at(place: Long, row: Long, places: Longs, base: Longs, valid: Array) -> Long:
    """Returns the node that is not null at this place; -1: none."""
    node = places[place, ONLY]
    if node >= 0:
        return node if valid[base[node] + row] else np.int64(-1)
    for kind in range(TYPES):
        node = places[place, kind]
        if node >= 0 and valid[base[node] + row]:
            return node
    return np.int64(-1)


@inlined
def _put_void(out: Long, void: Long) -> Long:
    if void == AS_ARRAY or void == AS_OBJECT:
        put_byte(out, 91 if void == AS_ARRAY else 123)
        put_byte(out + 1, 93 if void == AS_ARRAY else 125)
        return out + 2
    put_word(out, np.uint64(0x6C6C756E))  # null
    return out + 4


@kernel(
    "int64(int64, int64, boolean, int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64, "
    "int64[::1], int64, int64[::1], uint8[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])"
)
def write_values(
    first: Long,
    count: Long,
    is_wrapped: bool,
    places: Longs,
    voids: Longs,
    nodes: Longs,
    keys: Longs,
    forms: Longs,
    blob: Long,
    separators: Longs,
    escapes: Long,
    base: Longs,
    valid: Array,
    bits: Longs,
    more: Longs,
    out: Long,
    limit: Long,
    addresses: Longs,
    sizes: Longs,
) -> Long:
    """Encodes values from `first` on while there is space. Returns the first one that did not fit; `count`: all did.

    `separators`: position in the blob and size of the separator of elements, then of the one after a key.
    """
    inside, rows = np.empty(_STACK_MAX, np.int64), np.empty(_STACK_MAX, np.int64)
    nexts, ends = np.empty(_STACK_MAX, np.int64), np.empty(_STACK_MAX, np.int64)
    lead = np.empty(_STACK_MAX, np.int64)
    comma, comma_size, colon, colon_size = separators[0], separators[1], separators[2], separators[3]
    for value in range(first, count):
        if not valid[base[0] + value]:
            addresses[value], sizes[value] = 0, _NULL
            continue
        start = out
        depth, place, row = np.int64(0), np.int64(0), np.int64(value)
        node = _node_at(place, row, places, base, valid) if is_wrapped else np.int64(0)
        is_encodable = True
        while True:
            if limit - out < _SLACK:
                return np.int64(value)
            if node < 0:
                out = _put_void(out, voids[place])
            else:
                read = nodes[node, READ]
                slot = base[node] + row
                if read == READ_STRING:
                    out = _put_string(out, limit, bits[slot], more[slot], escapes)
                    if out < 0:
                        return np.int64(value)
                elif read == READ_RAW:
                    if limit - out < more[slot] + _SLACK:
                        return np.int64(value)
                    copy(out, bits[slot], more[slot])
                    out += more[slot]
                elif read == READ_INT or read == READ_LONG or read == READ_DAYS:
                    out = _put_long(out, bits[slot])
                elif read == READ_DOUBLE:
                    out = _put_double(out, bits[slot], forms, nodes[node, FORM])
                elif read == READ_BOOLEAN:
                    put_word(out, np.uint64(0x65757274) if bits[slot] else np.uint64(0x65736C6166))
                    out += 4 if bits[slot] else 5
                elif read <= MANY:
                    put_byte(out, 91 if read == MANY else 123)
                    out += 1
                    inside[depth], rows[depth], lead[depth] = node, row, 1
                    if read == RECORD:
                        nexts[depth] = nodes[node, FIRST_KEY]
                        ends[depth] = nodes[node, FIRST_KEY] + nodes[node, KEY_COUNT]
                    else:
                        nexts[depth], ends[depth] = bits[slot], bits[slot] + more[slot]
                    depth += 1
                elif read == READ_UUID:
                    out = _put_uuid(out, bits[slot])
                elif read == READ_MILLIS or read == READ_MILLIS_OF_DAY:
                    out = _put_long(out, bits[slot] // 1000) if bits[slot] % 1000 == 0 else np.int64(-1)
                else:
                    out = _put_moment(out, read, bits[slot], forms, nodes[node, FORM])
                if out < 0:
                    is_encodable = False
                    break
            has_next = False
            while depth > 0:
                top = depth - 1
                holder = inside[top]
                read = nodes[holder, READ]
                if read == RECORD:
                    key = nexts[top]
                    row = rows[top]
                    while key < ends[top]:
                        place = keys[key, PLACE]
                        node = _node_at(place, row, places, base, valid)
                        if node >= 0 or voids[place] != OMITTED:
                            break
                        key += 1
                    if key < ends[top]:
                        skipped = keys[key, LEAD] if lead[top] else np.int64(0)
                        size = keys[key, SIZE] - skipped
                        if limit - out < size + _SLACK:
                            return np.int64(value)
                        source = blob + keys[key, AT] + skipped
                        put_word(out, word_at(source))
                        if size > 8:
                            put_word(out + 8, word_at(source + 8))
                        taken = min(size, 16)
                        out += taken
                        source += taken
                        size -= taken
                        while size > 0:
                            put_word(out, word_at(source))
                            moved = min(size, 8)
                            out += moved
                            source += moved
                            size -= moved
                        nexts[top], lead[top] = key + 1, 0
                        has_next = True
                        break
                elif nexts[top] < ends[top]:
                    row = nexts[top]
                    nexts[top] = row + 1
                    place = nodes[holder, CHILD]
                    if limit - out < _SLACK:
                        return np.int64(value)
                    if lead[top]:
                        lead[top] = 0
                    else:
                        for index in range(comma_size):
                            put_byte(out + index, byte_at(blob + comma + index))
                        out += comma_size
                    if read == NAMED:
                        slot = base[holder + 1] + row
                        if not valid[slot]:
                            is_encodable = False
                            break
                        out = _put_string(out, limit, bits[slot], more[slot], escapes)
                        if out < 0:
                            return np.int64(value)
                        for index in range(colon_size):
                            put_byte(out + index, byte_at(blob + colon + index))
                        out += colon_size
                    node = _node_at(place, row, places, base, valid)
                    has_next = True
                    break
                if limit - out < _SLACK:
                    return np.int64(value)
                put_byte(out, 93 if read == MANY else 125)
                out += 1
                depth -= 1
            if not has_next:
                break
        if is_encodable:
            addresses[value], sizes[value] = start, out - start
        else:
            addresses[value], sizes[value] = 0, _NULL
            out = start
    return np.int64(count)
