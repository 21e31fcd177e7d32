"""Text style of JSON: how a program formats values. Two programs may write the same value differently.

Inferred by `samples.py`, stored as text in `WriterSchema.style`, applied by `write_kernels.py`.

Separators and escapes are the same for a whole text. A tree of formats has what differs between places: the order of
keys, whether a null is omitted, the format of doubles and times. A value that its style does not restore keeps its
bytes, so a style only has to be right for most values.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.data.typed.json import write_kernels as write

VOIDS: Final = {"": write.OMITTED, "null": write.AS_NULL, "[]": write.AS_ARRAY, "{}": write.AS_OBJECT}
"""What is written for a key without a value."""

ESCAPES: Final = {
    "ascii": write.ASCII,
    "upper": write.UPPER_HEX,
    "slashes": write.SLASHES,
    "html": write.HTML,
    "long": write.LONG_CONTROLS,
}


class DoubleForm(NamedTuple):
    """Format of doubles; the kernel uses the fields in this order."""

    point_zero: bool
    low: int
    high: int
    """Numbers with exponents from `low` to `high` (exclusive) are written without an exponent."""
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
"""The last two write whole numbers as Python and Rust write integers."""
PYTHON: Final = "python"


class MomentForm(NamedTuple):
    """Format of times and timestamps."""

    digits: int = write.DIGITS_IF_ANY
    zone_minutes: int = 0
    zone: int = write.AS_OFFSET
    gap: int = ord("T")


_USUAL: Final = MomentForm()


@dataclass(frozen=True, slots=True)
class NumberAndDateFormat:
    """Format of the values at one place."""

    void: str = ""
    """Written for a null: a key of VOIDS."""
    double: str = PYTHON
    moment: MomentForm = _USUAL
    keys: dict[str, "NumberAndDateFormat"] = field(default_factory=dict)
    """In the order in which they are written. Other keys are written last."""
    each: "NumberAndDateFormat | None" = None
    """Format of the elements of an array or the values of a map."""


@dataclass(frozen=True, slots=True)
class Style:
    """Style of a whole text. Defaults to that of Python's json, which most clients of the registry use."""

    comma: str = ", "
    colon: str = ": "
    escapes: frozenset[str] = frozenset({"ascii"})
    root: NumberAndDateFormat = NumberAndDateFormat()

    @property
    def escape_bits(self) -> int:
        return sum(ESCAPES[name] for name in self.escapes)


def encode_style(style: Style) -> str:
    fields: dict[str, Any] = {"comma": style.comma, "colon": style.colon, "escapes": sorted(style.escapes)}
    return msgspec.json.encode({**fields, "root": _non_defaults(style.root)}).decode()


def _non_defaults(place_format: NumberAndDateFormat) -> dict[str, Any]:
    """Returns only what differs from the defaults."""
    fields: dict[str, Any] = {}
    if place_format.void:
        fields["void"] = place_format.void
    if place_format.double != PYTHON:
        fields["double"] = place_format.double
    if place_format.moment != _USUAL:
        fields["moment"] = place_format.moment
    if place_format.keys:
        fields["keys"] = {key: _non_defaults(inner) for key, inner in place_format.keys.items()}
    if place_format.each is not None:
        fields["each"] = _non_defaults(place_format.each)
    return fields


def read_style(text: str) -> Style:
    """Parses the output of `encode_style`. An empty text is the default style."""
    if not text:
        return Style()
    fields = msgspec.json.decode(text)
    return Style(
        fields["comma"], fields["colon"], frozenset(fields["escapes"]) & ESCAPES.keys(), _place_format(fields["root"])
    )


def _place_format(fields: dict[str, Any]) -> NumberAndDateFormat:
    return NumberAndDateFormat(
        void=fields.get("void", "") if fields.get("void", "") in VOIDS else "",
        double=fields.get("double", PYTHON) if fields.get("double", PYTHON) in DOUBLES else PYTHON,
        moment=MomentForm(*fields["moment"]) if "moment" in fields else _USUAL,
        keys={key: _place_format(inner) for key, inner in fields.get("keys", {}).items()},
        each=_place_format(fields["each"]) if "each" in fields else None,
    )


# The same formats in Python, for keys and to compare with samples


_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def escaped(text: str, escapes: frozenset[str]) -> str:
    """Escapes a string as the kernel does."""
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


def format_double(number: float, form: DoubleForm) -> str:
    """Formats a double as the kernel does."""
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
