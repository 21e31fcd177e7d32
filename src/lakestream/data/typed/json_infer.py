"""Columns for JSON without a schema: the shape is found in the values, and grows with them.

    sample ──▶ sights (Python) ──▶ parts and style ──▶ read all values by them (kernels) ──▶ which have something else?
      ▲                                                                                              │
      └──────────────────────────────────────────────────────────────────────────────────────────────┘

What a table has stays: a key that brings a value of another type gets one more column (`x_string` beside `x`); a whole
number that becomes a fraction as well, since no column can turn from long to double. Keys that were always null, or an
empty list, are known, but have no column before they have a value.

An inferred shape is written down as a JSON Schema, so that all writers are read in the same way.
"""

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located
from lakestream.data.typed import kernels_json_read as read
from lakestream.data.typed.json_codec import JsonCodec, JsonDecoded, json_codec, part_of_text
from lakestream.data.typed.json_sight import KEYS_MAX, PARTS_MAX, Budget, Sight, Spelling, parsed, size_of
from lakestream.data.typed.json_style import PYTHON, Manner, Style, written
from lakestream.data.typed.kernels_values import differing
from lakestream.model import KiB, MiB
from lakestream.schemas.json.parts import (
    NOTHING,
    Many,
    Named,
    Part,
    Read,
    Record,
    Scalar,
    Variant,
    json_of,
    shape_of,
)
from lakestream.schemas.model import Format
from lakestream.schemas.shape import Struct
from lakestream.schemas.writers import Writer

SAMPLE_COUNT: Final = 1_000
SAMPLE_SIZE: Final = 4 * MiB
VALUE_SIZE_MAX: Final = 256 * KiB
"""Larger ones are not looked at by Python."""
_GOLDEN: Final = 0.618033988749895
LOOKS_MAX: Final = 4
STYLES_MAX: Final = 16
STYLE_SHARE_MIN: Final = 0.01
"""Of all values, that a further style has to give back."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What becomes a writer."""

    text: str
    """A JSON Schema."""
    style: str
    shape: Struct


def infer(values: Located, known: Part = NOTHING) -> Learnt | None:
    """The shape of these values, and how they are written; `known`: what the table has columns for already.

    None: there is no column in them yet, or none of them is JSON.
    """
    looks = _Looks(values, objects_only=_are_objects(values, known))
    looks.at(np.flatnonzero(values.size >= 0))
    part = _bounded(known, looks.root.whole())
    for _ in range(LOOKS_MAX - 1):
        if not looks.root.has_columns():
            return None
        odd = _odd(JsonCodec(part).decode(values))
        if not odd.size or not looks.at(odd):
            break
        wider = _bounded(part, looks.root.whole())
        if wider == part:
            break
        part = wider
    style = looks.style()
    return Learnt(described(part), written(replace(style, root=_pruned(style.root, part))), shape_of(part))


def _are_objects(values: Located, known: Part) -> bool:
    """Then a stray number or list is none of the topic's values, and keeps its bytes. If it were one, all columns would
    have to be below another one, to leave room for it."""
    if known.variants:
        return all(isinstance(variant, Record) for variant in known.variants)
    sample = [place for place in range(min(len(values.size), SAMPLE_COUNT)) if 0 < values.size[place] <= VALUE_SIZE_MAX]
    return 2 * sum(_is_object(_text(values, place)) for place in sample) >= len(sample)


def _is_object(text: bytes) -> bool:
    return text.lstrip()[:1] == b"{"


def _text(values: Located, place: int) -> bytes:
    return ctypes.string_at(int(values.address[place]), int(values.size[place]))


def _bounded(known: Part, seen: Part) -> Part:
    """What is too much for a table does not grow."""
    wider = grown(known, seen)
    return wider if size_of(wider) <= PARTS_MAX else known


def _pruned(manner: Manner, part: Part) -> Manner:
    """Without what says nothing of these parts."""
    keys, each = {}, None
    for variant in part.variants:
        match variant:
            case Record(inner):
                parts = dict(inner)
                keys = {key: _pruned(one, parts[key]) for key, one in manner.keys.items() if key in parts}
            case Named(value):
                each = _pruned(next(iter(manner.keys.values()), Manner()), value)
            case Many(element):
                each = _pruned(manner.each or Manner(), element)
    has_doubles = Scalar(Read.DOUBLE) in part.variants
    return Manner(manner.void, manner.double if has_doubles else PYTHON, keys=keys, each=each)


def style_of(values: Located) -> str:
    """How these values are written, whatever their schema is. Empty: they are no JSON."""
    looks = _Looks(values)
    looks.at(np.flatnonzero(values.size >= 0))
    return written(looks.style()) if looks.seen else ""


