"""Rows for record batches that cannot be read: one row each, at the batch's first offset, without a key.

    value     the batch as the log serves it: header, with its offset, and records
    headers   `lakestream.unreadable`: the reason

Such a row is an ordinary record to every reader of the table and of its history. The other offsets of the batch are a
gap, as after key compaction.

Written by write/batch_decoder.py. Read by typed/values_to_columns.py, which does not convert such values, and by
`lakestream table dead-letters`.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from lakestream.data.table.arrow.batch_encoder import Encoded, encode_rows
from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.arrow.row_arrays import Rows, header_lists
from lakestream.data.table.kernels.compile import Longs
from lakestream.schemas.value_format import OTHER_REASONS

HEADER: Final = "lakestream.unreadable"
REASON_SIZE_MAX: Final = 400
REASONS_MAX: Final = 100
"""Reasons distinguished in one call: a client may produce records with this header too, each with another reason."""


def as_batches(unreadable: Sequence[bytes], reasons: Sequence[str]) -> Encoded:
    """Returns a batch of one record for each unreadable batch, uncompressed. The caller sets offset and timestamp."""
    count = len(reasons)
    zeros, places = np.zeros(count, np.int64), np.arange(count)
    rows = Rows(
        offsets=places,
        timestamps=zeros,
        timestamp_types=zeros,
        keys=ByteSpans(zeros, np.full(count, -1, np.int64), ()),
        values=ByteSpans.of(pa.array(unreadable, pa.large_binary())),
        headers_first=places,
        headers_count=np.ones(count, np.int64),
        header_keys=ByteSpans.of(pa.array([HEADER.encode()] * count, pa.binary())),
        header_values=ByteSpans.of(pa.array([reason.encode() for reason in reasons], pa.binary())),
    )
    return encode_rows(rows, bytes_max=1, name="unreadable batches")  # 1 byte: one record per batch


def unreadable_rows(stream: Any) -> list[tuple[str, Longs]]:
    """Returns the rows that are unreadable batches, by reason. `stream`: the column `_stream` of a record batch."""
    first, count, entries = header_lists(stream.field("headers"), "rows")
    names = entries.field("key")
    rows = np.flatnonzero(count)
    rows = rows[ByteSpans.of(names).size[first[rows]] == len(HEADER)]
    if not rows.size:
        return []
    chosen = pa.array(first[rows])
    is_marked = pc.equal(_plain(names).take(chosen), HEADER.encode()).fill_null(False)
    rows, chosen = rows[np.asarray(is_marked)], chosen.filter(is_marked)
    return _by_reason(_plain(entries.field("value")).take(chosen), rows)


def _by_reason(values: Any, rows: Longs) -> list[tuple[str, Longs]]:
    encoded = values.fill_null(b"").dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    distinct = encoded.dictionary.slice(0, REASONS_MAX).to_pylist()
    reasons = [reason[:REASON_SIZE_MAX].decode(errors="replace") for reason in distinct]
    by_reason = [(reason, rows[codes == code]) for code, reason in enumerate(reasons)]
    others = rows[codes >= len(reasons)]
    return [*by_reason, (OTHER_REASONS, others)] if others.size else by_reason


def _plain(column: Any) -> Any:
    """Returns a column of bytes that Arrow can pick rows from."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary())
