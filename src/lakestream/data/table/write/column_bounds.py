"""Bounds of a column from a Parquet footer, in Iceberg's single-value serialization. Pure.

Used by parquet_writer.py when a file is closed. A bound may be wider than the values, never narrower. If the footer
lacks it, the column has no bounds.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from lakestream.schemas.single_value import single_value as single_value
from lakestream.schemas.types import Kind, Primitive

TEXT_MAX: Final = 16
"""Characters, or bytes, of a bound, as in Iceberg's own libraries."""
_CHARACTER_MAX: Final = 0x10FFFF
_SURROGATE_FIRST, _SURROGATE_LAST = 0xD800, 0xDFFF

Bounds: TypeAlias = tuple[bytes | None, bytes | None]
NO_BOUNDS: Final[Bounds] = (None, None)


def has_bounds(kind: Primitive) -> bool:
    """Returns False for UUIDs: libraries do not agree on their order, and would skip rows."""
    return kind.kind is not Kind.UUID


def bounds_of(kind: Primitive, chunks: Sequence[Any]) -> Bounds:
    """Returns the bounds of a column from its chunks in all row groups of a footer."""
    stated = [_footer_bounds(chunk, kind) for chunk in chunks]
    if any(one is None for one in stated):
        return NO_BOUNDS
    bounds = [one for one in stated if one]
    if not bounds:
        return NO_BOUNDS
    return _lower(kind, min(low for low, _ in bounds)), _upper(kind, max(high for _, high in bounds))


def _footer_bounds(chunk: Any, kind: Primitive) -> tuple[Any, ...] | None:
    """Returns the lowest and the highest value of a chunk; () if all are null or NaN; None if the footer lacks them."""
    statistics = chunk.statistics
    if statistics is None:
        return None
    if not statistics.has_min_max:
        # Footers also lack bounds that are too long; NaN is no bound.
        is_void = statistics.null_count == chunk.num_values or kind.kind in (Kind.FLOAT, Kind.DOUBLE)
        return () if is_void else None
    return tuple(_number(kind, raw) for raw in (statistics.min_raw, statistics.max_raw))


def _number(kind: Primitive, raw: Any) -> Any:
    """Decodes decimals, which are numbers in the file where they fit, else bytes."""
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
    """Returns an upper bound. If it is truncated, its last character that can be incremented is incremented."""
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
