"""What may become of bytes that strangers have sent: bounds of decode.py."""

from dataclasses import dataclass
from typing import Final

from lakestream.model import MiB

SPAN_MAX: Final = 1024 * MiB
"""Of the bytes that rows which come out together may point into, in one source: positions in views have 31 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Memory for rows that come out together: some 100 bytes a row, 50 a header, and the batches, decompressed."""

    batch_bytes_max: int = 256 * MiB  # the records of one batch, decompressed; a larger one is refused
    headers_max: int = 1_000_000  # of one record; one with more is refused. Of rows together: twice that
    rows_max: int = 500_000  # together
    bytes_max: int = 32 * MiB  # of batches, and of what they decompress to, together; a single batch may have more

    def __post_init__(self) -> None:
        if min(self.batch_bytes_max, self.headers_max, self.rows_max, self.bytes_max) < 1:
            raise ValueError(f"limits let something through, not {self}")
        if max(self.batch_bytes_max, self.bytes_max) > SPAN_MAX:
            raise ValueError(f"views reach {SPAN_MAX} bytes, not {self}")


DEFAULT_LIMITS: Final = Limits()
