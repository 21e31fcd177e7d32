"""Reads merge-on-read deletes: the positions of deleted rows in each data file. Blocks: runs in threads.

Supports position delete files, and deletion vectors of format v3. Equality deletes are rejected: applying them requires
reading all rows.
"""

import struct
import zlib
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyroaring import BitMap

from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read.manifest_index import EQUALITY_DELETES, POSITION_DELETES, ListedFiles
from lakestream.data.table.read.parquet_footer import BAD_PARQUET
from lakestream.errors import Corrupt
from lakestream.model import Buffer

POSITIONS_MAX: Final = 20_000_000
"""Deleted rows of one file or vector. A run of any length takes a few bytes in the file, 8 bytes a row in memory."""
_VECTOR_MAGIC: Final = b"\xd1\xd3\x39\x64"
_NONE: Final = np.empty(0, np.int64)


def deletes_of(deletes: ListedFiles, location: str, sequence: int, partition: int) -> list[int]:
    """Returns positions of the delete files that may apply to a data file. Raises Corrupt if equality deletes do."""
    if not len(deletes):
        return []
    near = (deletes.partition_lo <= partition) & (deletes.partition_hi >= partition)
    equality = near & (deletes.content == EQUALITY_DELETES) & (deletes.sequences > sequence)
    if equality.any():
        name = deletes.locations[int(np.flatnonzero(equality)[0])]
        raise Corrupt(
            f"{name} deletes rows by equality, which is not supported: rewrite the table's files (CALL"
            " system.rewrite_data_files, with delete-file-threshold 1), and delete by position from then on"
        )
    position = near & (deletes.content == POSITION_DELETES) & (deletes.sequences >= sequence)
    return [place for place in np.flatnonzero(position).tolist() if deletes.referenced[place] in (None, location)]


def read_positions(body: Buffer, name: str) -> dict[str, Longs]:
    """Reads a position delete file. Returns, by data file, the positions of its deleted rows, ascending."""
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(body)), read_dictionary=["file_path"])
        _check_count(file.metadata.num_rows, name)
        table = file.read(columns=["file_path", "pos"], use_threads=False).unify_dictionaries()
        paths = table.column("file_path").combine_chunks()
        numbers, positions = np.asarray(paths.indices), table.column("pos").to_numpy()
        order = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[order], np.arange(len(paths.dictionary) + 1))
        by_file = {}
        for number, path in enumerate(paths.dictionary.to_pylist()):
            some = order[starts[number] : starts[number + 1]]
            by_file[path] = np.unique(positions[some]).astype(np.int64)
    except BAD_PARQUET as error:
        raise Corrupt(f"{name} is damaged ({error}); restore it from a backup") from error
    return by_file


def read_vector(blob: Buffer, name: str) -> Longs:
    """Reads a deletion vector: a length, a magic number, one bitmap for every 2^32 rows, a checksum."""
    try:
        view = memoryview(blob)
        (length,) = struct.unpack_from(">I", view)
        (checksum,) = struct.unpack_from(">I", view, 4 + length)
        if bytes(view[4:8]) != _VECTOR_MAGIC or zlib.crc32(view[4 : 4 + length]) != checksum:
            raise ValueError("its checksum is wrong")
        (count,) = struct.unpack_from("<Q", view, 8)
        at, parts, deleted = 16, [_NONE], 0
        for _ in range(count):
            (high,) = struct.unpack_from("<I", view, at)
            bitmap = BitMap.deserialize(bytes(view[at + 4 : 4 + length]))
            deleted += len(bitmap)
            _check_count(deleted, name)
            at += 4 + len(bitmap.serialize())
            parts.append(np.array(bitmap.to_array(), np.int64) + (high << 32))
        return np.concatenate(parts)
    except (struct.error, ValueError) as error:
        raise Corrupt(f"{name} is damaged: a deletion vector cannot be read ({error})") from error


def _check_count(count: int, name: str) -> None:
    if count > POSITIONS_MAX:
        raise Corrupt(
            f"{name} deletes {count} rows, more than {POSITIONS_MAX}: rewrite the table's files (CALL"
            " system.rewrite_data_files, with delete-file-threshold 1)"
        )


def joined(parts: list[Longs]) -> Longs | None:
    return np.unique(np.concatenate(parts)) if parts else None
