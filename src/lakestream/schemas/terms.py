"""What a table is partitioned and sorted by, as people write it: text to terms, terms to columns. Pure.

    day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country         lakestream.table.partition
    user_id desc nulls last, _stream.timestamp                                      lakestream.table.sort

Before: the settings of a topic.  After: catalog/arranging.py, which makes partition specs and sort orders of them.

Transforms are those of Iceberg, in the spelling of Spark's SQL (`days` is `day`, a width may come first or last). Also
`void`, which divides nothing: a field that is always null, for who needs its place to be taken. Names
of columns have dots for what is inside; one with a comma or a parenthesis in it stands in backticks or quotes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakestream.schemas.columns import Column, Fields
from lakestream.schemas.shape import Kind, Primitive

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
_TAKES: Final = {
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
    """Of a bucket or a truncate."""

    @classmethod
    def of(cls, text: str) -> "Transform | None":
        """As Iceberg spells it; None: it is none that can be followed here."""
        name, _, rest = text.partition("[")
        if name in _WITH_WIDTH and rest.removesuffix("]").isdecimal():
            return cls(name, int(rest.removesuffix("]")))
        return cls(name) if name in _TAKES and name not in _WITH_WIDTH and not rest else None

    def __str__(self) -> str:
        return f"{self.name}[{self.width}]" if self.width else self.name

    def takes(self, kind: Primitive) -> bool:
        return kind.kind in _TAKES[self.name]

    def result(self, kind: Primitive) -> Primitive:
        """The type of what comes out of it."""
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
        """As people write it."""
        if self.transform == IDENTITY:
            return self.column
        width = f"{self.transform.width}, " if self.transform.width else ""
        return f"{self.transform.name}({width}{self.column})"

    @property
    def field_name(self) -> str:
        """What a partition by it is called, as Spark calls it."""
        name, (transform, width) = self.column.replace(".", "_"), self.transform
        if self.transform == IDENTITY:
            return name
        return f"{name}_{_IN_NAMES.get(transform, transform)}{f'_{width}' if width else ''}"


class SortTerm(NamedTuple):
    term: Term
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A term over a column that is there."""

    term: Term
    source_id: int
    kind: Primitive


def partition_terms(text: str) -> tuple[Term, ...]:
    """ValueError, with what is wrong and what could be meant."""
    terms = tuple(_term(piece) for piece in _pieces(text))
    for place, term in enumerate(terms):
        for other in terms[:place]:
            if term == other:
                raise ValueError(f"{term} is there twice")
            if term.column == other.column and {term.transform.name, other.transform.name} <= set(TIMES):
                raise ValueError(f"{other} and {term} are of one column: choose one of them")
    return terms


def sort_terms(text: str) -> tuple[SortTerm, ...]:
    """The same of an order. Nulls come first where it ascends, and last where it descends, unless it says so."""
    terms = []
    for piece in _pieces(text):
        found = _SORTED.fullmatch(piece)
        assert found is not None, "everything in it is optional"
        is_descending = (found["direction"] or "asc").lower() == "desc"
        nulls = (found["nulls"] or ("last" if is_descending else "first")).lower()
        terms.append(SortTerm(_term(found["term"]), is_descending, nulls == "first"))
    for place, one in enumerate(terms):
        if any(one.term == other.term for other in terms[:place]):
            raise ValueError(f"{one.term} is there twice")
    return tuple(terms)


def _pieces(text: str) -> list[str]:
    """Divided by commas, but for those in parentheses and quotes."""
    if not text.strip():
        return []
    if len(text) > TEXT_MAX:
        raise ValueError(f"it has {len(text)} characters: {TEXT_MAX} at most")
    pieces: list[str] = []
    at = 0
    while True:
        found = _PIECE.match(text, at)
        if found is None or not found.group().strip():
            raise ValueError(f"something is missing, or is not closed, at {text[at : at + 20]!r}")
        pieces.append(found.group().strip())
        at = found.end()
        if at == len(text):
            break
        if text[at] != ",":
            raise ValueError(f"{text[at : at + 20]!r} has no partner: close what is open, quote names that have it")
        at += 1
    if len(pieces) > TERMS_MAX:
        raise ValueError(f"these are {len(pieces)} terms: {TERMS_MAX} at most")
    return pieces


def _term(text: str) -> Term:
    call = _CALL.fullmatch(text)
    if call is None:
        return Term(IDENTITY, _column(text))
    name = _NAMES.get(call[1].lower())
    if name is None:
        raise ValueError(f"{call[1]!r} is no transform: known are {', '.join(_TAKES)}")
    arguments = _pieces(call[2])
    if name not in _WITH_WIDTH:
        if len(arguments) != 1:
            raise ValueError(f"{name} takes one column: write {name}(column)")
        return Term(Transform(name), _column(arguments[0]))
    width = next((one for one in arguments if one.isascii() and one.isdecimal()), None)
    if len(arguments) != 2 or width is None:
        raise ValueError(f"{name} takes a number and a column: write {name}(16, column)")
    if not 0 < int(width[:20]) <= WIDTH_MAX:
        raise ValueError(f"{name} of {width}: choose a number from 1 on")
    arguments.remove(width)
    return Term(Transform(name, int(width)), _column(arguments[0]))


def _column(text: str) -> str:
    if quoted := _QUOTED.fullmatch(text.strip()):
        return quoted[1] or quoted[2]
    if not text.strip() or re.search(r"[\s()`\"]", text.strip()):
        raise ValueError(f"{text.strip()!r} is no name of a column: put one with such characters into backticks")
    return text.strip()


# Columns


def found_in(term: Term, columns: Sequence[Column]) -> Found | None:
    """Its column. None: there is none of this name. ValueError: there is, but the transform does not take it."""
    column = next((column for name, column in _named(columns) if name == term.column), None)
    if column is None:
        return None
    return bound(term, column)


def bound(term: Term, column: Column) -> Found:
    if not isinstance(column.type, Primitive):
        raise ValueError(f"{term}: column {term.column} is not of one value, so it cannot be taken")
    if not term.transform.takes(column.type):
        takers = [name for name, kinds in _TAKES.items() if column.type.kind in kinds]
        raise ValueError(f"{term}: column {term.column} is {column.type}, which takes {', '.join(takers)}")
    return Found(term, column.field_id, column.type)


def _named(columns: Sequence[Column], above: str = "") -> Iterator[tuple[str, Column]]:
    """With full names; nothing that is in lists or maps, of which a row may have many."""
    for column in columns:
        yield f"{above}{column.name}", column
        if isinstance(column.type, Fields):
            yield from _named(column.type.fields, f"{above}{column.name}.")
