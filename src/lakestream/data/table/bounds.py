"""What a file's footer says of a column, as Iceberg keeps it: bounds in its single-value serialisation. Pure.

Used by parquet.py when a file is closed. A bound may be wider than the values, never narrower: where it cannot be told
there is none.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.single_value import single_value as single_value

TEXT_MAX: Final = 16
"""Characters, or bytes, of a bound: as long as Iceberg's own libraries keep them."""
_CHARACTER_MAX: Final = 0x10FFFF
_SURROGATE_FIRST, _SURROGATE_LAST = 0xD800, 0xDFFF

Bounds: TypeAlias = tuple[bytes | None, bytes | None]
NO_BOUNDS: Final[Bounds] = (None, None)


def has_bounds(kind: Primitive) -> bool:
    """UUIDs have none: libraries do not agree on which of two is the smaller one, and would pass over rows."""
    return kind.kind is not Kind.UUID


def bounds_of(kind: Primitive, chunks: Sequence[Any]) -> Bounds:
    """Of the chunks of one column in all row groups, as the footer has them."""
    said = [_said(chunk, kind) for chunk in chunks]
    if any(one is None for one in said):
        return NO_BOUNDS
    found = [one for one in said if one]
    if not found:
        return NO_BOUNDS
    return _lower(kind, min(low for low, _ in found)), _upper(kind, max(high for _, high in found))


def _said(chunk: Any, kind: Primitive) -> tuple[Any, ...] | None:
    """Its lowest and its highest value; none, if all are null, or no numbers. None: it does not tell."""
    told = chunk.statistics
    if told is None:
        return None
    if not told.has_min_max:
        # Values that are too long for a footer are not told either; NaN is no bound.
        is_void = told.null_count == chunk.num_values or kind.kind in (Kind.FLOAT, Kind.DOUBLE)
        return () if is_void else None
    return tuple(_number(kind, raw) for raw in (told.min_raw, told.max_raw))


def _number(kind: Primitive, raw: Any) -> Any:
    """Decimals lie in the file as numbers where they fit, else as bytes."""
    if kind.kind is Kind.DECIMAL and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _lower(kind: Primitive, value: Any) -> bytes | None:
    match kind.kind:
        case Kind.STRING:
            text = _text(value)
            return None if text is None else text[:TEXT_MAX].encode()
        case Kind.BINARY | Kind.FIXED:
            return bytes(value[:TEXT_MAX])
    return single_value(kind, value)


def _upper(kind: Primitive, value: Any) -> bytes | None:
    """What was cut off makes it larger: so the last character that can be is."""
    match kind.kind:
        case Kind.STRING:
            text = _text(value)
            if text is None or len(text) <= TEXT_MAX:
                return None if text is None else text.encode()
            return _raised([ord(character) for character in text[:TEXT_MAX]], _next_character, _encoded)
        case Kind.BINARY | Kind.FIXED:
            if len(value) <= TEXT_MAX:
                return bytes(value)
            return _raised(list(value[:TEXT_MAX]), lambda byte: byte + 1 if byte < 0xFF else None, bytes)
    return single_value(kind, value)


def _raised(parts: list[int], after: Callable[[int], int | None], whole: Callable[[list[int]], bytes]) -> bytes | None:
    while parts:
        raised = after(parts.pop())
        if raised is not None:
            return whole([*parts, raised])
    return None


def _next_character(character: int) -> int | None:
    if character == _CHARACTER_MAX:
        return None
    return character + 1 if character + 1 != _SURROGATE_FIRST else _SURROGATE_LAST + 1


def _encoded(characters: list[int]) -> bytes:
    return "".join(map(chr, characters)).encode()


def _text(raw: bytes) -> str | None:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        return None
