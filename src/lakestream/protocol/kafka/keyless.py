"""Records without a key have no place in a compacted topic: nothing says which record they would replace.

Asked by: handlers/produce.py, in a thread, and only for compacted topics: this opens every record of a batch.
"""

from lakestream.batch import HEADER_SIZE, RecordBatch, read_varint
from lakestream.compression import decompressed
from lakestream.errors import Rejected
from lakestream.model import Buffer


def keyless(batch: RecordBatch) -> list[int]:
    """The places in the batch of the records without a key. Rejected: the records cannot be read."""
    found = []
    records: Buffer = memoryview(batch.data)[HEADER_SIZE:]
    if batch.compression != "none":
        records = decompressed(records, batch.compression)
    try:
        at = 0
        for number in range(batch.record_count):
            size, at = read_varint(records, at)
            if size < 0 or at + size > len(records):
                raise Rejected(f"record {number} of the batch is cut off")
            if _key_size(records, at) < 0:
                found.append(number)
            at += size
    except IndexError:
        raise Rejected("the records of the batch are cut off") from None
    return found


def _key_size(records: Buffer, at: int) -> int:
    _timestamp, at = read_varint(records, at + 1)  # behind the attributes
    _offset, at = read_varint(records, at)
    return read_varint(records, at)[0]
