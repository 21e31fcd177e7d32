"""Kernels of `arrow/batch_encoder.py`: from columns to record batches.

A column of bytes is an address and a size for each row, size -1 for null. `locate_…` computes them for Arrow's types.
"""

from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import Array, Long, copy, inlined, kernel, memory

UNSORTED, NAMELESS, TOO_LARGE = 1, 2, 3

_HEADER_SIZE: Final = 61
_LENGTH_END: Final = 12
_INT_MAX: Final = 2**31 - 1
_NUMBERS_SIZE_MAX: Final = 5 + 10 + 5
"""Maximum size of a record's length and its two deltas, which depend on the batch that it goes into."""
_NULL: Final = -1
_INLINE_MAX: Final = 12


@inlined
def _is_null(valid: Long, row: Long) -> bool:
    """Returns whether a row is null. `valid`: the address of Arrow's validity bitmap; 0: no row is null."""
    return valid != 0 and not (memory(valid, (row >> 3) + 1)[row >> 3] >> (row & 7)) & 1


@inlined
def _little_endian(data: Array, at: Long, size: Long) -> Long:
    value = np.int64(0)
    for place in range(size):
        value |= np.int64(data[at + place]) << (8 * place)
    return value


@kernel("void(int64, int64, int64, int64[::1], int64[::1], int64[::1])")
def locate_views(views: int, valid: int, first: int, buffers: Array, addresses: Array, sizes: Array) -> None:
    """Locates the values of a column of views. `buffers`: the addresses of the buffers that the views name."""
    for row in range(addresses.size):
        view = views + 16 * (first + row)
        if _is_null(valid, first + row):
            addresses[row], sizes[row] = 0, _NULL
            continue
        data = memory(view, 16)
        size = _little_endian(data, 0, 4)
        sizes[row] = size
        if size > _INLINE_MAX:
            addresses[row] = buffers[_little_endian(data, 8, 4)] + _little_endian(data, 12, 4)
        else:
            addresses[row] = view + 4


@kernel("void(int64, int64, int64, int64, int64, int64[::1], int64[::1])")
def locate_offsets(offsets: int, width: int, data: int, valid: int, first: int, addresses: Array, sizes: Array) -> None:
    """Locates the values of a column that is one buffer with offsets of 4 or 8 bytes into it."""
    for row in range(addresses.size):
        if _is_null(valid, first + row):
            addresses[row], sizes[row] = 0, _NULL
            continue
        bounds = memory(offsets + width * (first + row), 2 * width)
        start = _little_endian(bounds, 0, width)
        addresses[row] = data + start
        sizes[row] = _little_endian(bounds, width, width) - start


@inlined
def _zigzag(number: Long) -> Long:
    return np.uint64(number << np.int64(1)) ^ np.uint64(number >> np.int64(63))


@inlined
def _number_size(number: Long) -> Long:
    rest = _zigzag(number) >> np.uint64(7)
    size = 1
    while rest:
        rest >>= np.uint64(7)
        size += 1
    return size


@inlined
def _sized(size: Long) -> Long:
    """Returns the size of a length and as many bytes."""
    return _number_size(size) + max(size, np.int64(0))


@inlined
def _does_not_fit(timestamp: Long, base: Long) -> bool:
    """Returns whether the difference needs more than 64 bits. Kafka's readers let it wrap around; this avoids it."""
    return bool(((timestamp ^ base) & (timestamp ^ (timestamp - base))) < 0)


