"""How JSON text was written: what two programs do differently with the same value.

Learnt by `json_sight.py`, kept as text in `Writer.style`, obeyed by `kernels_json_write.py`.

What is the same for a whole text: what stands between its parts, and which characters are escaped. What differs from
place to place is in a tree of manners: the order of keys, whether a missing value is left out, how doubles and moments
are spelled. Whatever a style does not give back keeps its bytes, so a style need not be right, only mostly.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.data.typed import kernels_json_write as write

VOIDS: Final = {"": write.OMITTED, "null": write.AS_NULL, "[]": write.AS_ARRAY, "{}": write.AS_OBJECT}
"""What stands under a key that has nothing."""

ESCAPES: Final = {
    "ascii": write.ASCII,
    "upper": write.UPPER_HEX,
    "slashes": write.SLASHES,
    "html": write.HTML,
    "long": write.LONG_CONTROLS,
}


class DoubleForm(NamedTuple):
    """In the order that the kernel knows."""

    point_zero: bool
    low: int
    high: int
    """Powers of ten from here to there (exclusive) are written out."""
    plus: bool
    padded: bool
    java: bool = False


DOUBLES: Final = {
    "python": DoubleForm(True, -4, 16, plus=True, padded=True),
    "js": DoubleForm(False, -6, 21, plus=True, padded=False),
    "java": DoubleForm(True, -3, 7, plus=False, padded=False, java=True),
    "rust": DoubleForm(True, -5, 16, plus=False, padded=False),
    "python int": DoubleForm(False, -4, 16, plus=True, padded=True),
    "rust int": DoubleForm(False, -5, 16, plus=False, padded=False),
}
"""The last two: whole numbers as these write those that are no floats."""
PYTHON: Final = "python"


class MomentForm(NamedTuple):
    """Of times of day, and of timestamps."""

    digits: int = write.DIGITS_IF_ANY
    zone_minutes: int = 0
    zone: int = write.AS_OFFSET
    gap: int = ord("T")


_USUAL: Final = MomentForm()


@dataclass(frozen=True, slots=True)
class Manner:
    """Of one place."""

    void: str = ""
    double: str = PYTHON
    moment: MomentForm = _USUAL
    keys: dict[str, "Manner"] = field(default_factory=dict)
    """In the order in which they are written. Those that are not in here come last."""
    each: "Manner | None" = None
    """Of elements, and of the values of a map."""


@dataclass(frozen=True, slots=True)
class Style:
    """As Python's json writes by default: most of the registry's clients do."""

    comma: str = ", "
    colon: str = ": "
    escapes: frozenset[str] = frozenset({"ascii"})
    root: Manner = Manner()

    @property
    def escape_bits(self) -> int:
        return sum(ESCAPES[name] for name in self.escapes)


def written(style: Style) -> str:
    said: dict[str, Any] = {"comma": style.comma, "colon": style.colon, "escapes": sorted(style.escapes)}
    return msgspec.json.encode({**said, "root": _said(style.root)}).decode()


def _said(manner: Manner) -> dict[str, Any]:
    """Only what differs from what is usual."""
    said: dict[str, Any] = {}
    if manner.void:
        said["void"] = manner.void
    if manner.double != PYTHON:
        said["double"] = manner.double
    if manner.moment != _USUAL:
        said["moment"] = manner.moment
    if manner.keys:
        said["keys"] = {key: _said(inner) for key, inner in manner.keys.items()}
    if manner.each is not None:
        said["each"] = _said(manner.each)
    return said


def read_style(text: str) -> Style:
    """What was written with `written`. Empty: nothing was learnt."""
    if not text:
        return Style()
    said = msgspec.json.decode(text)
    return Style(said["comma"], said["colon"], frozenset(said["escapes"]) & ESCAPES.keys(), _manner(said["root"]))


def _manner(said: dict[str, Any]) -> Manner:
    return Manner(
        void=said.get("void", "") if said.get("void", "") in VOIDS else "",
        double=said.get("double", PYTHON) if said.get("double", PYTHON) in DOUBLES else PYTHON,
        moment=MomentForm(*said["moment"]) if "moment" in said else _USUAL,
        keys={key: _manner(inner) for key, inner in said.get("keys", {}).items()},
        each=_manner(said["each"]) if "each" in said else None,
    )


# Spelled in Python: keys, and samples to learn from.


_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def escaped(text: str, escapes: frozenset[str]) -> str:
    """As the kernel escapes it."""
    return "".join(_escaped(char, escapes) for char in text)


def _escaped(char: str, escapes: frozenset[str]) -> str:
    if char in _SHORT and not (char in "\b\f" and "long" in escapes):
        return _SHORT[char]
    if char == "/" and "slashes" in escapes:
        return "\\/"
    is_html = "html" in escapes and char in "<>&\u2028\u2029"
    if char < " " or is_html or ("ascii" in escapes and char > "~"):
        return "".join(_hex(unit, escapes) for unit in _units(char))
    return char


def _units(char: str) -> Iterable[int]:
    code = ord(char)
    return (code,) if code < 0x10000 else (0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code & 0x3FF))


def _hex(unit: int, escapes: frozenset[str]) -> str:
    return f"\\u{unit:04X}" if "upper" in escapes else f"\\u{unit:04x}"


def spelled(number: float, form: DoubleForm) -> str:
    """As the kernel spells it."""
    mantissa, _, power = f"{number!r}e".partition("e")[0:3]
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    raised = int(power.rstrip("e") or 0) - len(fraction)
    digits = (whole + fraction).lstrip("0")
    raised += len(digits) - len(digits.rstrip("0"))
    digits = digits.rstrip("0")
    if not digits:
        digits, raised = "0", 0
    exponent = len(digits) - 1 + raised
    if form.low <= exponent < form.high:
        return sign + _plain(digits, raised, ".0" if form.point_zero else "")
    tail = f".{digits[1:]}" if len(digits) > 1 else ".0" if form.java else ""
    mark = "-" if exponent < 0 else "+" if form.plus else ""
    return f"{sign}{digits[0]}{tail}{'E' if form.java else 'e'}{mark}{abs(exponent):0{2 if form.padded else 1}d}"


def _plain(digits: str, raised: int, whole_end: str) -> str:
    if raised >= 0:
        return digits + "0" * raised + whole_end
    if len(digits) + raised > 0:
        return f"{digits[:raised]}.{digits[raised:]}"
    return f"0.{'0' * -(len(digits) + raised)}{digits}"
