"""Which field of a mapping does not fit its message: asked only after writer.py has failed.

The fast path has no checks of its own, so this one looks at everything, slowly, and stops at the first mistake. It is
always a bug of a handler, never of a client.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from lakestream.protocol.kafka.schema import Shape, Slot

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


def find_mistake(shape: Shape, body: Mapping[str, Any]) -> str | None:
    """One line that names the field's path and what is wrong there; None if all of it fits."""
    return next(_in_struct(shape, body, ""), None)


def _in_struct(shape: Shape, body: Any, path: str) -> Iterator[str]:
    if not isinstance(body, Mapping):
        yield f"{path or 'the body'} must be a mapping, not {_shown(body)}"
        return
    prefix = f"{path}." if path else ""
    for slot in shape.slots:
        yield from _in_slot(slot, shape.flexible, body.get(slot.name, slot.default), prefix + slot.name)
    for slot in shape.tagged:
        if (value := body.get(slot.name)) is not None:
            yield from _in_slot(slot, shape.flexible, value, prefix + slot.name)


def _in_slot(slot: Slot, flexible: bool, value: Any, path: str) -> Iterator[str]:
    if value is None:
        if not slot.nullable:
            yield f"{path} must not be null"
    elif slot.array:
        yield from _in_array(slot, flexible, value, path)
    elif slot.shape is not None:
        yield from _in_struct(slot.shape, value, path)
    elif wrong := _wrong(slot.kind, flexible, value):
        yield f"{path} must be {wrong}, not {_shown(value)}"


def _in_array(slot: Slot, flexible: bool, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        yield f"{path} must be a list, not {_shown(value)}"
        return
    for index, item in enumerate(value):
        yield from _in_slot(slot.item(), flexible, item, f"{path}[{index}]")


def _wrong(kind: str, flexible: bool, value: Any) -> str | None:
    """What a value of this kind should have been, if it is not."""
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
        return _wrong_string(flexible, value)
    return None if isinstance(value, bytes | bytearray | memoryview) else "bytes"


def _wrong_string(flexible: bool, value: Any) -> str | None:
    if not isinstance(value, str):
        return "a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "a string that UTF-8 can hold"
    too_long = not flexible and size > _LEGACY_STRING_MAX
    return f"a string of at most {_LEGACY_STRING_MAX} bytes" if too_long else None


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
