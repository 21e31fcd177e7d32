"""Infers columns for JSON without a schema from the values, and widens them with new values.

    sample ──▶ statistics (Python) ──▶ types and style ──▶ decode all values (kernels) ──▶ values with other content
      ▲                                                                                            │
      └────────────────────────────────────────────────────────────────────────────────────────────┘

Existing columns stay. A key with a value of another type gets a further column (`x_string` besides `x`). So does a key
with integers that gets a fraction, because a column cannot change from long to double. A key whose values were always
null, or an empty list, gets no column before it has a value.

The inferred types are stored as a JSON Schema, so that all writer schemas are read in the same way.
"""

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.json import read_kernels as read
from lakestream.data.typed.json.codec import JsonCodec, json_codec, part_of_text
from lakestream.data.typed.json.samples import (
    KEYS_MAX,
    PARTS_MAX,
    Budget,
    SampleStats,
    TextStyleSamples,
    parsed,
    size_of,
)
from lakestream.data.typed.json.text_style import PYTHON, NumberAndDateFormat, Style, encode_style
from lakestream.data.typed.kernels.values import differing
from lakestream.model import KiB, MiB
from lakestream.schemas.json.json_types import (
    NOTHING,
    ArrayType,
    Conversion,
    JsonType,
    JsonTypeUnion,
    MapType,
    RecordType,
    ScalarType,
    json_type_of,
    shape_of,
)
from lakestream.schemas.model import Format
from lakestream.schemas.types import Struct
from lakestream.schemas.writer_schema import WriterSchema

SAMPLE_COUNT: Final = 1_000
SAMPLE_SIZE: Final = 4 * MiB
VALUE_SIZE_MAX: Final = 256 * KiB
"""Larger values are not sampled."""
_GOLDEN: Final = 0.618033988749895
PASSES_MAX: Final = 4
STYLES_MAX: Final = 16
STYLE_SHARE_MIN: Final = 0.01
"""Share of all values that a further style has to restore."""


@dataclass(frozen=True, slots=True)
class InferredJson:
    """An inferred schema."""

    text: str
    """A JSON Schema."""
    style: str
    shape: Struct


def infer(values: ByteSpans, known: JsonTypeUnion = NOTHING) -> InferredJson | None:
    """Returns the shape and style of these values. `known`: the types for which the table already has columns.

    None: no field has a value, or none of the values is JSON.
    """
    samples = _Samples(values, objects_only=_are_objects(values, known))
    samples.add(np.flatnonzero(values.size >= 0))
    part = _bounded(known, samples.root.whole())
    for _ in range(PASSES_MAX - 1):
        if not samples.root.has_columns():
            return None
        odd = _unmatched(JsonCodec(part), values)
        if not odd.size or not samples.add(odd):
            break
        wider = _bounded(part, samples.root.whole())
        if wider == part:
            break
        part = wider
    style = samples.style()
    return InferredJson(
        json_schema_of(part), encode_style(replace(style, root=_pruned(style.root, part))), shape_of(part)
    )


def _are_objects(values: ByteSpans, known: JsonTypeUnion) -> bool:
    """Returns whether the topic's values are objects.

    Then an occasional number or list keeps its bytes. If it had a column, all others would have to be nested.
    """
    if known.variants:
        return all(isinstance(variant, RecordType) for variant in known.variants)
    sample = [place for place in range(min(len(values.size), SAMPLE_COUNT)) if 0 < values.size[place] <= VALUE_SIZE_MAX]
    return 2 * sum(_is_object(_text(values, place)) for place in sample) >= len(sample)


def _is_object(text: bytes) -> bool:
    return text.lstrip()[:1] == b"{"


def _text(values: ByteSpans, place: int) -> bytes:
    return ctypes.string_at(int(values.address[place]), int(values.size[place]))


def _bounded(known: JsonTypeUnion, seen: JsonTypeUnion) -> JsonTypeUnion:
    """Returns the widened types, or the known ones if the widened ones are too many for a table."""
    wider = widened(known, seen)
    return wider if size_of(wider) <= PARTS_MAX else known


def _pruned(place_format: NumberAndDateFormat, part: JsonTypeUnion) -> NumberAndDateFormat:
    """Returns the format without the parts that do not apply to these types."""
    keys, each = {}, None
    for variant in part.variants:
        match variant:
            case RecordType(inner):
                parts = dict(inner)
                keys = {key: _pruned(one, parts[key]) for key, one in place_format.keys.items() if key in parts}
            case MapType(value):
                each = _pruned(next(iter(place_format.keys.values()), NumberAndDateFormat()), value)
            case ArrayType(element):
                each = _pruned(place_format.each or NumberAndDateFormat(), element)
    has_doubles = ScalarType(Conversion.DOUBLE) in part.variants
    return NumberAndDateFormat(place_format.void, place_format.double if has_doubles else PYTHON, keys=keys, each=each)


def style_of(values: ByteSpans) -> str:
    """Returns the text style of these values, which is independent of their schema. Empty: they are not JSON."""
    samples = _Samples(values)
    samples.add(np.flatnonzero(values.size >= 0))
    return encode_style(samples.style()) if samples.count else ""


def infer_next(left: ByteSpans, total: int, writers: Sequence[WriterSchema]) -> InferredJson | None:
    """Returns a further schema that gives more of the values columns or restores more of them; None: there is none.

    `left`: those of `total` values that no writer schema restores. `writers`: those of plain JSON, the newest last.
    """
    if not writers:
        return infer(left)
    newest = writers[-1]
    known = part_of_text(newest.text)
    odd = _unmatched(JsonCodec(known), left)
    if odd.size and (wider := infer(left.picked(odd), known)) is not None and wider.text != newest.text:
        return wider
    if len(left.size) < STYLE_SHARE_MIN * total or len(writers) >= STYLES_MAX:
        return None
    other = infer(left, known)
    if other is None or any((one.text, one.style) == (other.text, other.style) for one in writers):
        return None
    return other if _restored_count(left, other) >= max(1, STYLE_SHARE_MIN * total) else None


