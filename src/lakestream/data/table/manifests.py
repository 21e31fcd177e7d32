"""Manifest lists and manifests: which files a snapshot has, and what offsets and times are in each.

They are the index of history, and the only one. Read by planning.py, in threads; the kernels below load on import.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lakestream.catalog.topic_layout import OFFSET_ID, PARTITION_ID, TIMESTAMP_ID
from lakestream.data.table import avro
from lakestream.data.table.compiled import Longs
from lakestream.data.table.kernels_avro import NOTHING
from lakestream.errors import Corrupt
from lakestream.model import Buffer

LOWEST: Final = -(2**63) + 1
HIGHEST: Final = 2**63 - 1
"""Bounds of what nobody has bounded."""

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_DELETED: Final = 2
_SPEC_FIELDS_MAX: Final = 8
_PATH_ID: Final = 2147483546
"""The column of a position delete file that says which data file it is about."""

FILE_OVERHEAD: Final = 400
"""Bytes of memory for what is known of one file, some 100 of them its location's."""


class Manifest(NamedTuple):
    """As a snapshot lists it."""

    location: str
    size: int
    content: int
    sequence_number: int
    partition_lo: int
    partition_hi: int
    """Of the topic: what all files in it are within."""


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """Files of one manifest, or of one partition: one array a fact. Bounds are inclusive, times in microseconds."""

    locations: list[str]
    about: list[str | None]
    """Of deletes: the one data file that they are about, where that is known."""
    is_parquet: NDArray[np.bool_]
    facts: Longs
    """A row for each of FACTS."""

    def __len__(self) -> int:
        return len(self.locations)

    def __getattr__(self, fact: str) -> Longs:
        if fact not in FACTS:
            raise AttributeError(fact)
        found: Longs = self.facts[FACTS.index(fact)]
        return found

    def picked(self, places: Longs) -> "Files":
        at = places.tolist()
        return Files(
            [self.locations[place] for place in at],
            [self.about[place] for place in at],
            self.is_parquet[places],
            np.ascontiguousarray(self.facts[:, places]),
        )

    def with_bounds(self, places: Sequence[int], bounds: Sequence[tuple[int, int]]) -> "Files":
        """The same with other offsets for some of them."""
        facts = self.facts.copy()
        facts[FACTS.index("offset_lo"), places] = [low for low, _ in bounds]
        facts[FACTS.index("offset_hi"), places] = [high for _, high in bounds]
        return Files(self.locations, self.about, self.is_parquet, facts)

    @property
    def bytes_held(self) -> int:
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
)


def joined(parts: list[Files]) -> Files:
    if len(parts) == 1:
        return parts[0]
    return Files(
        [location for part in parts for location in part.locations],
        [about for part in parts for about in part.about],
        np.concatenate([np.empty(0, np.bool_), *(part.is_parquet for part in parts)]),
        np.concatenate([np.empty((len(FACTS), 0), np.int64), *(part.facts for part in parts)], axis=1),
    )


# Where avro.py puts what: bytes take two slots.
_LIST: Final = avro.Wanted(
    slots=7 + 4 * _SPEC_FIELDS_MAX,
    fields={500: 0, 501: 2, 502: 3, 515: 4, 517: 5, 510: 7, 511: 9},
    listed={507: (4, _SPEC_FIELDS_MAX)},
)
_ENTRIES: Final = avro.Wanted(
    slots=32,
    fields={0: 0, 3: 1, 134: 2, 100: 3, 101: 5, 103: 7, 104: 8, 143: 9, 144: 11, 145: 12},
    keyed={
        110: {TIMESTAMP_ID: 13},
        125: {PARTITION_ID: 14, OFFSET_ID: 16, TIMESTAMP_ID: 18, _PATH_ID: 20},
        128: {PARTITION_ID: 22, OFFSET_ID: 24, TIMESTAMP_ID: 26, _PATH_ID: 28},
    },
)


def read_list(body: Buffer, places: Mapping[int, int], location: str) -> list[Manifest]:
    """`places`: by partition spec, which of its fields is the topic's partition, if one is."""
    found = avro.read(body, _LIST, location)
    rows = range(len(found.rows))
    columns = [found.longs(slot, 0).tolist() for slot in (2, 3, 5, 4)]
    bounds = {
        place: (found.numbers(7 + 4 * place, LOWEST), found.numbers(9 + 4 * place, HIGHEST))
        for place in set(places.values())
        if place < _SPEC_FIELDS_MAX
    }
    nowhere = (np.full(len(rows), LOWEST), np.full(len(rows), HIGHEST))
    listed = []
    for row, size, spec, content, sequence in zip(rows, *columns, strict=True):
        lower, upper = bounds.get(places.get(spec, -1), nowhere)
        listed.append(Manifest(_text(found, 0, row), size, content, sequence, int(lower[row]), int(upper[row])))
    return listed


def read_files(body: Buffer, manifest: Manifest) -> Files:
    """What is in it now: what a commit took out is left out."""
    found = avro.read(body, _ENTRIES, manifest.location)
    alive = np.flatnonzero(found.rows[:, 0] != _DELETED)
    found = avro.Found(manifest.location, found.data, np.ascontiguousarray(found.rows[alive]))
    rows = range(len(found.rows))
    # A new file has the number of the commit that brought it, which was not known when its manifest was written.
    facts = {
        "sequences": found.longs(1, manifest.sequence_number),
        "content": found.longs(2, DATA),
        "rows": found.longs(7, 0),
        "sizes": found.longs(8, 0),
        "blob_start": found.longs(11, 0),
        "blob_size": found.longs(12, 0),
        "times_null": found.longs(13, -1),
        "partition_lo": np.maximum(found.numbers(14, LOWEST), manifest.partition_lo),
        "partition_hi": np.minimum(found.numbers(22, HIGHEST), manifest.partition_hi),
        "offset_lo": found.numbers(16, LOWEST),
        "offset_hi": found.numbers(24, HIGHEST),
        "time_lo": found.numbers(18, LOWEST),
        "time_hi": found.numbers(26, HIGHEST),
    }
    return Files(
        [_text(found, 3, row) for row in rows],
        [_about(found, row) if manifest.content else None for row in rows],
        np.array([_text(found, 5, row).lower() == "parquet" for row in rows], np.bool_),
        np.stack([facts[fact] for fact in FACTS]),
    )


def _about(found: avro.Found, row: int) -> str | None:
    if (said := found.text(9, row)) is not None:
        return said
    lower, upper = found.text(20, row), found.text(28, row)
    return lower if lower == upper else None


def _text(found: avro.Found, slot: int, row: int) -> str:
    if not (text := found.text(slot, row)):
        raise Corrupt(f"{found.location} is damaged: entry {row} names no file")
    return text


assert NOTHING < LOWEST, "what is not there is told from every bound"
