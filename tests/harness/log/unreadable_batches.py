"""Record batches with a right header and checksum whose records cannot be read: what older brokers let into a log."""

from collections.abc import Callable
from functools import cache
from typing import Final

import cramjam
from tests.harness.table.reference_codec import CODECS, Record, framed, record_bytes

from lakestream.data.table.arrow.unreadable_batches import HEADER
from lakestream.model import MiB

NOW: Final = 1_700_000_000_000
FAR: Final = 2**30
"""Records that a batch of one record announces."""


def _forged(records: bytes, count: int, codec: str = "none") -> bytes:
    return framed(records, count, attributes=CODECS.index(codec), base_timestamp=NOW, max_timestamp=NOW + 7)


def _records(count: int) -> bytes:
    return b"".join(record_bytes(Record(at, NOW, 0, b"k", b"value %d " % at * 3), 0, NOW) for at in range(count))


@cache
def _bomb() -> bytes:
    return bytes(cramjam.zstd.compress(bytes(300 * MiB), 3))


UNREADABLE: Final[dict[str, tuple[Callable[[], bytes], str]]] = {
    "no records": (lambda: _forged(b"\xff" * 50, 3), "invalid record length: not a number"),
    "too few records": (lambda: _forged(_records(1), 3), "invalid record length: not a number"),
    "too many records": (lambda: _forged(_records(3), 1), "bytes are left after the last record"),
    "a billion announced": (lambda: _forged(_records(1), FAR), "invalid record count"),
    "not zstd": (lambda: _forged(_records(2), 2, "zstd"), "announces zstd, but its records cannot be decompressed"),
    "a bomb": (lambda: _forged(_bomb(), 2, "zstd"), f"it holds more than {256 * MiB} bytes of records"),
}
"""Each with a part of the reason."""


def count_of(batch: bytes) -> int:
    """The offsets that it takes."""
    return int.from_bytes(batch[23:27], "big") + 1


def served(batch: bytes, offset: int) -> bytes:
    """As consumers get it from the log."""
    return offset.to_bytes(8, "big") + batch[8:12] + bytes(4) + batch[16:]


def as_record(batch: bytes, offset: int, reason: str) -> Record:
    """What it becomes."""
    timestamp = int.from_bytes(batch[35:43], "big", signed=True)
    return Record(
        offset, timestamp, batch[22] >> 3 & 1, None, served(batch, offset), ((HEADER.encode(), reason.encode()),)
    )
