"""What is seen in samples of JSON text, place by place: what may stand there, and in which manner it is written.

Python looks at a thousand values at most at a time (`json_infer.py` chooses them); the rest is done by kernels.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from lakestream.data.typed import kernels_json_write as write
from lakestream.data.typed.json_style import DOUBLES, Manner, MomentForm, Style, spelled
from lakestream.schemas.json.parts import NOTHING, RAW, Many, Named, Part, Read, Record, Scalar, Variant, joined, single

TEXTS_MAX: Final = 64
"""Numbers, and forms of moments, that the manner of a place is learnt from."""
INTEGERS_MAX: Final = 4
"""They tell one thing only: that whole numbers have no point."""
DOUBLES_MAX: Final = 1_000
KEYS_MAX: Final = 1_000
"""Of one record. Keys beyond are data, and have no columns."""
MAP_KEYS_MIN: Final = 200
MAP_FILL_MAX: Final = 0.1
"""An object with so many keys, of which each object has so few, is a map."""
SIGHTS_MAX: Final = 20_000
"""Places that are told apart, all together. Who sends more of them has no shape."""
PARTS_MAX: Final = 2_000
"""Columns, about, of one shape."""
_KEYS_INSIDE: Final = (KEYS_MAX, 200, 50, 10)
"""Of a record in another. What has more is kept as its text, where all together would be too many."""
DEPTH_MAX: Final = 30
_LONG_MAX: Final = 2**63 - 1

_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_MOMENT: Final = re.compile(r"(?:\d{4}-\d\d-\d\d([T ]))?\d\d:\d\d:\d\d(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?")
_MARKS: Final = {b"/": "slashes", b"b": "short", b"f": "short"}
_TELLING: Final = re.compile(r"^-?\d+$|\.0$|[eE]|^-?0\.000|^-?\d{7}")
"""Numbers that not everybody spells the same."""
_HTML: Final = {0x26, 0x3C, 0x3E, 0x2028, 0x2029}


class _Object(list[tuple[str, Any]]):
    """Its keys in order, with those that are there twice."""


class _Float(str):
    """A number that is no integer, as it was spelled."""


def parsed(text: bytes) -> Any:
    """ValueError: it is no JSON; RecursionError: it is nested too deep."""
    return json.loads(text, object_pairs_hook=_Object, parse_float=_Float, parse_constant=_no_number)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


@dataclass(slots=True)
class Budget:
    """How many places may still be told apart."""

    left: int = SIGHTS_MAX

    def has_one(self) -> bool:
        self.left -= 1
        return self.left >= 0


@dataclass(slots=True)
class Sight:
    """Of one place."""

    kinds: dict[str, None] = field(default_factory=dict)
    """JSON types, the first seen first; empty objects and arrays are not of theirs yet."""
    voids: Counter[str] = field(default_factory=Counter)
    """How often nothing stood there, and what that was."""
    texts: list[str] = field(default_factory=list)
    moments: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """What stands between date and time, digits of the second, the zone."""
    objects: int = 0
    key_count: int = 0
    """Of all objects together."""
    keys: dict[str, "Sight"] = field(default_factory=dict)
    neighbours: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Keys that came one behind the other."""
    present: Counter[str] = field(default_factory=Counter)
    others: "Sight | None" = None
    """Of keys beyond those that are told apart."""
    each: "Sight | None" = None

    def see(self, value: Any, budget: Budget, depth: int = 0) -> None:
        if depth > DEPTH_MAX:
            self.kinds["any"] = None
            return
        match value:
            case None:
                self.voids["null"] += 1
            case bool():
                self.kinds["boolean"] = None
            case int():
                self._see_number(str(value), "integer" if -_LONG_MAX - 1 <= value <= _LONG_MAX else "number")
            case _Float():
                self._see_number(str(value), "number")
            case str():
                self.kinds["string"] = None
                if (found := _MOMENT.fullmatch(value)) and len(self.moments) < TEXTS_MAX:
                    self.moments[found[1] or "", len(found[2] or ""), found[3] or ""] += 1
            case _Object():
                self._see_object(value, budget, depth)
            case list():
                self._see_array(value, budget, depth)

    def _see_number(self, text: str, kind: str) -> None:
        self.kinds[kind] = None
        enough = INTEGERS_MAX if kind == "integer" else TEXTS_MAX
        if len(self.texts) < enough and _TELLING.search(text):
            self.texts.append(text)

    def _see_array(self, value: list[Any], budget: Budget, depth: int) -> None:
        if not value:
            self.voids["[]"] += 1
            return
        self.kinds["array"] = None
        if self.each is None:
            self.each = Sight()
        for element in value:
            self.each.see(element, budget, depth + 1)

    def _see_object(self, value: _Object, budget: Budget, depth: int) -> None:
        self.objects += 1
        if not value:
            self.voids["{}"] += 1
            return
        self.kinds["object"] = None
        before: str | None = None
        for key, inner in value:
            if key not in self.keys:
                if len(self.keys) >= KEYS_MAX:
                    self.others = self.others or Sight()
                    self.others.see(inner, budget, depth + 1)
                    continue
                if not budget.has_one():
                    continue
                self.keys[key] = Sight()
            self.keys[key].see(inner, budget, depth + 1)
            self.present[key] += 1
            self.key_count += 1
            if before is not None:
                self.neighbours[before, key] += 1
            before = key

    # What it comes to.

    def has_columns(self) -> bool:
        """Not if all that was there is null or empty, at any depth."""
        if self.each is not None and self.each.has_columns():
            return True
        if any(sight.has_columns() for sight in self.keys.values()):
            return True
        return bool(self.kinds.keys() - {"object", "array"})

    def whole(self) -> Part:
        """Not more of it than a table can have columns for."""
        return next((part for keys in _KEYS_INSIDE if size_of(part := self.part(keys)) <= PARTS_MAX), RAW)

    def part(self, keys_inside: int, depth: int = 0) -> Part:
        if "any" in self.kinds or (depth and len(self.keys) > keys_inside and not self._is_map()):
            return RAW
        kinds = [kind for kind in self.kinds if kind != "integer" or "number" not in self.kinds]
        variants = [self._variant(kind, keys_inside, depth) for kind in kinds]
        return RAW if Scalar(Read.RAW) in variants else Part(tuple(variants))

    def _variant(self, kind: str, keys_inside: int, depth: int) -> Variant:
        match kind:
            case "boolean":
                return Scalar(Read.BOOLEAN)
            case "integer":
                return Scalar(Read.LONG)
            case "number":
                return Scalar(Read.DOUBLE)
            case "string":
                return Scalar(Read.STRING)
            case "array":
                return Many(single((self.each or Sight()).part(keys_inside, depth + 1)))
            case _:
                return self._object(keys_inside, depth)

    def _object(self, keys_inside: int, depth: int) -> Variant:
        parts = {key: sight.part(keys_inside, depth + 1) for key, sight in self.keys.items()}
        if self._is_map():
            value = NOTHING if self.others is None else self.others.part(keys_inside, depth + 1)
            for part in parts.values():
                value = joined(value, part)
                if size_of(value) > KEYS_MAX:
                    value = RAW
                    break
            return Named(single(value))
        if not any(part.variants for part in parts.values()):
            return Scalar(Read.RAW)
        return Record(tuple((key, parts[key]) for key in self.order()))

    def order(self) -> list[str]:
        """Of keys, so that most stand behind those they came behind; else the first seen first."""
        behind: dict[str, set[str]] = {key: set() for key in self.keys}
        for (one, other), count in self.neighbours.items():
            if count > self.neighbours[other, one]:
                behind[other].add(one)
        ordered: dict[str, None] = {}
        waiting = dict.fromkeys(self.keys)
        while waiting:
            ready = next((key for key in waiting if behind[key] <= ordered.keys()), None)
            chosen = next(iter(waiting)) if ready is None else ready
            ordered[chosen] = waiting.pop(chosen)
        return list(ordered)

    def _is_map(self) -> bool:
        if self.others is not None:
            return True
        return len(self.keys) > MAP_KEYS_MIN and self.key_count < MAP_FILL_MAX * self.objects * len(self.keys)

    def manner(self, double: str, missing: int = 0) -> Manner:
        """`missing`: how often the key was not there at all. `double`: how doubles are, where nothing tells."""
        voids = Counter(self.voids)
        if "object" in self.kinds:
            del voids["{}"]
        if "array" in self.kinds:
            del voids["[]"]
        voids[""] += missing
        void = max(voids, key=lambda one: (voids[one], bool(one)))
        keys = {key: self.keys[key].manner(double, self.objects - self.present[key]) for key in self.order()}
        each = self.each.manner(double) if self.each is not None else None
        return Manner(void if voids[void] else "", _spelling_of(self.texts, double), self._moment(), keys, each)

    def doubles(self) -> Iterator[str]:
        """The telling ones of all places."""
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


