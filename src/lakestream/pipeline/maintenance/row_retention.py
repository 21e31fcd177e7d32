"""Plans the removal of expired rows by `lakestream.table.retention.ms`. Pure.

Rows are removed when they are older than that *and* before the log's start (moved by `retention.ms`, `retention.bytes`
or DeleteRecords): below `table_end` the table is the only copy of the records.

Whole files are removed without reading them. A file at the border is rewritten only when about half of it or more is
expired, so a row is rewritten for this once or twice at most.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from lakestream.catalog.topic_table.live_file import LiveFile

BORDER_SHARE: Final = 0.5


class ExpiredRows(NamedTuple):
    whole: tuple[LiveFile, ...]
    border: tuple[LiveFile, ...]


def plan_row_removal(files: Sequence[LiveFile], log_start: int, before_ms: int) -> ExpiredRows:
    """Returns the files of one partition to remove or to rewrite. Files without bounds stay."""
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
    return ExpiredRows(tuple(whole), tuple(border))
