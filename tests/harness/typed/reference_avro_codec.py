"""Random Avro schemas and values, a reference encoder, and the expected columns.

A value of a union is a `Branch`; numbers and bytes are those of the physical type, without the logical type.
"""

import struct
import uuid
from itertools import count
from typing import Any, NamedTuple

from hypothesis import strategies as st

from lakestream.schemas.avro.types import Array, AvroType, EnumOf, Fixed, Map, Plain, Record, Union, is_null

NO_COLUMN = object()
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
INTS = st.integers(-(2**31), 2**31 - 1) | st.integers(-300, 300)
DAY_MS = 86_400_000


class Branch(NamedTuple):
    place: int
    value: Any


# Schemas

PLAIN: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    *({"type": "long", "logicalType": f"{name}"} for name in ("time-micros", "timestamp-millis", "timestamp-micros")),
    *({"type": "long", "logicalType": f"{name}"} for name in ("timestamp-nanos", "local-timestamp-millis")),
    *({"type": "long", "logicalType": f"{name}"} for name in ("local-timestamp-micros", "local-timestamp-nanos")),
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    {"type": "bytes", "logicalType": "decimal", "precision": 40},
]


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """Schemas as JSON, with recursive records."""
    numbers = count()

    def made(depth: int, open_: tuple[str, ...], *, in_union: bool = False) -> Any:
        kinds = ["plain"] * 4 + ["enum", "fixed"]
        if depth:
            kinds += ["array", "map", "record", "record"]
            if not in_union:
                kinds += ["optional", "optional", "union"]
        if open_:
            kinds.append("itself")
        kind = draw(st.sampled_from(kinds))
        name = f"N{next(numbers)}"
        match kind:
            case "plain":
                return draw(st.sampled_from(PLAIN))
            case "enum":
                return {"type": "enum", "name": name, "symbols": [f"S{n}" for n in range(draw(st.integers(1, 5)))]}
            case "fixed":
                return draw(fixed(name))
            case "array":
                return {"type": "array", "items": made(depth - 1, open_)}
            case "map":
                return {"type": "map", "values": made(depth - 1, open_)}
            case "optional":
                other = made(depth - 1, open_, in_union=True)
                both = ["null", other] if draw(st.booleans()) else [other, "null"]
                return both if _is_union(both) else other
            case "union":
                branches = [made(depth - 1, open_, in_union=True) for _ in range(draw(st.integers(1, 4)))]
                return branches if _is_union(branches) else branches[0]
            case "record":
                return record(name, depth, open_)
            case _:
                # Only in an optional field, so that values are finite.
                return ["null", open_[-1]] if not in_union else draw(st.sampled_from(PLAIN))

    def record(name: str, depth: int, open_: tuple[str, ...]) -> Any:
        parts = [made(depth - 1, (*open_, name)) for _ in range(draw(st.integers(0, 4)))]
        return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": p} for n, p in enumerate(parts)]}

    return record("Top", 3, ()) if draw(st.integers(0, 3)) else made(3, ())


@st.composite
def fixed(draw: st.DrawFn, name: str) -> Any:
    kind = draw(st.sampled_from(["plain", "uuid", "decimal"]))
    if kind == "uuid":
        return {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}
    if kind == "decimal":
        size = draw(st.integers(1, 20))
        digits = max(1, int((8 * size - 1) * 0.30102))
        return {"type": "fixed", "name": name, "size": size, "logicalType": "decimal", "precision": digits}
    return {"type": "fixed", "name": name, "size": draw(st.integers(0, 5))}


def _is_union(branches: list[Any]) -> bool:
    names = [b if isinstance(b, str) else b.get("name", b["type"]) for b in branches if not isinstance(b, list)]
    return len(names) == len(branches) == len(set(names))


# Values


def values(type_: AvroType, depth: int = 6) -> st.SearchStrategy[Any]:
    match type_:
        case Plain():
            return _plain_values(type_)
        case Fixed(size=size):
            return st.binary(min_size=size, max_size=size)
        case EnumOf(symbols=symbols):
            return st.sampled_from(symbols)
        case Array(items):
            return st.lists(values(items, depth - 1), max_size=3 if depth > 0 else 0)
        case Map(inner):
            entries = st.tuples(st.text(max_size=15), values(inner, depth - 1))
            return st.lists(entries, max_size=3 if depth > 0 else 0, unique_by=lambda entry: entry[0])
        case Union(branches):
            places = list(range(len(branches)))
            nulls = [place for place in places if is_null(branches[place])]
            chosen = nulls if depth <= 0 and nulls else places
            return st.sampled_from(chosen).flatmap(
                lambda place: values(branches[place], depth - 1).map(lambda value: Branch(place, value))
            )
        case Record():
            return st.fixed_dictionaries({part.name: values(part.type, depth - 1) for part in type_.fields})


def _plain_values(type_: Plain) -> st.SearchStrategy[Any]:
    name = type_.logical.name if type_.logical else ""
    match type_.kind, name:
        case "null", _:
            return st.none()
        case "boolean", _:
            return st.booleans()
        case "int", "time-millis":
            return st.integers(0, DAY_MS - 1) | INTS
        case "int", _:
            return INTS
        case "long", "time-micros":
            return st.integers(0, 1000 * DAY_MS - 1) | LONGS
        case "long", _:
            return LONGS
        case "float", _:
            return st.floats(width=32, allow_nan=False)
        case "double", _:
            return st.floats(allow_nan=False)
        case "bytes", "decimal":
            return st.binary(max_size=18) | st.integers(-99_999, 99_999).map(big_endian)
        case "string", "uuid":
            return st.uuids().map(str) | st.uuids().map(str).map(str.upper) | st.text(max_size=36)
        case "string", _:
            return st.text(max_size=20)
        case _:
            return st.binary(max_size=20)


