"""Rows that somebody has deleted without writing their file anew (merge-on-read): which places in which file.

Position delete files, and deletion vectors of format v3. Equality deletes are refused: which rows they mean can only be
told by reading all of them. Blocks: runs in threads.
"""

import struct
import zlib
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyroaring import BitMap

from lakestream.data.table.compiled import Longs
from lakestream.data.table.footers import BAD_PARQUET
from lakestream.data.table.manifests import EQUALITY_DELETES, POSITION_DELETES, Files
from lakestream.errors import Corrupt
from lakestream.model import Buffer

_VECTOR_MAGIC: Final = b"\xd1\xd3\x39\x64"
_NONE: Final = np.empty(0, np.int64)


def about(deletes: Files, location: str, sequence: int, partition: int) -> list[int]:
    """Which of the delete files may have something to say about a data file. Corrupt: one that is refused does."""
    if not len(deletes):
        return []
    near = (deletes.partition_lo <= partition) & (deletes.partition_hi >= partition)
    equality = near & (deletes.content == EQUALITY_DELETES) & (deletes.sequences > sequence)
    if equality.any():
        name = deletes.locations[int(np.flatnonzero(equality)[0])]
        raise Corrupt(
            f"{name} deletes rows by equality, which is not followed here: have the table's files rewritten"
            " (CALL system.rewrite_data_files, with delete-file-threshold 1), and delete by position from then on"
        )
    position = near & (deletes.content == POSITION_DELETES) & (deletes.sequences >= sequence)
    return [place for place in np.flatnonzero(position).tolist() if deletes.about[place] in (None, location)]


def read_positions(body: Buffer, name: str) -> dict[str, Longs]:
    """Of a position delete file: by data file, the places of its deleted rows, ascending."""
    try:
        table = pq.read_table(pa.BufferReader(pa.py_buffer(body)), columns=["file_path", "pos"], use_threads=False)
        paths = table.column("file_path").combine_chunks().dictionary_encode()
        positions = table.column("pos").to_numpy()
        found = {}
        for number, path in enumerate(paths.dictionary.to_pylist()):
            found[path] = np.unique(positions[np.asarray(paths.indices) == number]).astype(np.int64)
    except BAD_PARQUET as error:
        raise Corrupt(f"{name} is damaged ({error}); restore it from a backup") from error
    return found


def read_vector(blob: Buffer, name: str) -> Longs:
    """Of a deletion vector: a length, a mark, one bitmap for every 2^32 rows, a checksum."""
    try:
        view = memoryview(blob)
        (length,) = struct.unpack_from(">I", view)
        (checksum,) = struct.unpack_from(">I", view, 4 + length)
        if bytes(view[4:8]) != _VECTOR_MAGIC or zlib.crc32(view[4 : 4 + length]) != checksum:
            raise ValueError("its checksum is wrong")
        (count,) = struct.unpack_from("<Q", view, 8)
        at, found = 16, [_NONE]
        for _ in range(count):
            (high,) = struct.unpack_from("<I", view, at)
            bitmap = BitMap.deserialize(bytes(view[at + 4 : 4 + length]))
            at += 4 + len(bitmap.serialize())
            found.append(np.array(bitmap.to_array(), np.int64) + (high << 32))
        return np.concatenate(found)
    except (struct.error, ValueError) as error:
        raise Corrupt(f"{name} is damaged: a deletion vector cannot be read ({error})") from error


def joined(parts: list[Longs]) -> Longs | None:
    return np.unique(np.concatenate(parts)) if parts else None
