"""Reads manifest lists and manifests: the files of a snapshot, with the bounds of their offsets and timestamps.

They are the only index of history. Used by scan_planner.py, in threads; the kernels below load on import.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lakestream.catalog.topic_table.columns import OFFSET_ID, PARTITION_ID, TIMESTAMP_ID
from lakestream.data.table.kernels.avro import ABSENT
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read import manifest_avro
from lakestream.errors import Corrupt
from lakestream.model import Buffer

LOWEST: Final = -(2**63) + 1
HIGHEST: Final = 2**63 - 1
"""Bounds of a file without bounds in its manifest."""
UNKNOWN: Final = -1
"""A count that the manifest lacks."""

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_DELETED: Final = 2
_SPEC_FIELDS_MAX: Final = 8
_PATH_ID: Final = 2147483546
"""The column of a position delete file that names the data file."""

FILE_OVERHEAD: Final = 400
"""Bytes of memory for the facts of one file, some 100 of them for its location."""


class Manifest(NamedTuple):
    """A manifest in a manifest list."""

    location: str
    size: int
    content: int
    sequence_number: int
    partition_lo: int
    partition_hi: int
    """Bounds of the topic's partition for all files in it."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedFiles:
    """Files of one manifest, or of one partition: one array per fact. Bounds are inclusive, times in microseconds."""

    locations: list[str]
    referenced: list[str | None]
    """For delete files: the only data file whose rows they delete, if that is known."""
    is_parquet: NDArray[np.bool_]
    facts: Longs
    """A row for each of FACTS."""

    def __len__(self) -> int:
        return len(self.locations)

    def __getattr__(self, fact: str) -> Longs:
        if fact not in FACTS:
            raise AttributeError(fact)
        values: Longs = self.facts[FACTS.index(fact)]
        return values

    def picked(self, places: Longs) -> "ListedFiles":
        at = places.tolist()
        return ListedFiles(
            [self.locations[place] for place in at],
            [self.referenced[place] for place in at],
            self.is_parquet[places],
            np.ascontiguousarray(self.facts[:, places]),
        )

    def with_bounds(self, places: Sequence[int], bounds: Sequence[tuple[int, int]]) -> "ListedFiles":
        """Returns the files with these bounds of offsets for some of them."""
        facts = self.facts.copy()
        facts[FACTS.index("offset_lo"), places] = [low for low, _ in bounds]
        facts[FACTS.index("offset_hi"), places] = [high for _, high in bounds]
        return ListedFiles(self.locations, self.referenced, self.is_parquet, facts)

    def with_offsets(self) -> "ListedFiles":
        """Returns the files without those in which no row has an offset: engines added those, and their rows are not
        records."""
        rowless = (self.offsets_null == self.rows) & (self.offset_lo == LOWEST) & (self.offset_hi == HIGHEST)
        empty = rowless | (self.offset_lo > self.offset_hi)
        return self.picked(np.flatnonzero(~empty)) if empty.any() else self

    @property
    def memory_size(self) -> int:
        return FILE_OVERHEAD * (len(self) + 1)


FACTS: Final = (
    "content",
    "partition_lo",
    "partition_hi",
    "offset_lo",
    "offset_hi",
    "time_lo",
    "time_hi",
    "times_null",
    "rows",
    "sizes",
    "sequences",
    "blob_start",
    "blob_size",
    "offsets_null",
)


def joined(parts: list[ListedFiles]) -> ListedFiles:
    if len(parts) == 1:
        return parts[0]
    return ListedFiles(
        [location for part in parts for location in part.locations],
        [location for part in parts for location in part.referenced],
        np.concatenate([np.empty(0, np.bool_), *(part.is_parquet for part in parts)]),
        np.concatenate([np.empty((len(FACTS), 0), np.int64), *(part.facts for part in parts)], axis=1),
    )


