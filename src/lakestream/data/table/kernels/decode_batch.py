"""Kernels of `write/batch_decoder.py`: from record batches to columns. Every length and count is checked before use.

A record: length, attributes (1 byte, unused), timestamp delta, offset delta, key length, key, value length, value,
number of headers, and for each of them key length, key, value length, value. All numbers are zigzag varints, at most 32
bits wide but for the timestamp delta. As in Kafka's own reader, a negative length of a key or value means null.
"""

from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import Array, Long, inlined, is_utf8, kernel, memory

STOPPED, FINE = -1, 0
CUT_OFF, MAGIC, LENGTH, CODEC, COUNT = 1, 2, 3, 4, 5
RECORD_LENGTH, TIMESTAMP, OFFSET, KEY, VALUE, HEADERS, HEADER_KEY, HEADER_VALUE, STRAY, LEFT_OVER = range(6, 16)
TOO_MANY_HEADERS: Final = 16
FEWER_RECORDS: Final = 17

PROBLEMS: Final = {
    CUT_OFF: "it is shorter than its header",
    MAGIC: "its magic is not 2",
    LENGTH: "its length field differs from its size",
    CODEC: "its compression type is unknown",
    COUNT: "its record count and its last offset delta contradict each other",
    RECORD_LENGTH: "invalid record length: not a number, or beyond the end of the batch",
    TIMESTAMP: "invalid timestamp delta: not a number",
    OFFSET: "invalid offset delta: not a number, not above the previous record's, or above the batch's last",
    KEY: "invalid key length: not a number, or beyond the end of the record",
    VALUE: "invalid value length: not a number, or beyond the end of the record",
    HEADERS: "invalid number of record headers: not a number, negative, or more than the record can hold",
    HEADER_KEY: "invalid length of a header key: not a number, negative, or beyond the end of the record",
    HEADER_VALUE: "invalid length of a header value: not a number, or beyond the end of the record",
    STRAY: "invalid record size: bytes are left after the last header",
    LEFT_OVER: "incorrect declared batch size: bytes are left after the last record",
    TOO_MANY_HEADERS: "too many record headers",
    FEWER_RECORDS: "invalid record count: the batch declares more records than its bytes can hold",
}

_HEADER_SIZE: Final = 61
_CODEC_MASK, _CODEC_MAX, _LOG_APPEND_TIME = 0x07, 4, 0x08
RECORD_SIZE_MIN: Final = 7
_RECORD_HEADER_SIZE_MIN: Final = 2
_INT_BITS, _LONG_BITS = 35, 70
_INLINE_MAX: Final = 12
_MS_MAX: Final = (2**63 - 1) // 1000


@inlined
def _big_endian(data: Array, at: Long, size: Long) -> Long:
    value = np.int64(np.int8(data[at]))
    for place in range(at + 1, at + size):
        value = (value << 8) | np.int64(data[place])
    return value


@inlined
def _number(data: Array, at: Long, end: Long, bits: Long) -> tuple[Long, Long]:
    """Returns a varint and where it ends; -1 if it exceeds `end` or `bits`."""
    raw = np.uint64(0)
    shift = 0
    while at < end and shift < bits:
        byte = data[at]
        at += 1
        raw |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            if (bits == _INT_BITS and raw >> np.uint64(32)) or (shift == 63 and byte > 1):
                return np.int64(0), -1
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += 7
    return np.int64(0), -1


@kernel("int64(int64, int64, int64[::1], int64[::1])")
def find_batches(address: int, size: int, starts: Array, ends: Array) -> int:
    """Finds the starts and ends of batches that are back to back. Returns their number, or -1 - the position of the
    first invalid one."""
    data = memory(address, size)
    at, found = 0, 0
    while at < size:
        if size - at < _HEADER_SIZE:
            return -1 - at
        end = at + 12 + _big_endian(data, at + 8, 4)
        if end < at + _HEADER_SIZE or end > size:
            return -1 - at
        starts[found] = at
        ends[found] = end
        found += 1
        at = end
    return found