def size_of(part: Part) -> int:
    """How many places it has, about as many as columns."""
    return 1 + sum(_size_of(variant) for variant in part.variants)


def _size_of(variant: Variant) -> int:
    match variant:
        case Record(keys):
            return sum(size_of(inner) for _, inner in keys)
        case Many(inner) | Named(inner):
            return size_of(inner)
        case _:
            return 0


def _spelling_of(texts: Iterable[str], otherwise: str) -> str:
    """The first of the forms that most of these doubles are spelled in."""
    numbers = [(text, number) for text in texts if math.isfinite(number := float(text))]

    def hits(name: str) -> int:
        return sum(spelled(number, DOUBLES[name]) == text for text, number in numbers)

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
class Spelling:
    """What is the same for a whole text, as it is seen in samples."""

    commas: Counter[str] = field(default_factory=Counter)
    colons: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)

    def see(self, text: bytes) -> None:
        bare = _STRINGS.sub(b'""', text)
        for separator, seen in ((b",", self.commas), (b":", self.colons)):
            at = bare.find(separator)
            if at >= 0:
                seen[f"{separator.decode()} " if bare[at + 1 : at + 2] == b" " else separator.decode()] += 1
        if b"\\" in text:
            for match in _ESCAPED.finditer(text):
                self._see_escape(match)
        if not text.isascii():
            self.marks["raw"] += 1

    def _see_escape(self, match: re.Match[bytes]) -> None:
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

    def style(self, root: Sight) -> Style:
        """Where nothing was seen, what goes with the separators: Python writes spaces and escapes, others do not."""
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
        manner = root.manner(_spelling_of(islice(root.doubles(), DOUBLES_MAX), "python" if comma == ", " else "js"))
        return Style(comma, colon, frozenset(escapes), replace(manner, void="null"))

    @staticmethod
    def _is(one: str, seen: Counter[str]) -> bool:
        return bool(seen) and seen.most_common(1)[0][0] == one