@kernel(
    "UniTuple(int64, 3)(int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
def plan_batches(
    bytes_max: int,
    offsets: Array,
    timestamps: Array,
    timestamp_types: Array,
    key_sizes: Array,
    value_sizes: Array,
    headers_first: Array,
    headers_count: Array,
    header_key_sizes: Array,
    header_value_sizes: Array,
    record_sizes: Array,
    batch_firsts: Array,
    batch_sizes: Array,
) -> tuple[int, int, int]:
    """Assigns rows to batches and computes all sizes. Returns a problem and its row, or 0, 0 and the number of batches.

    A new batch begins when one is full, when its header cannot describe the next record (another timestamp type, or
    another log append time, which is a field of the batch), or when a delta does not fit.
    """
    batches = 0
    base_offset, base_timestamp, kind, size = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for row in range(offsets.size):
        offset, timestamp = offsets[row], timestamps[row]
        if offset < 0 or (row > 0 and offset <= offsets[row - 1]):
            return UNSORTED, row, 0
        content = 1 + _sized(key_sizes[row]) + _sized(value_sizes[row]) + _number_size(headers_count[row])
        for header in range(headers_first[row], headers_first[row] + headers_count[row]):
            if header_key_sizes[header] < 0:
                return NAMELESS, row, 0
            content += _sized(header_key_sizes[header]) + _sized(header_value_sizes[header])
        if content > _INT_MAX - 2 * _HEADER_SIZE:
            return TOO_LARGE, row, 0

        begins = batches == 0
        if not begins:
            begins = (
                timestamp_types[row] != kind
                or (kind == 1 and timestamp != base_timestamp)
                or offset - base_offset > _INT_MAX
                or _does_not_fit(timestamp, base_timestamp)
                or size + content + _NUMBERS_SIZE_MAX > bytes_max
            )
        if begins:
            if batches:
                batch_sizes[batches - 1] = size
            batch_firsts[batches] = row
            batches += 1
            base_offset, base_timestamp, kind, size = offset, timestamp, timestamp_types[row], np.int64(_HEADER_SIZE)
        content += _number_size(timestamp - base_timestamp) + _number_size(offset - base_offset)
        record_sizes[row] = content
        size += _sized(content)
    if batches:
        batch_sizes[batches - 1] = size
    return 0, 0, batches


@inlined
def _put_number(out: Array, at: Long, number: Long) -> Long:
    rest = _zigzag(number)
    while rest > np.uint64(0x7F):
        out[at] = np.uint8(rest & np.uint64(0x7F)) | np.uint8(0x80)
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@inlined
def _put_sized(out: Array, address: Long, at: Long, source: Long, size: Long) -> Long:
    at = _put_number(out, at, size)
    if size > 0:
        copy(address + at, source, size)
        at += size
    return at


@inlined
def _put_big_endian(out: Array, at: Long, size: Long, number: Long) -> None:
    for place in range(size):
        out[at + place] = np.uint8((number >> np.int64(8 * (size - 1 - place))) & 255)


@kernel(
    "void(int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
def write_batches(
    address: int,
    offsets: Array,
    timestamps: Array,
    timestamp_types: Array,
    key_addresses: Array,
    key_sizes: Array,
    value_addresses: Array,
    value_sizes: Array,
    headers_first: Array,
    headers_count: Array,
    header_key_addresses: Array,
    header_key_sizes: Array,
    header_value_addresses: Array,
    header_value_sizes: Array,
    record_sizes: Array,
    batch_firsts: Array,
    batch_sizes: Array,
    batch_lasts: Array,
) -> None:
    """Writes the planned batches back to back, without checksums. `batch_lasts`: the last offset of each."""
    for batch in range(batch_sizes.size):
        size = batch_sizes[batch]
        out = memory(address, size)
        first, end = batch_firsts[batch], batch_firsts[batch + 1]
        base_offset, base_timestamp, max_timestamp = offsets[first], timestamps[first], timestamps[first]
        at = _HEADER_SIZE
        for row in range(first, end):
            timestamp = timestamps[row]
            max_timestamp = max(max_timestamp, timestamp)
            at = _put_number(out, at, record_sizes[row])
            out[at] = 0
            at = _put_number(out, at + 1, timestamp - base_timestamp)
            at = _put_number(out, at, offsets[row] - base_offset)
            at = _put_sized(out, address, at, key_addresses[row], key_sizes[row])
            at = _put_sized(out, address, at, value_addresses[row], value_sizes[row])
            at = _put_number(out, at, headers_count[row])
            for header in range(headers_first[row], headers_first[row] + headers_count[row]):
                at = _put_sized(out, address, at, header_key_addresses[header], header_key_sizes[header])
                at = _put_sized(out, address, at, header_value_addresses[header], header_value_sizes[header])
        _put_big_endian(out, 0, 8, base_offset)
        _put_big_endian(out, 8, 4, size - _LENGTH_END)
        _put_big_endian(out, 12, 4, np.int64(0))
        out[16] = 2
        _put_big_endian(out, 21, 2, timestamp_types[first] << 3)
        _put_big_endian(out, 23, 4, batch_lasts[batch] - base_offset)
        _put_big_endian(out, 27, 8, base_timestamp)
        _put_big_endian(out, 35, 8, max_timestamp)
        # No producer: id, epoch and sequence are all -1.
        for place in range(43, 57):
            out[place] = 255
        _put_big_endian(out, 57, 4, end - first)
        address += size
