"""Kernels of `arrow.py` for addresses, sizes and lists that numpy has no function for."""

from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import Array, Long, byte_at, copy, inlined, kernel, memory

OVERFLOW: Final = -1
NARROW, WIDE, BYTES = range(3)
"""Forms of map keys: a number in `bits`, a number in `bits` and `more`, or bytes."""
_TRIES_MIN, _TRIES_EACH = 1024, 16
_INLINE_MAX: Final = 12
_SPAN_BITS: Final = 30
"""Bits of the address range of one buffer of a view column: offsets in a buffer have 31 bits."""
_INT_MAX: Final = 2**31 - 1


@kernel("int64(uint8[::1], int64[::1], int32[::1])")
def ends_of(valid: Array, sizes: Array, ends: Array) -> Long:
    """Fills `ends` with Arrow's offsets. Returns the total size, or OVERFLOW if it exceeds 2 GiB."""
    end = np.int64(0)
    ends[0] = 0
    for row in range(valid.size):
        if valid[row]:
            end += sizes[row]
            if end > _INT_MAX:
                return OVERFLOW
        ends[row + 1] = end
    return end


@kernel("void(uint8[::1], int64[::1], int32[::1], int64)")
def put_bytes(valid: Array, addresses: Array, ends: Array, target: int) -> None:
    """Copies the bytes of valid rows to the offsets that `ends_of` computed."""
    for row in range(valid.size):
        if valid[row]:
            copy(target + ends[row], addresses[row], np.int64(ends[row + 1] - ends[row]))


@kernel("void(uint8[::1], int64[::1], int64, int64)")
def put_fixed(valid: Array, addresses: Array, width: int, target: int) -> None:
    """Copies values of one width, with a gap for each null."""
    for row in range(valid.size):
        if valid[row]:
            copy(target + row * width, addresses[row], width)


@inlined
def _put_int(address: Long, number: Long) -> None:
    out = memory(address, np.int64(4))
    for place in range(4):
        out[place] = np.uint8((number >> np.int64(8 * place)) & 255)


@inlined
def _window(windows: Array, count: Long, address: Long) -> Long:
    """Returns the window that contains an address; -1: none."""
    span = address >> _SPAN_BITS
    for place in range(count):
        if windows[place, 0] == span:
            return np.int64(place)
    return np.int64(-1)


@kernel("int64(uint8[::1], int64[::1], int64[::1], int64[:, ::1])")
def find_windows(valid: Array, addresses: Array, sizes: Array, windows: Array) -> Long:
    """Finds the memory ranges with the bytes of values that are not inlined in their views.

    Fills `windows` with (span, first address, end). Returns their number, or OVERFLOW if `windows` is too small.
    """
    count, last = np.int64(0), np.int64(-1)
    for row in range(valid.size):
        if not valid[row] or sizes[row] <= _INLINE_MAX:
            continue
        address = addresses[row]
        if last < 0 or windows[last, 0] != address >> _SPAN_BITS:
            last = _window(windows, count, address)
            if last < 0:
                if count == windows.shape[0]:
                    return OVERFLOW
                last = count
                windows[last, 0], windows[last, 1], windows[last, 2] = address >> _SPAN_BITS, address, address
                count += 1
        windows[last, 1] = min(windows[last, 1], address)
        windows[last, 2] = max(windows[last, 2], address + sizes[row])
    return count


@kernel("void(uint8[::1], int64[::1], int64[::1], int64[:, ::1], int64)")
def put_views(valid: Array, addresses: Array, sizes: Array, windows: Array, target: int) -> None:
    """Writes Arrow views: the size, then up to twelve bytes inline, or four bytes, the window and the offset in it.

    The memory at `target` must be zero.
    """
    last = np.int64(0)
    for row in range(valid.size):
        if not valid[row]:
            continue
        address, size = addresses[row], sizes[row]
        view = target + 16 * row
        _put_int(view, size)
        if size <= _INLINE_MAX:
            copy(view + 4, address, size)
            continue
        if windows[last, 0] != address >> _SPAN_BITS:
            last = _window(windows, np.int64(windows.shape[0]), address)
        copy(view + 4, address, np.int64(4))
        _put_int(view + 8, last)
        _put_int(view + 12, address - windows[last, 1])


@kernel("int64(uint8[::1], int64[::1], int64[::1], int32[::1])")
def list_ends(valid: Array, firsts: Array, counts: Array, ends: Array) -> int:
    """Fills `ends` with the offsets of lists whose rows are adjacent. OVERFLOW: they are not, or are too many."""
    end, begun = np.int64(0), False
    for row in range(valid.size):
        if valid[row] and counts[row] > 0:
            if begun and firsts[row] != end:
                return OVERFLOW
            if not begun:
                begun = True
                for before in range(row + 1):
                    ends[before] = firsts[row]
            end = firsts[row] + counts[row]
            if end > _INT_MAX:
                return OVERFLOW
        ends[row + 1] = end
    if not begun:
        for row in range(valid.size + 1):
            ends[row] = 0
    return 0


@inlined
def _hash(bits: Long, more: Long, how: Long) -> Long:
    found = np.int64(-3750763034362895579)
    if how == BYTES:
        for place in range(bits, bits + more):
            found = (found ^ byte_at(place)) * np.int64(1099511628211)
    else:
        found = (found ^ bits) * np.int64(1099511628211)
        if how == WIDE:
            found = (found ^ more) * np.int64(1099511628211)
    return found ^ (found >> np.int64(29))


@inlined
def _is_same(bits: Array, more: Array, one: Long, other: Long, how: Long) -> bool:
    if how != BYTES:
        return bool(bits[one] == bits[other] and (how != WIDE or more[one] == more[other]))
    place, size = np.int64(0), more[one]
    if size != more[other]:
        return False
    while place < size and byte_at(bits[one] + place) == byte_at(bits[other] + place):
        place += 1
    return bool(place == size)


@kernel("int64(uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, uint8[::1])")
def find_duplicate_keys(
    valid: Array, firsts: Array, counts: Array, bits: Array, more: Array, how: int, room: int, duplicates: Array
) -> int:
    """Finds maps with a duplicate key, and returns how many there are.

    `room`: a power of two, at least twice the entries of the largest map. A map whose keys have too many hash
    collisions counts as one with duplicates, which bounds the time for hostile data.
    """
    table, stamps, found = np.empty(room, np.int64), np.full(room, -1, np.int64), 0
    for row in range(valid.size):
        if not valid[row] or counts[row] < 2:
            continue
        tries = np.int64(_TRIES_MIN) + _TRIES_EACH * counts[row]
        for key in range(firsts[row], firsts[row] + counts[row]):
            place = _hash(bits[key], more[key], how) & (room - 1)
            while stamps[place] == row and tries > 0 and not _is_same(bits, more, table[place], key, how):
                place = (place + 1) & (room - 1)
                tries -= 1
            if stamps[place] == row:
                duplicates[row] = 1
                found += 1
                break
            table[place], stamps[place] = key, row
    return found