# The slots that manifest_avro.py fills: bytes take two.
_LIST: Final = manifest_avro.AvroFields(
    slots=7 + 4 * _SPEC_FIELDS_MAX,
    fields={500: 0, 501: 2, 502: 3, 515: 4, 517: 5, 510: 7, 511: 9},
    listed={507: (4, _SPEC_FIELDS_MAX)},
)
_ENTRIES: Final = manifest_avro.AvroFields(
    slots=32,
    fields={0: 0, 3: 1, 134: 2, 100: 3, 101: 5, 103: 7, 104: 8, 143: 9, 144: 11, 145: 12},
    keyed={
        110: {TIMESTAMP_ID: 13, OFFSET_ID: 30},
        125: {PARTITION_ID: 14, OFFSET_ID: 16, TIMESTAMP_ID: 18, _PATH_ID: 20},
        128: {PARTITION_ID: 22, OFFSET_ID: 24, TIMESTAMP_ID: 26, _PATH_ID: 28},
    },
)


def read_list(body: Buffer, places: Mapping[int, int], location: str) -> list[Manifest]:
    """Returns the manifests of a list. `places`: by partition spec, which of its fields is the topic's partition."""
    records = manifest_avro.read(body, _LIST, location)
    rows = range(len(records.rows))
    columns = [records.longs(slot, 0).tolist() for slot in (2, 3, 5, 4)]
    bounds = {
        place: (records.numbers(7 + 4 * place, LOWEST), records.numbers(9 + 4 * place, HIGHEST))
        for place in set(places.values())
        if place < _SPEC_FIELDS_MAX
    }
    unbounded = (np.full(len(rows), LOWEST), np.full(len(rows), HIGHEST))
    listed = []
    for row, size, spec, content, sequence in zip(rows, *columns, strict=True):
        lower, upper = bounds.get(places.get(spec, -1), unbounded)
        listed.append(Manifest(_text(records, 0, row), size, content, sequence, int(lower[row]), int(upper[row])))
    return listed


def read_files(body: Buffer, manifest: Manifest) -> ListedFiles:
    """Returns the live files of a manifest: entries with status DELETED are left out."""
    records = manifest_avro.read(body, _ENTRIES, manifest.location)
    live = np.flatnonzero(records.rows[:, 0] != _DELETED)
    records = manifest_avro.AvroRecords(manifest.location, records.data, np.ascontiguousarray(records.rows[live]))
    rows = range(len(records.rows))
    # A new file inherits the sequence number of its commit, which was unknown when its manifest was written.
    facts = {
        "sequences": records.longs(1, manifest.sequence_number),
        "content": records.longs(2, DATA),
        "rows": records.longs(7, 0),
        "sizes": records.longs(8, 0),
        "blob_start": records.longs(11, 0),
        "blob_size": records.longs(12, 0),
        "times_null": records.longs(13, -1),
        "offsets_null": records.longs(30, UNKNOWN),
        "partition_lo": np.maximum(records.numbers(14, LOWEST), manifest.partition_lo),
        "partition_hi": np.minimum(records.numbers(22, HIGHEST), manifest.partition_hi),
        "offset_lo": records.numbers(16, LOWEST),
        "offset_hi": records.numbers(24, HIGHEST),
        "time_lo": records.numbers(18, LOWEST),
        "time_hi": records.numbers(26, HIGHEST),
    }
    return ListedFiles(
        [_text(records, 3, row) for row in rows],
        [_referenced(records, row) if manifest.content else None for row in rows],
        np.array([_text(records, 5, row).lower() == "parquet" for row in rows], np.bool_),
        np.stack([facts[fact] for fact in FACTS]),
    )


def _referenced(records: manifest_avro.AvroRecords, row: int) -> str | None:
    if (location := records.text(9, row)) is not None:
        return location
    lower, upper = records.text(20, row), records.text(28, row)
    return lower if lower == upper else None


def _text(records: manifest_avro.AvroRecords, slot: int, row: int) -> str:
    if not (text := records.text(slot, row)):
        raise Corrupt(f"{records.location} is damaged: entry {row} names no file")
    return text


assert ABSENT < LOWEST, "an absent field differs from every bound"
