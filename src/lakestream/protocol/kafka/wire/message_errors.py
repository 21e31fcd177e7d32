"""Finds the field of a mapping that does not fit its message, after message_writer.py has failed.

The generated writers check nothing, so this checks all fields, slowly, and stops at the first error. The cause is
always a bug of a handler, never a client.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from lakestream.protocol.kafka.wire.message_schema import Shape, Slot

_RANGES: Final = {
    "int8": range(-(2**7), 2**7),
    "int16": range(-(2**15), 2**15),
    "int32": range(-(2**31), 2**31),
    "int64": range(-(2**63), 2**63),
    "uint8": range(2**8),
    "uint16": range(2**16),
    "uint32": range(2**32),
    "uint64": range(2**64),
    "error_code": range(-(2**15), 2**15),
    "timedelta_i32": range(-(2**31), 2**31),
    "timedelta_i64": range(-(2**63), 2**63),
    "datetime_i64": range(-(2**63), 2**63),
}
_LEGACY_STRING_MAX: Final = 2**15 - 1


def find_bad_field(shape: Shape, body: Mapping[str, Any]) -> str | None:
    """Returns the path of the field with its error, or None if all fields fit."""
    return next(_check_struct(shape, body, ""), None)


def _check_struct(shape: Shape, body: Any, path: str) -> Iterator[str]:
    if not isinstance(body, Mapping):
        yield f"{path or 'the body'} must be a mapping, not {_shown(body)}"
        return
    prefix = f"{path}." if path else ""
    for slot in shape.slots:
        yield from _check_slot(slot, shape.flexible, body.get(slot.name, slot.default), prefix + slot.name)
    for slot in shape.tagged:
        if (value := body.get(slot.name)) is not None:
            yield from _check_slot(slot, shape.flexible, value, prefix + slot.name)


def _check_slot(slot: Slot, flexible: bool, value: Any, path: str) -> Iterator[str]:
    if value is None:
        if not slot.nullable:
            yield f"{path} must not be null"
    elif slot.array:
        yield from _check_array(slot, flexible, value, path)
    elif slot.shape is not None:
        yield from _check_struct(slot.shape, value, path)
    elif expected := _expected(slot.kind, flexible, value):
        yield f"{path} must be {expected}, not {_shown(value)}"


def _check_array(slot: Slot, flexible: bool, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        yield f"{path} must be a list, not {_shown(value)}"
        return
    for index, item in enumerate(value):
        yield from _check_slot(slot.item(), flexible, item, f"{path}[{index}]")


def _expected(kind: str, flexible: bool, value: Any) -> str | None:
    """Returns the expected kind of value, or None if the value is one."""
    if kind in _RANGES:
        allowed = _RANGES[kind]
        fits = isinstance(value, int) and value in allowed
        return None if fits else f"a whole number from {allowed.start} to {allowed.stop - 1} ({kind})"
    if kind == "bool":
        return None if value in (True, False) else "true or false"
    if kind == "float64":
        return None if isinstance(value, int | float) else "a number"
    if kind == "uuid":
        return None if isinstance(value, UUID) else "a UUID"
    if kind == "string":
        return _expected_string(flexible, value)
    return None if isinstance(value, bytes | bytearray | memoryview) else "bytes"


def _expected_string(flexible: bool, value: Any) -> str | None:
    if not isinstance(value, str):
        return "a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "a string that can be encoded in UTF-8"
    too_long = not flexible and size > _LEGACY_STRING_MAX
    return f"a string of at most {_LEGACY_STRING_MAX} bytes" if too_long else None


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
