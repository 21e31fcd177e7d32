"""Statistics of JSON samples, place by place: which types of values occur, and how they are formatted.

Python parses at most a thousand values per call (`schema_inference.py` chooses them); kernels check all the others.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from lakestream.data.typed.json import write_kernels as write
from lakestream.data.typed.json.text_style import DOUBLES, MomentForm, NumberAndDateFormat, Style, format_double
from lakestream.schemas.json.json_types import (
    NOTHING,
    RAW,
    ArrayType,
    Conversion,
    JsonType,
    JsonTypeUnion,
    MapType,
    RecordType,
    ScalarType,
    as_single_type,
    union_of,
)

TEXTS_MAX: Final = 64
"""Numbers and formats of times from which the format of a place is inferred."""
INTEGERS_MAX: Final = 4
"""Integers only show that whole numbers have no point, so few are enough."""
DOUBLES_MAX: Final = 1_000
KEYS_MAX: Final = 1_000
"""Of one record. More keys are data and get no columns."""
MAP_KEYS_MIN: Final = 200
MAP_FILL_MAX: Final = 0.1
"""Objects with more different keys than MAP_KEYS_MIN, of which each has a smaller share than this, are maps."""
PLACES_MAX: Final = 20_000
"""Places with their own statistics; keys beyond these are ignored."""
PARTS_MAX: Final = 2_000
"""Approximate limit of the columns of one shape."""
_KEYS_INSIDE: Final = (KEYS_MAX, 200, 50, 10)
"""Limits for the keys of a nested record, tried until the shape is small enough; larger records become text."""
DEPTH_MAX: Final = 30
_LONG_MAX: Final = 2**63 - 1

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_MOMENT: Final = re.compile(r"(?:\d{4}-\d\d-\d\d([T ]))?\d\d:\d\d:\d\d(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?")
_MARKS: Final = {b"/": "slashes", b"b": "short", b"f": "short"}
_TELLING: Final = re.compile(r"^-?\d+$|\.0$|[eE]|^-?0\.000|^-?\d{7}")
"""Numbers that programs format differently."""
_HTML: Final = {0x26, 0x3C, 0x3E, 0x2028, 0x2029}


class _Object(list[tuple[str, Any]]):
    """Keys and values in order, with duplicates."""


class _Float(str):
    """Text of a number that is not an integer."""


def parsed(text: bytes) -> Any:
    """Parses a sample. ValueError: invalid JSON; RecursionError: nested too deep."""
    return json.loads(text, object_pairs_hook=_Object, parse_float=_Float, parse_constant=_no_number)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


@dataclass(slots=True)
class Budget:
    """Number of places that may still get their own statistics."""

    left: int = PLACES_MAX

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


@dataclass(slots=True)
class SampleStats:
    """Statistics of one place."""

    kinds: dict[str, None] = field(default_factory=dict)
    """JSON types in order of appearance; empty objects and arrays do not count."""
    voids: Counter[str] = field(default_factory=Counter)
    """Counts of null and of empty arrays and objects."""
    texts: list[str] = field(default_factory=list)
    moments: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """Separator of date and time, digits of the second, zone."""
    objects: int = 0
    key_count: int = 0
    """Of all objects together."""
    keys: dict[str, "SampleStats"] = field(default_factory=dict)
    neighbours: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Pairs of adjacent keys."""
    present: Counter[str] = field(default_factory=Counter)
    others: "SampleStats | None" = None
    """Of keys beyond KEYS_MAX."""
    each: "SampleStats | None" = None

    def add(self, value: Any, budget: Budget, depth: int = 0) -> None:
        if depth > DEPTH_MAX:
            self.kinds["any"] = None
            return
        match value:
            case None:
                self.voids["null"] += 1
            case bool():
                self.kinds["boolean"] = None
            case int():
                self._add_number(str(value), "integer" if -_LONG_MAX - 1 <= value <= _LONG_MAX else "number")
            case _Float():
                self._add_number(str(value), "number")
            case str():
                self.kinds["string"] = None
                if (found := _MOMENT.fullmatch(value)) and len(self.moments) < TEXTS_MAX:
                    self.moments[found[1] or "", len(found[2] or ""), found[3] or ""] += 1
            case _Object():
                self._add_object(value, budget, depth)
            case list():
                self._add_array(value, budget, depth)

    def _add_number(self, text: str, kind: str) -> None:
        self.kinds[kind] = None
        enough = INTEGERS_MAX if kind == "integer" else TEXTS_MAX
        if len(self.texts) < enough and _TELLING.search(text):
            self.texts.append(text)

    def _add_array(self, value: list[Any], budget: Budget, depth: int) -> None:
        if not value:
            self.voids["[]"] += 1
            return
        self.kinds["array"] = None
        if self.each is None:
            self.each = SampleStats()
        for element in value:
            self.each.add(element, budget, depth + 1)

    def _add_object(self, value: _Object, budget: Budget, depth: int) -> None:
        self.objects += 1
        if not value:
            self.voids["{}"] += 1
            return
        self.kinds["object"] = None
        before: str | None = None
        for key, inner in value:
            if key not in self.keys:
                if len(self.keys) >= KEYS_MAX:
                    self.others = self.others or SampleStats()
                    self.others.add(inner, budget, depth + 1)
                    continue
                if not budget.take():
                    continue
                self.keys[key] = SampleStats()
            self.keys[key].add(inner, budget, depth + 1)
            self.present[key] += 1
            self.key_count += 1
            if before is not None:
                self.neighbours[before, key] += 1
            before = key

    # Results

    def has_columns(self) -> bool:
        """Returns whether any value, at any depth, is neither null nor empty."""
        if self.each is not None and self.each.has_columns():
            return True
        if any(stats.has_columns() for stats in self.keys.values()):
            return True
        return bool(self.kinds.keys() - {"object", "array"})

    def whole(self) -> JsonTypeUnion:
        """Returns the JSON types of all samples, reduced to what a table can have columns for."""
        return next((part for keys in _KEYS_INSIDE if size_of(part := self.part(keys)) <= PARTS_MAX), RAW)

    def part(self, keys_inside: int, depth: int = 0) -> JsonTypeUnion:
        if "any" in self.kinds or (depth and len(self.keys) > keys_inside and not self._is_map()):
            return RAW
        kinds = [kind for kind in self.kinds if kind != "integer" or "number" not in self.kinds]
        variants = [self._variant(kind, keys_inside, depth) for kind in kinds]
        return RAW if ScalarType(Conversion.RAW) in variants else JsonTypeUnion(tuple(variants))

    def _variant(self, kind: str, keys_inside: int, depth: int) -> JsonType:
        match kind:
            case "boolean":
                return ScalarType(Conversion.BOOLEAN)
            case "integer":
                return ScalarType(Conversion.LONG)
            case "number":
                return ScalarType(Conversion.DOUBLE)
            case "string":
                return ScalarType(Conversion.STRING)
            case "array":
                return ArrayType(as_single_type((self.each or SampleStats()).part(keys_inside, depth + 1)))
            case _:
                return self._object(keys_inside, depth)

    def _object(self, keys_inside: int, depth: int) -> JsonType:
        parts = {key: stats.part(keys_inside, depth + 1) for key, stats in self.keys.items()}
        if self._is_map():
            value = NOTHING if self.others is None else self.others.part(keys_inside, depth + 1)
            for part in parts.values():
                value = union_of(value, part)
                if size_of(value) > KEYS_MAX:
                    value = RAW
                    break
            return MapType(as_single_type(value))
        if not any(part.variants for part in parts.values()):
            return ScalarType(Conversion.RAW)
        return RecordType(tuple((key, parts[key]) for key in self.order()))

    def order(self) -> list[str]:
        """Returns the keys in the order of most samples; where these contradict, in order of appearance."""
        predecessors: dict[str, set[str]] = {key: set() for key in self.keys}
        for (one, other), count in self.neighbours.items():
            if count > self.neighbours[other, one]:
                predecessors[other].add(one)
        ordered: dict[str, None] = {}
        waiting = dict.fromkeys(self.keys)
        while waiting:
            ready = next((key for key in waiting if predecessors[key] <= ordered.keys()), None)
            chosen = next(iter(waiting)) if ready is None else ready
            ordered[chosen] = waiting.pop(chosen)
        return list(ordered)

    def _is_map(self) -> bool:
        if self.others is not None:
            return True
        return len(self.keys) > MAP_KEYS_MIN and self.key_count < MAP_FILL_MAX * self.objects * len(self.keys)

    def place_format(self, double: str, missing: int = 0) -> NumberAndDateFormat:
        """Returns the format. `double`: default format of doubles. `missing`: number of objects without the key."""
        voids = Counter(self.voids)
        if "object" in self.kinds:
            del voids["{}"]
        if "array" in self.kinds:
            del voids["[]"]
        voids[""] += missing
        void = max(voids, key=lambda one: (voids[one], bool(one)))
        keys = {key: self.keys[key].place_format(double, self.objects - self.present[key]) for key in self.order()}
        each = self.each.place_format(double) if self.each is not None else None
        return NumberAndDateFormat(
            void if voids[void] else "", _double_format_of(self.texts, double), self._moment(), keys, each
        )

    def doubles(self) -> Iterator[str]:
        """Yields the texts of doubles of all places that show their format."""
        if "number" in self.kinds:
            yield from self.texts
        for below in (*self.keys.values(), *((self.each,) if self.each is not None else ())):
            yield from below.doubles()

    def _moment(self) -> MomentForm:
        if not self.moments:
            return MomentForm()
        digits = {digits for _, digits, _ in self.moments}
        (gap, _, zone), _ = self.moments.most_common(1)[0]
        kind = write.AS_Z if zone == "Z" else write.AS_OFFSET if zone else write.NO_ZONE
        return MomentForm(_digits(digits), _minutes(zone), kind, ord(gap or "T"))