def _unmatched(codec: JsonCodec, values: ByteSpans) -> Longs:
    """Returns the values with new keys, or with types that are new at their places."""
    problems, has_unknown_keys = codec.checked(values)
    return np.flatnonzero(has_unknown_keys | (problems >= read.WRONG_TYPE))


def _restored_count(values: ByteSpans, inferred: InferredJson) -> int:
    """Returns how many of the values the inferred schema restores."""
    writer = WriterSchema(number=-1, format=Format.JSON.value, text=inferred.text, style=inferred.style)
    return int(restored(values, json_codec(writer)).sum())


def restored(values: ByteSpans, codec: JsonCodec) -> NDArray[np.bool_]:
    """Returns which values a codec restores byte for byte."""
    differs, done = np.empty(len(values.size), np.uint8), 0
    while done < len(differs):
        left = values.picked(np.arange(done, len(differs))) if done else values
        decoded = codec.decode(left)
        end = done + len(decoded.problems)
        encoded = codec.encode(decoded.buffers)
        left = left.first(end - done)
        differing(left.address, left.size, encoded.address, encoded.size, differs[done:end])
        done = end
    return np.asarray((differs == 0) & (values.size >= 0))


class _Samples:
    """Sampled values and their statistics."""

    def __init__(self, values: ByteSpans, *, objects_only: bool = False) -> None:
        self._objects_only: Final = objects_only
        self.root: Final = SampleStats()
        self.count = 0
        self._style: Final = TextStyleSamples()
        self._budget: Final = Budget()
        self._values: Final = values
        self._done: Final[set[int]] = set()

    def add(self, places: Longs) -> bool:
        """Samples some of these values. Returns False if all of them were sampled before."""
        chosen = [place for place in places[_spread(len(places))].tolist() if place not in self._done]
        room = SAMPLE_SIZE
        for place in chosen:
            self._done.add(place)
            size = int(self._values.size[place])
            if size > VALUE_SIZE_MAX or room < 0:
                continue
            room -= size
            self._add(ctypes.string_at(int(self._values.address[place]), size))
        return bool(chosen)

    def _add(self, text: bytes) -> None:
        if self._objects_only and not _is_object(text):
            return
        try:
            value = parsed(text)
        except (ValueError, RecursionError):
            return
        self.root.add(value, self._budget)
        self._style.add(text)
        self.count += 1

    def style(self) -> Style:
        return self._style.style(self.root)


def _spread(count: int) -> Longs:
    """Returns indexes spread over all values at irregular distances: values at equal distances may be of one kind."""
    if count <= SAMPLE_COUNT:
        return np.arange(count)
    parts = np.arange(SAMPLE_COUNT) * _GOLDEN % 1
    return np.unique((parts * count).astype(np.int64))


# Widening


def widened(known: JsonTypeUnion, seen: JsonTypeUnion) -> JsonTypeUnion:
    """Returns the known types, unchanged, with further ones for what was seen."""
    if ScalarType(Conversion.RAW) in known.variants or known == seen:
        return known
    if not known.variants:
        return seen
    variants = list(known.variants)
    for variant in seen.variants:
        place = next((at for at, one in enumerate(variants) if _has_column(variant, one)), None)
        if place is not None:
            variants[place] = _widened(variants[place], variant)
        elif variant != ScalarType(Conversion.RAW):
            variants.append(variant)
    return JsonTypeUnion(tuple(variants))


def _has_column(variant: JsonType, one: JsonType) -> bool:
    """Returns whether values of a type fit an existing column."""
    return json_type_of(variant) == json_type_of(one) or (json_type_of(variant), json_type_of(one)) == (
        "integer",
        "number",
    )


def _widened(known: JsonType, seen: JsonType) -> JsonType:
    """Widens one type. Lists and maps keep their element type; records in them are widened."""
    match known, seen:
        case RecordType(left_type), RecordType(right_type):
            keys = dict(left_type)
            for key, part in right_type:
                if key in keys:
                    keys[key] = widened(keys[key], part)
                elif len(keys) < KEYS_MAX:
                    keys[key] = part
            return RecordType(tuple(keys.items()))
        case ArrayType(left_type), ArrayType(right_type):
            return ArrayType(_widened_element(left_type, right_type))
        case MapType(left_type), MapType(right_type):
            return MapType(_widened_element(left_type, right_type))
        case _:
            return known


def _widened_element(known: JsonTypeUnion, seen: JsonTypeUnion) -> JsonTypeUnion:
    wider = widened(known, seen)
    return wider if len(wider.variants) == 1 else JsonTypeUnion(wider.variants[:1])


# As a JSON Schema


def json_schema_of(part: JsonTypeUnion) -> str:
    """Returns a JSON Schema that is parsed as exactly these types."""
    schema: dict[str, Any] | bool = _schema(part)
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _schema(part: JsonTypeUnion) -> dict[str, Any] | bool:
    if ScalarType(Conversion.RAW) in part.variants:
        return True
    types = [json_type_of(variant) for variant in part.variants]
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types or "null"}
    for variant in part.variants:
        match variant:
            case RecordType(keys):
                schema["properties"] = {key: _schema(inner) for key, inner in keys}
            case MapType(value):
                schema["additionalProperties"] = _schema(value)
            case ArrayType(element):
                schema["items"] = _schema(element)
    return schema