def big_endian(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


# Written


def long(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def sized(data: bytes) -> bytes:
    return long(len(data)) + data


def written(type_: AvroType, value: Any) -> bytes:
    match type_:
        case Plain(kind):
            return _written_plain(kind, value)
        case Fixed():
            return bytes(value)
        case EnumOf(symbols=symbols):
            return long(symbols.index(value))
        case Array(items):
            return blocks([written(items, one) for one in value])
        case Map(inner):
            return blocks([sized(key.encode()) + written(inner, one) for key, one in value])
        case Union(branches):
            return long(value.place) + written(branches[value.place], value.value)
        case Record():
            return b"".join(written(part.type, value[part.name]) for part in type_.fields)


def blocks(items: list[bytes]) -> bytes:
    return (long(len(items)) + b"".join(items) if items else b"") + long(0)


def _written_plain(kind: str, value: Any) -> bytes:
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return long(value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return sized(value.encode())
        case _:
            return sized(value)


# Expected columns


def expected_columns(type_: AvroType, value: Any, open_: tuple[int, ...] = ()) -> Any:
    """Returns the columns in the form of `column_buffers.value_of`. NO_COLUMN: the type has no column."""
    match type_:
        case Plain() | Fixed():
            return _expected_leaf(type_, value)
        case EnumOf():
            return value
        case Array(items):
            return NO_COLUMN if has_no_column(items, open_) else [expected_columns(items, one, open_) for one in value]
        case Map(inner):
            return (
                NO_COLUMN
                if has_no_column(inner, open_)
                else [(key, expected_columns(inner, one, open_)) for key, one in value]
            )
        case Union(branches):
            others = [place for place, branch in enumerate(branches) if not is_null(branch)]
            if len(others) == 1:
                chosen = branches[others[0]]
                found = None if value.place != others[0] else expected_columns(chosen, value.value, open_)
                return NO_COLUMN if has_no_column(chosen, open_) else found
            if has_no_column(type_, open_):
                return NO_COLUMN
            if is_null(branches[value.place]):
                return None
            return Chosen(expected_columns(branches[value.place], value.value, open_))
        case Record():
            if has_no_column(type_, open_):
                return NO_COLUMN
            inside = (*open_, id(type_))
            found = {part.name: expected_columns(part.type, value[part.name], inside) for part in type_.fields}
            return {name: one for name, one in found.items() if one is not NO_COLUMN}


class Chosen(NamedTuple):
    """Value of a union of several types: a struct in which at most one field is not null."""

    value: Any


def matches(found: Any, expected: Any) -> bool:
    match expected:
        case Chosen(value):
            if not isinstance(found, dict):
                return False
            there = [one for one in found.values() if one is not None]
            if value is NO_COLUMN or value is None:
                return not there
            return len(there) == 1 and matches(there[0], value)
        case dict():
            return (
                isinstance(found, dict)
                and found.keys() == expected.keys()
                and all(matches(found[n], expected[n]) for n in expected)
            )
        case list():
            return isinstance(found, list) and len(found) == len(expected) and all(map(matches, found, expected))
        case (str(key), value):
            return bool(found[0] == key) and matches(found[1], value)
        case _:
            return bool(found == expected)


def has_no_column(type_: AvroType, open_: tuple[int, ...]) -> bool:
    match type_:
        case Plain("null") | Fixed(size=0):
            return True
        case Array(inner) | Map(inner):
            return has_no_column(inner, open_)
        case Union(branches):
            return all(has_no_column(branch, open_) for branch in branches)
        case Record():
            inside = (*open_, id(type_))
            return id(type_) in open_ or all(has_no_column(part.type, inside) for part in type_.fields)
        case _:
            return False


def _expected_leaf(type_: Plain | Fixed, value: Any) -> Any:
    if has_no_column(type_, ()):
        return NO_COLUMN
    logical = type_.logical
    match logical.name if logical else "":
        case "time-millis":
            return value * 1000 if 0 <= value < DAY_MS else None
        case "time-micros":
            return value if 0 <= value < 1000 * DAY_MS else None
        case "timestamp-millis" | "local-timestamp-millis":
            return value * 1000 if abs(value) <= (2**63 - 1) // 1000 else None
        case "timestamp-nanos" | "local-timestamp-nanos":
            return value // 1000
        case "decimal" if logical is not None and logical.precision <= 38:
            number = int.from_bytes(value, "big", signed=True)
            return number if value and abs(number) < 10**logical.precision else None
        case "uuid" if isinstance(value, str):
            return _uuid(value)
    if isinstance(type_, Plain) and type_.kind in ("float", "double"):
        kinds = ("<f", "<I") if type_.kind == "float" else ("<d", "<q")
        return struct.unpack(kinds[1], struct.pack(kinds[0], value))[0]
    return int(value) if isinstance(value, bool) else value


def _uuid(text: str) -> bytes | None:
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found.bytes if str(found) == text.lower() else None