def size_of(part: JsonTypeUnion) -> int:
    """Returns the number of places, which is about the number of columns."""
    return 1 + sum(_size_of(variant) for variant in part.variants)


def _size_of(variant: JsonType) -> int:
    match variant:
        case RecordType(keys):
            return sum(size_of(inner) for _, inner in keys)
        case ArrayType(inner) | MapType(inner):
            return size_of(inner)
        case _:
            return 0


def _double_format_of(texts: Iterable[str], otherwise: str) -> str:
    """Returns the format that most of these doubles have; the default format if several have as many."""
    numbers = [(text, number) for text in texts if math.isfinite(number := float(text))]

    def hits(name: str) -> int:
        return sum(format_double(number, DOUBLES[name]) == text for text, number in numbers)

    return max((otherwise, *DOUBLES), key=hits)


def _digits(seen: set[int]) -> int:
    if len(seen) == 1 and max(seen) <= 6:
        return max(seen)
    if seen <= {0, 6}:
        return write.DIGITS_IF_ANY
    return write.DIGITS_IN_GROUPS if seen <= {0, 3, 6} else min(6, max(seen))


def _minutes(zone: str) -> int:
    if len(zone) != 6:
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[4:6])
    return -minutes if zone[0] == "-" else minutes


@dataclass(slots=True)
class TextStyleSamples:
    """Statistics of what is the same in a whole text: separators and escapes."""

    commas: Counter[str] = field(default_factory=Counter)
    colons: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)

    def add(self, text: bytes) -> None:
        bare = _STRINGS.sub(b'""', text)
        for separator, seen in ((b",", self.commas), (b":", self.colons)):
            at = bare.find(separator)
            if at >= 0:
                seen[f"{separator.decode()} " if bare[at + 1 : at + 2] == b" " else separator.decode()] += 1
        if b"\\" in text:
            for match in _ESCAPED.finditer(text):
                self._add_escape(match)
        if not text.isascii():
            self.marks["raw"] += 1

    def _add_escape(self, match: re.Match[bytes]) -> None:
        if match[1] is None:
            if match[2] in _MARKS:
                self.marks[_MARKS[match[2]]] += 1
            return
        code = int(match[1], 16)
        if code in (8, 12):
            self.marks["long"] += 1
        if code in _HTML:
            self.marks["html"] += 1
        elif code >= 127:
            self.marks["ascii"] += 1
        if match[1] != match[1].lower():
            self.marks["upper"] += 1
        elif match[1] != match[1].upper():
            self.marks["lower"] += 1

    def style(self, root: SampleStats) -> Style:
        """Returns the style. Unseen properties follow from the separators: only Python writes spaces and escapes."""
        comma = self.commas.most_common(1)[0][0] if self.commas else ", " if self._is(": ", self.colons) else ","
        colon = self.colons.most_common(1)[0][0] if self.colons else comma.replace(",", ":")
        marks = self.marks
        escapes = {
            name
            for name, against in (("upper", "lower"), ("slashes", "plain"), ("html", "plain"), ("long", "short"))
            if marks[name] > marks[against]
        }
        if marks["ascii"] > marks["raw"] or (not marks["raw"] and comma == ", "):
            escapes.add("ascii")
        place_format = root.place_format(
            _double_format_of(islice(root.doubles(), DOUBLES_MAX), "python" if comma == ", " else "js")
        )
        return Style(comma, colon, frozenset(escapes), replace(place_format, void="null"))

    @staticmethod
    def _is(one: str, seen: Counter[str]) -> bool:
        return bool(seen) and seen.most_common(1)[0][0] == one
