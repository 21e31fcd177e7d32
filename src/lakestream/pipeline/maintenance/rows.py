"""Rows that are to leave a table, by `lakestream.table.retention.ms`: pure.

They go when they are older than that *and* the stream has forgotten them (`retention.ms`, `retention.bytes`,
DeleteRecords have moved the log's start behind them): below `table_end` the table is the only copy there is.

Whole files, at no cost. One that is at the border is written anew only when about half of it, or more, is to go: so a
row is written anew for this once or twice at most.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from lakestream.catalog.listing import LiveFile

BORDER_SHARE: Final = 0.5


class Leaving(NamedTuple):
    whole: tuple[LiveFile, ...]
    border: tuple[LiveFile, ...]


def leaving(files: Sequence[LiveFile], log_start: int, before_ms: int) -> Leaving:
    """Of the files of one partition. What nobody has bounded stays."""
    whole, border = [], []
    for file in files:
        if file.newest_ms is None or file.oldest_ms is None or file.offset_first is None or file.offset_last is None:
            continue
        if file.newest_ms < before_ms and file.offset_last < log_start:
            whole.append(file)
        elif file.oldest_ms < before_ms and file.offset_first < log_start:
            by_time = (before_ms - file.oldest_ms) / max(1, file.newest_ms - file.oldest_ms)
            by_offset = (log_start - file.offset_first) / (file.offset_last + 1 - file.offset_first)
            if min(by_time, by_offset) >= BORDER_SHARE:
                border.append(file)
    return Leaving(tuple(whole), tuple(border))