def wanted(left: Located, total: int, writers: Sequence[Writer]) -> Learnt | None:
    """What a table should know besides its writers of plain JSON, the newest last, so that more of the values have
    columns or come back from them; None: nothing.

    `left`: those of `total` values that none of the writers gives back.
    """
    if not writers:
        return infer(left)
    newest = writers[-1]
    known = part_of_text(newest.text)
    odd = _odd(JsonCodec(known).decode(left))
    if odd.size and (wider := infer(left.picked(odd), known)) is not None and wider.text != newest.text:
        return wider
    if len(left.size) < STYLE_SHARE_MIN * total or len(writers) >= STYLES_MAX:
        return None
    other = infer(left, known)
    if other is None or any((one.text, one.style) == (other.text, other.style) for one in writers):
        return None
    return other if _given_back(left, other) >= max(1, STYLE_SHARE_MIN * total) else None


def _odd(decoded: JsonDecoded) -> Longs:
    """Values with keys that are new, or with types that are new to their places."""
    return np.flatnonzero(decoded.strange | (decoded.problems >= read.MISFIT))


def _given_back(values: Located, learnt: Learnt) -> int:
    """How many of the values the style gives back."""
    writer = Writer(number=-1, format=Format.JSON.value, text=learnt.text, style=learnt.style)
    return int(given_back(values, json_codec(writer)).sum())


def given_back(values: Located, codec: JsonCodec) -> NDArray[np.bool_]:
    """Which values a codec writes just as they are."""
    decoded = codec.decode(values)
    encoded = codec.encode(decoded.frame)
    differs = np.empty(len(values.size), np.uint8)
    differing(values.address, values.size, encoded.address, encoded.size, differs)
    return np.asarray((differs == 0) & (values.size >= 0))


class _Looks:
    """Samples, and all that was seen in them."""

    def __init__(self, values: Located, *, objects_only: bool = False) -> None:
        self._objects_only: Final = objects_only
        self.root: Final = Sight()
        self.seen = 0
        self._spelling: Final = Spelling()
        self._budget: Final = Budget()
        self._values: Final = values
        self._done: Final[set[int]] = set()

    def at(self, places: Longs) -> bool:
        """Look at some of these. False: there was nothing that was not looked at before."""
        chosen = [place for place in places[_spread(len(places))].tolist() if place not in self._done]
        room = SAMPLE_SIZE
        for place in chosen:
            self._done.add(place)
            size = int(self._values.size[place])
            if size > VALUE_SIZE_MAX or room < 0:
                continue
            room -= size
            self._look(ctypes.string_at(int(self._values.address[place]), size))
        return bool(chosen)

    def _look(self, text: bytes) -> None:
        if self._objects_only and not _is_object(text):
            return
        try:
            value = parsed(text)
        except (ValueError, RecursionError):
            return
        self.root.see(value, self._budget)
        self._spelling.see(text)
        self.seen += 1

    def style(self) -> Style:
        return self._spelling.style(self.root)


def _spread(count: int) -> Longs:
    """Some of so many, all over them, at no even distance: what comes at even distances may be of one kind."""
    if count <= SAMPLE_COUNT:
        return np.arange(count)
    parts = np.arange(SAMPLE_COUNT) * _GOLDEN % 1
    return np.unique((parts * count).astype(np.int64))


# Growing


def grown(known: Part, seen: Part) -> Part:
    """With columns for what was seen, all that was known as it is."""
    if Scalar(Read.RAW) in known.variants or known == seen:
        return known
    if not known.variants:
        return seen
    variants = list(known.variants)
    for variant in seen.variants:
        place = next((at for at, one in enumerate(variants) if _is_at_home(variant, one)), None)
        if place is not None:
            variants[place] = _grown(variants[place], variant)
        elif variant != Scalar(Read.RAW):
            variants.append(variant)
    return Part(tuple(variants))


def _is_at_home(variant: Variant, one: Variant) -> bool:
    """Whether values of it have that column already."""
    return json_of(variant) == json_of(one) or (json_of(variant), json_of(one)) == ("integer", "number")


def _grown(known: Variant, seen: Variant) -> Variant:
    """Lists and maps have one type and keep it; records in them grow."""
    match known, seen:
        case Record(mine), Record(theirs):
            keys = dict(mine)
            for key, part in theirs:
                if key in keys:
                    keys[key] = grown(keys[key], part)
                elif len(keys) < KEYS_MAX:
                    keys[key] = part
            return Record(tuple(keys.items()))
        case Many(mine), Many(theirs):
            return Many(_inside(mine, theirs))
        case Named(mine), Named(theirs):
            return Named(_inside(mine, theirs))
        case _:
            return known


def _inside(known: Part, seen: Part) -> Part:
    wider = grown(known, seen)
    return wider if len(wider.variants) == 1 else Part(wider.variants[:1])


# Written down


def described(part: Part) -> str:
    """A JSON Schema that is read as just these parts."""
    schema: dict[str, Any] | bool = _schema(part)
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _schema(part: Part) -> dict[str, Any] | bool:
    if Scalar(Read.RAW) in part.variants:
        return True
    types = [json_of(variant) for variant in part.variants]
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types or "null"}
    for variant in part.variants:
        match variant:
            case Record(keys):
                schema["properties"] = {key: _schema(inner) for key, inner in keys}
            case Named(value):
                schema["additionalProperties"] = _schema(value)
            case Many(element):
                schema["items"] = _schema(element)
    return schema
