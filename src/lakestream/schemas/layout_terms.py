"""Parses the partition and sort terms of a table, and resolves them to columns. Pure.

    day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country         lakestream.table.partition
    user_id desc nulls last, _stream.timestamp                                      lakestream.table.sort

Before: the settings of a topic.  After: catalog/operations/update_layout.py, which makes partition specs and sort
orders of them.

Transforms are those of Iceberg, in the notation of Spark SQL (`days` is `day`, the width may be the first or the last
argument). `void` is allowed too: its partition field is always null and only keeps a field of the spec. Names of nested
columns contain dots. A name with a comma or a parenthesis must be quoted with backticks or double quotes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakestream.schemas.columns import Column, Fields
from lakestream.schemas.types import Kind, Primitive

TERMS_MAX: Final = 32
TEXT_MAX: Final = 4_000
WIDTH_MAX: Final = 2**31 - 1
TIMES: Final = ("year", "month", "day", "hour")
_WITH_WIDTH: Final = ("bucket", "truncate")
_NAMES: Final = {
    "identity": "identity",
    "void": "void",
    **{name: name for name in (*TIMES, *_WITH_WIDTH)},
    **{f"{name}s": name for name in TIMES},
}

_IN_NAMES: Final = {"truncate": "trunc", "void": "null"}

_DATES: Final = frozenset((Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ))
_TRUNCATED: Final = frozenset((Kind.INT, Kind.LONG, Kind.DECIMAL, Kind.STRING, Kind.BINARY))
_ACCEPTED: Final = {
    "identity": frozenset(Kind),
    "bucket": frozenset(Kind) - {Kind.BOOLEAN, Kind.FLOAT, Kind.DOUBLE},
    "truncate": _TRUNCATED,
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": _DATES - {Kind.DATE},
    "void": frozenset(Kind),
}

_PIECE: Final = re.compile(r"""(?:`[^`]*`|"[^"]*"|\((?:`[^`]*`|"[^"]*"|[^()`"])*\)|[^,()`"])+""")
_CALL: Final = re.compile(r"\s*([A-Za-z]+)\s*\((.*)\)\s*", re.DOTALL)
_QUOTED: Final = re.compile(r"""`([^`]+)`|"([^"]+)\"""")
_SORTED: Final = re.compile(
    r"(?P<term>.*?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*", re.IGNORECASE | re.DOTALL
)


class Transform(NamedTuple):
    name: str
    width: int = 0
    """For bucket and truncate only."""

    @classmethod
    def of(cls, text: str) -> "Transform | None":
        """Parses Iceberg's notation. Returns None if the transform is not supported."""
        name, _, rest = text.partition("[")
        if name in _WITH_WIDTH and (width := rest.removesuffix("]")).isdecimal():
            return cls(name, int(width)) if 0 < int(width[:20]) <= WIDTH_MAX else None
        return cls(name) if name in _ACCEPTED and name not in _WITH_WIDTH and not rest else None

    def __str__(self) -> str:
        return f"{self.name}[{self.width}]" if self.width else self.name

    def accepts(self, kind: Primitive) -> bool:
        return kind.kind in _ACCEPTED[self.name]

    def result(self, kind: Primitive) -> Primitive:
        """Returns the type of the transformed values."""
        match self.name:
            case "identity" | "truncate" | "void":
                return kind
            case "day":
                return Primitive(Kind.DATE)
            case _:
                return Primitive(Kind.INT)


IDENTITY: Final = Transform("identity")


class Term(NamedTuple):
    transform: Transform
    column: str

    def __str__(self) -> str:
        """Returns the notation of the topic setting."""
        if self.transform == IDENTITY:
            return self.column
        width = f"{self.transform.width}, " if self.transform.width else ""
        return f"{self.transform.name}({width}{self.column})"

    @property
    def field_name(self) -> str:
        """Name of its partition field, as Spark names it."""
        name, (transform, width) = self.column.replace(".", "_"), self.transform
        if self.transform == IDENTITY:
            return name
        return f"{name}_{_IN_NAMES.get(transform, transform)}{f'_{width}' if width else ''}"


class SortTerm(NamedTuple):
    term: Term
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class BoundTerm:
    """A term and its column in a schema."""

    term: Term
    source_id: int
    kind: Primitive


def partition_terms(text: str) -> tuple[Term, ...]:
    """Parses partition terms. ValueError, with the problem and a correction, if the text is invalid."""
    terms = tuple(_term(piece) for piece in _pieces(text))
    for place, term in enumerate(terms):
        for other in terms[:place]:
            if term == other:
                raise ValueError(f"{term} appears twice")
            if term.column == other.column and {term.transform.name, other.transform.name} <= set(TIMES):
                raise ValueError(f"{other} and {term} use the same column: choose one of them")
    return terms


def sort_terms(text: str) -> tuple[SortTerm, ...]:
    """Parses sort terms. By default nulls are first in ascending and last in descending order. ValueError as in
    `partition_terms`."""
    terms = []
    for piece in _pieces(text):
        found = _SORTED.fullmatch(piece)
        assert found is not None, "all parts of the pattern are optional"
        is_descending = (found["direction"] or "asc").lower() == "desc"
        nulls = (found["nulls"] or ("last" if is_descending else "first")).lower()
        terms.append(SortTerm(_term(found["term"]), is_descending, nulls == "first"))
    for place, one in enumerate(terms):
        if any(one.term == other.term for other in terms[:place]):
            raise ValueError(f"{one.term} appears twice")
    return tuple(terms)


def _pieces(text: str) -> list[str]:
    """Splits at commas, except in parentheses and quotes."""
    if not text.strip():
        return []
    if len(text) > TEXT_MAX:
        raise ValueError(f"the text has {len(text)} characters: at most {TEXT_MAX} are allowed")
    pieces: list[str] = []
    at = 0
    while True:
        found = _PIECE.match(text, at)
        if found is None or not found.group().strip():
            raise ValueError(f"empty term, or parenthesis or quote that is not closed, at {text[at : at + 20]!r}")
        pieces.append(found.group().strip())
        at = found.end()
        if at == len(text):
            break
        if text[at] != ",":
            raise ValueError(f"unbalanced parenthesis or quote at {text[at : at + 20]!r}: close it, or quote the name")
        at += 1
    if len(pieces) > TERMS_MAX:
        raise ValueError(f"the text has {len(pieces)} terms: at most {TERMS_MAX} are allowed")
    return pieces


def _term(text: str) -> Term:
    call = _CALL.fullmatch(text)
    if call is None:
        return Term(IDENTITY, _column(text))
    name = _NAMES.get(call[1].lower())
    if name is None:
        raise ValueError(f"unknown transform {call[1]!r}: use {', '.join(_ACCEPTED)}")
    arguments = _pieces(call[2])
    if name not in _WITH_WIDTH:
        if len(arguments) != 1:
            raise ValueError(f"{name} takes one column: write {name}(column)")
        return Term(Transform(name), _column(arguments[0]))
    width = next((one for one in arguments if one.isascii() and one.isdecimal()), None)
    if len(arguments) != 2 or width is None:
        raise ValueError(f"{name} takes a number and a column: write {name}(16, column)")
    if not 0 < int(width[:20]) <= WIDTH_MAX:
        raise ValueError(f"invalid width {width} of {name}: use 1 to {WIDTH_MAX}")
    arguments.remove(width)
    return Term(Transform(name, int(width)), _column(arguments[0]))


def _column(text: str) -> str:
    if quoted := _QUOTED.fullmatch(text.strip()):
        return quoted[1] or quoted[2]
    if not text.strip() or re.search(r"[\s()`\"]", text.strip()):
        raise ValueError(f"invalid column name {text.strip()!r}: quote names with special characters with backticks")
    return text.strip()


# Columns


def resolve_term(term: Term, columns: Sequence[Column]) -> BoundTerm | None:
    """Binds a term to its column. Returns None if there is no column of this name; ValueError if the transform does not
    accept the type of the column."""
    column = next((column for name, column in _named(columns) if name == term.column), None)
    if column is None:
        return None
    return bind_term(term, column)


def bind_term(term: Term, column: Column) -> BoundTerm:
    if not isinstance(column.type, Primitive):
        raise ValueError(f"{term}: column {term.column} is not of a primitive type: choose another column")
    if not term.transform.accepts(column.type):
        accepting = [name for name, kinds in _ACCEPTED.items() if column.type.kind in kinds]
        raise ValueError(f"{term}: column {term.column} is {column.type}: use {', '.join(accepting)}")
    return BoundTerm(term, column.field_id, column.type)


def _named(columns: Sequence[Column], above: str = "") -> Iterator[tuple[str, Column]]:
    """Yields columns with their full names. Columns in lists and maps are excluded: a row may have several values."""
    for column in columns:
        yield f"{above}{column.name}", column
        if isinstance(column.type, Fields):
            yield from _named(column.type.fields, f"{above}{column.name}.")