@kernel("UniTuple(int64, 2)(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def read_heads(
    addresses: Array,
    sizes: Array,
    attributes: Array,
    counts: Array,
    deltas_max: Array,
    base_timestamps: Array,
    max_timestamps: Array,
) -> tuple[int, int]:
    """Reads the headers of batches. Returns the problem, or FINE, and the batch that has it."""
    for batch in range(addresses.size):
        size = sizes[batch]
        if size < _HEADER_SIZE:
            return CUT_OFF, batch
        data = memory(addresses[batch], size)
        if data[16] != 2:
            return MAGIC, batch
        if _big_endian(data, 8, 4) != size - 12:
            return LENGTH, batch
        flags = _big_endian(data, 21, 2)
        count = _big_endian(data, 57, 4)
        delta_max = _big_endian(data, 23, 4)
        if flags & _CODEC_MASK > _CODEC_MAX:
            return CODEC, batch
        if count < 0 or delta_max < 0 or count > delta_max + 1:
            return COUNT, batch
        attributes[batch] = flags
        counts[batch] = count
        deltas_max[batch] = delta_max
        base_timestamps[batch] = _big_endian(data, 27, 8)
        max_timestamps[batch] = _big_endian(data, 35, 8)
    return FINE, 0


@kernel("int64(int64, int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])")
def group_end(
    rows_max: int, bytes_max: int, span_max: int, sources: Array, starts: Array, ends: Array, counts: Array
) -> int:
    """Returns how many batches are decoded together: few enough rows and bytes, near each other. At least one."""
    rows = counts[0]
    size = ends[0] - starts[0]
    origin = starts[0]
    for batch in range(1, sources.size):
        if sources[batch] != sources[batch - 1]:
            origin = starts[batch]
        rows += counts[batch]
        size += ends[batch] - starts[batch]
        apart = starts[batch] < origin or ends[batch] - origin > span_max
        if rows > rows_max or size > bytes_max or apart:
            return batch
    return int(sources.size)


