"""Reads selected fields of the records of an Avro file, with a program that manifest_avro.py compiles from the schema.

A manifest of ten thousand files contains a million numbers, of which a few per file are needed.
"""

from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import Array, Long, Longs, inlined, kernel, memory

END: Final = 0
LONG: Final = 1
"""operand: slot"""
BYTES: Final = 2
"""operand: slot of the start; the next slot is for the size"""
PASS: Final = 3
"""operand: number of bytes to skip"""
UNION: Final = 4
"""operands: number of branches, then the target of each"""
JUMP: Final = 5
"""operand: target"""
REPEAT: Final = 6
"""operands: target after the last item, slots per item, number of items that have slots"""
AGAIN: Final = 7
"""the end of an item"""
KEYED: Final = 8
"""operands: whether values are bytes, number of selected keys, then each key with its slot"""

ABSENT: Final = -(2**63)
"""The value of a slot whose field the record lacks."""
NO_SLOT: Final = -1
DEPTH_MAX: Final = 16

GOOD, CUT_OFF, WRONG = 0, 1, 2


@inlined
def _number(data: Array, at: Long) -> tuple[Long, Long]:
    """Returns a zigzag varint and where it ends; -1 if it does not end."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while at < data.size and shift < np.uint64(64):
        byte = np.uint64(data[at])
        raw |= (byte & np.uint64(0x7F)) << shift
        at += 1
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@inlined
def _items(data: Array, at: Long) -> tuple[Long, Long]:
    """Returns the number of items of the next block of a list, each of at least one byte, and where its items begin; -1
    if it is damaged."""
    count, at = _number(data, at)
    if at >= 0 and count < 0:
        count = -count
        _, at = _number(data, at)
    if at < 0 or count < 0 or count > data.size - at:
        return np.int64(0), np.int64(-1)
    return count, at


@inlined
def _keyed(data: Array, at: Long, code: Longs, pc: Long, out: Longs) -> Long:
    """Reads the selected keys of a map from numbers. Returns where it ends; -1 if it is damaged."""
    is_bytes, wanted = code[pc + 1], code[pc + 2]
    count, at = _items(data, at)
    while at >= 0 and count > 0:
        for _ in range(count):
            key, at = _number(data, at)
            if at < 0:
                return np.int64(-1)
            value, at = _number(data, at)
            if at < 0 or (is_bytes and (value < 0 or value > data.size - at)):
                return np.int64(-1)
            for place in range(wanted):
                if code[pc + 3 + 2 * place] == key:
                    slot = code[pc + 4 + 2 * place]
                    if is_bytes:
                        out[slot], out[slot + 1] = at, value
                    else:
                        out[slot] = value
            if is_bytes:
                at += value
        count, at = _items(data, at)
    return np.int64(at)


@kernel("UniTuple(int64, 2)(int64, int64, int64[::1], int64[:, ::1])")
def walk(address: Long, size: Long, code: Longs, rows: Longs) -> tuple[Long, Long]:
    """Fills one row of slots for each record. Returns the problem, or GOOD, and the record that has it."""
    data, at = memory(address, size), np.int64(0)
    left, body, item = np.zeros(DEPTH_MAX, np.int64), np.zeros(DEPTH_MAX, np.int64), np.zeros(DEPTH_MAX, np.int64)
    for row in range(rows.shape[0]):
        out = rows[row]
        pc, depth, shift = np.int64(0), 0, np.int64(0)
        while code[pc] != END:
            op = code[pc]
            if op == LONG:
                value, at = _number(data, at)
                if at < 0:
                    return np.int64(CUT_OFF), np.int64(row)
                if code[pc + 1] >= 0 and shift >= 0:
                    out[code[pc + 1] + shift] = value
                pc += 2
            elif op == BYTES:
                value, at = _number(data, at)
                if at < 0 or value < 0 or value > size - at:
                    return np.int64(CUT_OFF), np.int64(row)
                if code[pc + 1] >= 0 and shift >= 0:
                    out[code[pc + 1] + shift] = at
                    out[code[pc + 1] + shift + 1] = value
                at += value
                pc += 2
            elif op == PASS:
                at += code[pc + 1]
                if at > size:
                    return np.int64(CUT_OFF), np.int64(row)
                pc += 2
            elif op == UNION:
                value, at = _number(data, at)
                if at < 0 or value < 0 or value >= code[pc + 1]:
                    return np.int64(WRONG), np.int64(row)
                pc = code[pc + 2 + value]
            elif op == JUMP:
                pc = code[pc + 1]
            elif op == KEYED:
                at = _keyed(data, at, code, pc, out)
                if at < 0:
                    return np.int64(CUT_OFF), np.int64(row)
                pc += 3 + 2 * code[pc + 2]
            else:
                if op == REPEAT:
                    if depth == DEPTH_MAX:
                        return np.int64(WRONG), np.int64(row)
                    body[depth], left[depth], item[depth] = pc, 0, 0
                    depth += 1
                else:
                    left[depth - 1] -= 1
                    item[depth - 1] += 1
                again = body[depth - 1]
                if left[depth - 1] == 0:
                    left[depth - 1], at = _items(data, at)
                    if at < 0:
                        return np.int64(CUT_OFF), np.int64(row)
                if left[depth - 1] == 0:
                    depth -= 1
                    shift = np.int64(0)
                    pc = code[again + 1]
                else:
                    place = item[depth - 1]
                    shift = place * code[again + 2] if depth == 1 and place < code[again + 3] else np.int64(-1)
                    pc = again + 4
    return np.int64(GOOD if at == size else WRONG), np.int64(rows.shape[0])
