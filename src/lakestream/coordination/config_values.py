"""Parsers of topic settings: from the text of a value to the value. They raise ValueError with the reason."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from lakestream.catalog.identifiers import Namespace, check_namespace
from lakestream.catalog.topic_table.columns import COLUMNS, STREAM, iceberg_schema
from lakestream.config.suggestions import did_you_mean
from lakestream.coordination.schema_registry.subjects import DEFAULT, check_context
from lakestream.errors import Rejected
from lakestream.schemas.columns import columns_of
from lakestream.schemas.layout_terms import SortTerm, Term, partition_terms, resolve_term, sort_terms
from lakestream.schemas.value_format import SchemaMode

LONG_MAX: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,19}\s*")


def whole_number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"{text!r} is not a whole number")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low} and {high}")
        return value

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is unknown: use one of {', '.join(names)}")
        return text

    return parse


def ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is not between 0 and 1")
    return value


def boolean(text: str) -> bool:
    return one_of("true", "false")(text.lower()) == "true"


def words(text: str) -> tuple[str, ...]:
    """Parses a list in Kafka's format."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def policies(text: str) -> frozenset[str]:
    return frozenset(one_of("delete", "compact")(word) for word in words(text))


def table_formats(text: str) -> frozenset[str]:
    chosen = frozenset(one_of("iceberg", "delta")(word) for word in words(text))
    if "iceberg" not in chosen:
        raise ValueError(f"{text!r} leaves out iceberg, which is required: use iceberg or iceberg,delta")
    return chosen


def namespace(text: str) -> Namespace:
    try:
        return check_namespace(text.split("."))
    except Rejected as error:
        raise ValueError(str(error)) from error


class SchemaChoice(NamedTuple):
    """The schema of the values, or of the keys, of a topic."""

    mode: SchemaMode
    subject: str = ""
    """For LATEST and FIXED; empty for the subject that is named after the topic."""
    version: int = 0
    """For FIXED."""


def schema_choice(text: str) -> SchemaChoice:
    """Parses `subject@3`, `subject@latest`, or a mode."""
    subject, at, version = text.rpartition("@")
    if not at:
        return SchemaChoice(
            SchemaMode(one_of(*(mode.value for mode in SchemaMode if mode is not SchemaMode.FIXED))(text))
        )
    if not subject:
        raise ValueError(f"{text!r} has no subject: use subject@version")
    if version == "latest":
        return SchemaChoice(SchemaMode.LATEST, subject)
    return SchemaChoice(SchemaMode.FIXED, subject, whole_number(1, 2**31 - 1)(version))


def schema_context(text: str) -> str:
    """Parses `.prod`, the form of the registry's paths; also `prod` and `:.prod:`."""
    if not text:
        return DEFAULT
    try:
        return check_context(text)
    except Rejected as error:
        raise ValueError(str(error)) from error


def table_partition(text: str) -> tuple[Term, ...]:
    terms = partition_terms(text)
    _check_stream_columns(terms)
    return terms


def table_sort(text: str) -> tuple[SortTerm, ...]:
    terms = sort_terms(text)
    _check_stream_columns([term.term for term in terms])
    return terms


def _check_stream_columns(terms: Sequence[Term]) -> None:
    """Checks columns of the stream, which every table has. Columns of values appear with the first values."""
    for term in terms:
        if term.column.split(".")[0] == STREAM and resolve_term(term, _COLUMNS) is None:
            raise ValueError(f"column {unknown_name(term.column, _STREAM_NAMES)}")


_COLUMNS: Final = columns_of(iceberg_schema())
_STREAM_NAMES: Final = tuple(f"{STREAM}.{field.name}" for field in COLUMNS[-1].fields)
long = whole_number(-1, LONG_MAX)
integer = whole_number(0, 2**31 - 1)
from_zero = whole_number(0, LONG_MAX)
from_one = whole_number(1, LONG_MAX)


def unknown_name(word: str, names: Collection[str]) -> str:
    return f"{word!r} is unknown: {did_you_mean(word, names)}"