@inlined
def _word(data: Array, at: Long, size: Long) -> Long:
    """Returns up to four bytes as a little-endian number, as Arrow's views store them, padded with zeros."""
    if size >= 4:
        return np.int32(
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
    word = np.uint32(0)
    for place in range(size):
        word |= np.uint32(data[at + place]) << np.uint32(8 * place)
    return np.int32(word)


@inlined
def _set_view(views: Array, row: Long, data: Array, at: Long, size: Long, buffer: Long, position: Long) -> None:
    """Writes an Arrow view: the size, then up to twelve bytes inline, or the first four, the buffer, the position."""
    first = 4 * row
    views[first] = size
    views[first + 1] = _word(data, at, size)
    if size > _INLINE_MAX:
        views[first + 2] = buffer
        views[first + 3] = position + at
    else:
        views[first + 2] = _word(data, at + 4, size - 4)
        views[first + 3] = _word(data, at + 8, size - 8)


@inlined
def _set_null(views: Array, row: Long) -> None:
    for place in range(4 * row, 4 * row + 4):
        views[place] = 0


@inlined
def _set_valid(bits: Array, row: Long) -> None:
    bits[row >> 3] |= np.uint8(1 << (row & 7))


@inlined
def _skip_headers(data: Array, at: Long, end: Long, count: Long) -> tuple[int, int]:
    """Checks the headers of a record. Returns the problem, or FINE, and where they end."""
    for _ in range(count):
        size, at = _number(data, at, end, _INT_BITS)
        if at < 0 or size < 0 or size > end - at:
            return HEADER_KEY, 0
        size, at = _number(data, at + size, end, _INT_BITS)
        if at < 0 or size > end - at:
            return HEADER_VALUE, 0
        at += max(size, 0)
    return FINE, at


@kernel(
    "UniTuple(int64, 9)(int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int32[::1], int32[::1],"
    " int32[::1], uint8[::1], uint8[::1], int64[::1], int32[::1])"
)
def read_records(
    rows_max: int,
    headers_max: int,
    addresses: Array,
    sizes: Array,
    buffers: Array,
    positions: Array,
    counts: Array,
    offsets_before: Array,
    attributes: Array,
    deltas_max: Array,
    base_offsets: Array,
    base_timestamps: Array,
    max_timestamps: Array,
    offsets: Array,
    timestamps: Array,
    timestamp_types: Array,
    keys: Array,
    values: Array,
    keys_valid: Array,
    values_valid: Array,
    headers_at: Array,
    headers_end: Array,
) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Reads the records of batches, up to so many rows and headers.

    Returns the problem, its batch and its record; or STOPPED, the batch, the next record and its position. Then the
    numbers of rows, of null keys, of null values, of headers, and of timestamps that overflow as microseconds.

    `addresses` and `sizes` are those of the records alone, decompressed; `buffers` and `positions` are their place in
    the buffers that the views will name. The last two outputs are for `read_headers`.
    """
    row, keys_null, values_null, headers, overflows = 0, 0, 0, 0, 0
    headers_end[0] = 0
    for batch in range(addresses.size):
        size = sizes[batch]
        data = memory(addresses[batch], size)
        buffer, position = buffers[batch], positions[batch]
        appended = attributes[batch] & _LOG_APPEND_TIME
        offset_before = offsets_before[batch]
        offset_last = base_offsets[batch] + deltas_max[batch]
        at = 0
        for record in range(counts[batch]):
            if row == rows_max or headers > headers_max:
                return STOPPED, batch, record, at, row, keys_null, values_null, headers, overflows
            length, at = _number(data, at, size, _INT_BITS)
            if at < 0 or length < 0 or length > size - at:
                return RECORD_LENGTH, batch, record, 0, 0, 0, 0, 0, 0
            end = at + length
            delta, at = _number(data, at + 1, end, _LONG_BITS)
            if at < 0:
                return TIMESTAMP, batch, record, 0, 0, 0, 0, 0, 0
            # Wraps around at 64 bits, as in Java and C.
            timestamp = max_timestamps[batch] if appended else base_timestamps[batch] + delta
            delta, at = _number(data, at, end, _INT_BITS)
            offset = base_offsets[batch] + delta
            if at < 0 or offset <= offset_before or offset > offset_last:
                return OFFSET, batch, record, 0, 0, 0, 0, 0, 0
            offset_before = offset

            length, at = _number(data, at, end, _INT_BITS)
            if at < 0 or length > end - at:
                return KEY, batch, record, 0, 0, 0, 0, 0, 0
            if length >= 0:
                _set_view(keys, row, data, at, length, buffer, position)
                _set_valid(keys_valid, row)
                at += length
            else:
                _set_null(keys, row)
                keys_null += 1

            length, at = _number(data, at, end, _INT_BITS)
            if at < 0 or length > end - at:
                return VALUE, batch, record, 0, 0, 0, 0, 0, 0
            if length >= 0:
                _set_view(values, row, data, at, length, buffer, position)
                _set_valid(values_valid, row)
                at += length
            else:
                _set_null(values, row)
                values_null += 1

            count, at = _number(data, at, end, _INT_BITS)
            if at < 0 or count < 0 or count * _RECORD_HEADER_SIZE_MIN > end - at:
                return HEADERS, batch, record, 0, 0, 0, 0, 0, 0
            if count > headers_max:
                return TOO_MANY_HEADERS, batch, record, 0, 0, 0, 0, 0, 0
            if count > 0:
                headers_at[row] = at
                problem, at = _skip_headers(data, at, end, count)
                if problem:
                    return problem, batch, record, 0, 0, 0, 0, 0, 0
                headers += count
            if at != end:
                return STRAY, batch, record, 0, 0, 0, 0, 0, 0

            offsets[row] = offset
            timestamps[row] = timestamp
            timestamp_types[row] = 1 if appended else 0
            overflows += timestamp > _MS_MAX or timestamp < -_MS_MAX
            row += 1
            headers_end[row] = headers
        if at != size:
            return LEFT_OVER, batch, counts[batch] - 1, 0, 0, 0, 0, 0, 0
    return FINE, addresses.size, 0, 0, row, keys_null, values_null, headers, overflows


@kernel("UniTuple(int64, 4)(Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64, uint8[::1])")
def validate_records(
    data: Array, at: int, headers_max: int, count: int, base_timestamp: int, keyless: Array
) -> tuple[int, int, int, int]:
    """Checks each record of one batch, as `read_records` does, without making rows.

    `data` contains the records from `at` on, decompressed; offset deltas must be 0, 1, 2, ... Marks the records without
    a key in `keyless`, unless that is empty. Returns the problem, the number of the record that has it, and the
    smallest and the largest timestamp.
    """
    size = data.size
    if count > (size - at) // RECORD_SIZE_MIN:
        return FEWER_RECORDS, 0, 0, 0
    oldest, newest = np.int64(2**63 - 1), np.int64(-(2**63))
    for record in range(count):
        length, at = _number(data, at, size, _INT_BITS)
        if at < 0 or length < 0 or length > size - at:
            return RECORD_LENGTH, record, 0, 0
        end = at + length
        delta, at = _number(data, at + 1, end, _LONG_BITS)
        if at < 0:
            return TIMESTAMP, record, 0, 0
        timestamp = base_timestamp + delta
        oldest, newest = min(oldest, timestamp), max(newest, timestamp)
        delta, at = _number(data, at, end, _INT_BITS)
        if at < 0 or delta != record:
            return OFFSET, record, 0, 0
        length, at = _number(data, at, end, _INT_BITS)
        if at < 0 or length > end - at:
            return KEY, record, 0, 0
        if keyless.size:
            keyless[record] = length < 0
        length, at = _number(data, at + max(length, 0), end, _INT_BITS)
        if at < 0 or length > end - at:
            return VALUE, record, 0, 0
        headers, at = _number(data, at + max(length, 0), end, _INT_BITS)
        if at < 0 or headers < 0 or headers * _RECORD_HEADER_SIZE_MIN > end - at:
            return HEADERS, record, 0, 0
        if headers > headers_max:
            return TOO_MANY_HEADERS, record, 0, 0
        if headers > 0:
            problem, at = _skip_headers(data, at, end, headers)
            if problem:
                return problem, record, 0, 0
        if at != end:
            return STRAY, record, 0, 0
    if at != size:
        return LEFT_OVER, count - 1, 0, 0
    return FINE, 0, int(oldest), int(newest)


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int32[::1],"
    " int32[::1], int32[::1], int32[::1], uint8[::1], uint8[::1], uint8[::1])"
)
def read_headers(
    addresses: Array,
    sizes: Array,
    buffers: Array,
    positions: Array,
    counts: Array,
    headers_at: Array,
    headers_end: Array,
    keys: Array,
    values: Array,
    raw_keys: Array,
    keys_valid: Array,
    values_valid: Array,
    raw_keys_valid: Array,
) -> tuple[int, int]:
    """Reads the headers that `read_records` has checked. Returns how many keys are not UTF-8, and how many values are
    null."""
    rows = headers_end.size - 1
    row, raw, values_null = 0, 0, 0
    for batch in range(addresses.size):
        size = sizes[batch]
        data = memory(addresses[batch], size)
        buffer, position = buffers[batch], positions[batch]
        for _ in range(min(counts[batch], rows - row)):
            at = headers_at[row]
            for header in range(headers_end[row], headers_end[row + 1]):
                length, at = _number(data, at, size, _INT_BITS)
                if is_utf8(addresses[batch] + at, addresses[batch] + at + length):
                    _set_view(keys, header, data, at, length, buffer, position)
                    _set_valid(keys_valid, header)
                    _set_null(raw_keys, header)
                else:
                    _set_null(keys, header)
                    _set_view(raw_keys, header, data, at, length, buffer, position)
                    _set_valid(raw_keys_valid, header)
                    raw += 1
                length, at = _number(data, at + length, size, _INT_BITS)
                if length >= 0:
                    _set_view(values, header, data, at, length, buffer, position)
                    _set_valid(values_valid, header)
                    at += length
                else:
                    _set_null(values, header)
                    values_null += 1
            row += 1
    return raw, values_null
