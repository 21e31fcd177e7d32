"""Formats output of commands: sizes, times, aligned columns, and the reasons of dead letters."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lakestream.pipeline.tasks import Reason


def human_size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def human_time(time_ms: int) -> str:
    """Formats a time as UTC with milliseconds. Clients may send any number as a time."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d} UTC"


def printable(text: str) -> str:
    """Escapes text that a terminal could not print safely."""
    return text if text.isprintable() else ascii(text)


def escaped(text: str) -> str:
    """Escapes the control characters of a text as in JSON, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\t" else json.dumps(letter)[1:-1] for letter in text)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def columns(rows: Sequence[Sequence[str]], right: frozenset[int], indent: str = "  ") -> Iterator[str]:
    """Yields the lines of a table; the columns whose numbers are in `right` are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield (indent + "  ".join(cells)).rstrip()


Firsts: TypeAlias = "Mapping[Reason, tuple[int, int]]"
"""Partition and offset of the first row of each."""


def reasons_as_json(reasons: "Counter[Reason]", firsts: Firsts) -> list[dict[str, object]]:
    return [
        {
            "reason": reason.text,
            "schema_id": reason.schema_id or None,
            "rows": count,
            "partition": firsts[reason][0],
            "offset": firsts[reason][1],
        }
        for reason, count in reasons.most_common()
    ]


def reasons_in_columns(heading: str, reasons: "Counter[Reason]", firsts: Firsts, most: int | None = None) -> list[str]:
    """Returns a table, the most frequent reason first; empty without reasons. Producers choose names in reasons."""
    rows = [
        (printable(reason.text), str(reason.schema_id or "-"), f"{count:,}", "{}/{}".format(*firsts[reason]))
        for reason, count in reasons.most_common(most)
    ]
    return list(columns([(heading, "schema", "rows", "first at"), *rows], frozenset({1, 2}))) if rows else []
