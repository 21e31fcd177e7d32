"""How the commands print: sizes and times for people, columns that line up."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime


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
    """UTC, with milliseconds. Clients may send any number as a time."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d} UTC"


def printable(text: str) -> str:
    """Text from a file, safe for a terminal."""
    return text if text.isprintable() else ascii(text)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def columns(rows: Sequence[Sequence[str]], right: frozenset[int], indent: str = "  ") -> Iterator[str]:
    """Lines of a table; the columns whose numbers are in `right` are pushed to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield (indent + "  ".join(cells)).rstrip()
