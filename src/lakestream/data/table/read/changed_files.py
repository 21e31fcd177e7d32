"""Computes the files that a commit adds to a table and removes from it, from the manifests of two of its snapshots.

    manifest lists  →  the manifests that only one list names  →  the files that only one snapshot has

The statuses of entries and the summaries of snapshots are not used: engines merge and rewrite manifests, and one commit
may have several snapshots. Any client may have written these files, so sizes are bounded. The kernels below load on
import.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from lakestream.aio.gather import gather_limited
from lakestream.aio.threads import Run
from lakestream.catalog.commit_checks.topic_table import (
    DataFile,
    SnapshotPair,
    check_all_rows,
    check_rows,
    stated_offsets,
)
from lakestream.catalog.locations import TableFolder
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.offsets import ancestors
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read.manifest_index import (
    DATA,
    EQUALITY_DELETES,
    FACTS,
    HIGHEST,
    LOWEST,
    POSITION_DELETES,
    UNKNOWN,
    ListedFiles,
    Manifest,
    joined,
    read_files,
    read_list,
)
from lakestream.data.table.read.metadata_parser_main import partition_places
from lakestream.data.table.read.position_deletes import POSITIONS_MAX
from lakestream.data.table.read.scan_planner import Planner
from lakestream.errors import Rejected
from lakestream.model import Buffer, MiB
from lakestream.storage.object_store import ObjectStore

READS_AT_ONCE: Final = 16
FILE_BYTES_MAX: Final = 64 * MiB
"""Maximum size of a manifest, and of a manifest list."""
BYTES_MAX: Final = 512 * MiB
"""Maximum size of all manifests and manifest lists that are read for one commit."""
FOOTERS_MAX: Final = 2_000
"""Footers read for one commit: of data files whose manifests lack statistics."""


class ChangedFiles(NamedTuple):
    """Added and removed data files and delete files (`content`), with their facts from manifests."""

    added: ListedFiles
    removed: ListedFiles


class CommitFiles:
    def __init__(self, store: ObjectStore, run: Run) -> None:
        self._store = store
        self._run = run
        self._planner = Planner(store, run)

    async def close(self) -> None:
        await self._planner.close()

    async def check(self, folder: TableFolder, pair: SnapshotPair, before: Json, after: Json) -> None:
        """Raises Rejected if the head of the pair has rows that a client may not add; Missing or Corrupt if its files
        cannot be read. `before`, `after`: the metadata of the table."""
        base = None if pair.base is None else pair.base.get("manifest-list")
        if (head := pair.head.get("manifest-list")) is None:
            raise Rejected(f"snapshot {pair.head['snapshot-id']} has no manifest list: write it in format version 2")
        changed = await self.changed(folder, base, head, partition_places(after))
        added = await self.with_footer_facts(folder, _data_files(changed.added))
        removed = _of_content(changed.removed, DATA)
        if added.offsets_null.any():
            removed = await self.with_footer_facts(folder, removed)
        added_deletes, removed_deletes = (int(_of_content(some, POSITION_DELETES).rows.sum()) for some in changed)
        check_rows(
            _as_data_files(added),
            _as_data_files(removed),
            max(0, added_deletes - removed_deletes),
            stated_offsets(before),
        )

    async def check_all(self, folder: TableFolder, metadata: Json) -> None:
        """Raises Rejected if `main` has rows that a client may not register; Missing or Corrupt as in `check`."""
        snapshot = next(ancestors(metadata))
        if (head := snapshot.get("manifest-list")) is None:
            raise Rejected(f"snapshot {snapshot['snapshot-id']} has no manifest list: write it in format version 2")
        live = (await self.changed(folder, None, head, partition_places(metadata))).added
        deleted = int(_of_content(live, POSITION_DELETES).rows.sum())
        files = _as_data_files(await self.with_footer_facts(folder, _data_files(live)))
        check_all_rows(files, deleted, stated_offsets(metadata))

    async def changed(
        self, folder: TableFolder, base_list: str | None, head_list: str, places: Mapping[int, int]
    ) -> ChangedFiles:
        """Returns the live files that only one of two snapshots has, from their manifest lists.

        `places`: by partition spec, which of its fields is the topic's partition. Raises Missing, Corrupt or Rejected
        if a manifest does not exist, cannot be read, is too large or outside of the table's folder.
        """
        budget = _ReadBudget(BYTES_MAX)
        before = [] if base_list is None else await self._list(folder, base_list, places, budget)
        after = await self._list(folder, head_list, places, budget)
        old, new = _only_in(before, after), _only_in(after, before)
        loaded = await gather_limited([self._files(folder, one, budget) for one in [*old, *new]], READS_AT_ONCE)
        for manifest, files in zip(new, loaded[len(old) :], strict=True):
            _check_content(manifest, files)
        return await self._run(lambda: difference(joined(loaded[: len(old)]), joined(loaded[len(old) :])))

    async def with_footer_facts(self, folder: TableFolder, files: ListedFiles) -> ListedFiles:
        """Returns the files with facts from their footers where manifests lack the number of rows without an offset, or
        the bounds of offsets."""
        unbounded = (files.offset_lo == LOWEST) | (files.offset_hi == HIGHEST)
        lacking = (files.offsets_null == UNKNOWN) | (unbounded & (files.offsets_null < files.rows))
        places = np.flatnonzero(lacking & (files.rows > 0)).tolist()
        if len(places) > FOOTERS_MAX:
            raise Rejected(
                f"{len(places):,} files of the commit have no statistics of _stream.offset in their manifests, more"
                f" than {FOOTERS_MAX:,}: commit fewer files, or let their writer collect metrics of that column"
            )
        footers = await gather_limited([self._planner.footer(folder, files, place) for place in places], READS_AT_ONCE)
        facts = files.facts.copy()
        for fact, values in (
            ("offset_lo", [footer.bounds[0] for footer in footers]),
            ("offset_hi", [footer.bounds[1] for footer in footers]),
            ("offsets_null", [footer.offsets_null for footer in footers]),
        ):
            facts[FACTS.index(fact), places] = values
        return ListedFiles(files.locations, files.referenced, files.is_parquet, facts)

    async def _list(
        self, folder: TableFolder, location: str, places: Mapping[int, int], budget: "_ReadBudget"
    ) -> list[Manifest]:
        body = await self._get(folder, location, budget)
        return await self._run(lambda: read_list(body, places, location))

    async def _files(self, folder: TableFolder, manifest: Manifest, budget: "_ReadBudget") -> ListedFiles:
        body = await self._get(folder, manifest.location, budget)
        return await self._run(lambda: read_files(body, manifest))

    async def _get(self, folder: TableFolder, location: str, budget: "_ReadBudget") -> Buffer:
        key = folder.named_key(location)
        budget.take(location, (await self._store.head(key)).size)
        return await self._store.get(key)


class _ReadBudget:
    """The number of bytes that may still be read for one commit."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, location: str, size: int) -> None:
        if size > FILE_BYTES_MAX:
            raise Rejected(f"{location} has {size} bytes, more than {FILE_BYTES_MAX}: write smaller manifests")
        self._left -= size
        if self._left < 0:
            raise Rejected(
                f"the commit changes manifests of more than {BYTES_MAX} bytes: commit fewer changes per commit"
            )


def difference(before: ListedFiles, after: ListedFiles) -> ChangedFiles:
    """Returns the added and the removed files. A file that is listed twice counts twice."""
    left = Counter(_names(before))
    added = []
    for place, name in enumerate(_names(after)):
        if left[name] > 0:
            left[name] -= 1
        else:
            added.append(place)
    removed = []
    for place, name in enumerate(_names(before)):
        if left[name] > 0:
            left[name] -= 1
            removed.append(place)
    return ChangedFiles(after.picked(_places(added)), before.picked(_places(removed)))


def _check_content(manifest: Manifest, files: ListedFiles) -> None:
    """Raises Rejected if the content of an entry differs from that of its manifest in the manifest list.

    History reads go by the list.
    """
    kinds = (DATA,) if manifest.content == DATA else (POSITION_DELETES, EQUALITY_DELETES)
    if len(wrong := np.flatnonzero(~np.isin(files.content, kinds))):
        place = int(wrong[0])
        raise Rejected(
            f"{files.locations[place]} has content {files.content[place]} in {manifest.location}, which has content"
            f" {manifest.content} in its list: write data files (0) and delete files (1, 2) to separate manifests"
        )


def _data_files(files: ListedFiles) -> ListedFiles:
    """Returns the data files. Raises Rejected if consumers could not read a table with these files."""
    data, equality, positions = (_of_content(files, one) for one in (DATA, EQUALITY_DELETES, POSITION_DELETES))
    if not data.is_parquet.all():
        location = data.locations[int(np.flatnonzero(~data.is_parquet)[0])]
        raise Rejected(f"{location} is not a Parquet file: the topic of this table is read from Parquet only")
    if len(equality):
        raise Rejected(
            f"{equality.locations[0]} deletes rows by equality, which the topic of this table does not support: delete"
            " by position, or rewrite the data files"
        )
    for place in np.flatnonzero(~positions.is_parquet).tolist():
        if positions.referenced[place] is None or not positions.blob_size[place]:
            raise Rejected(
                f"{positions.locations[place]} is neither a Parquet file of deleted positions nor a deletion vector:"
                " set write.delete.format.default to parquet"
            )
    if (positions.rows > POSITIONS_MAX).any():
        location = positions.locations[int(positions.rows.argmax())]
        raise Rejected(
            f"{location} deletes more than {POSITIONS_MAX} rows: rewrite the data files, or delete fewer rows"
        )
    return data


def _of_content(files: ListedFiles, content: int) -> ListedFiles:
    return files.picked(np.flatnonzero(files.content == content))


def _as_data_files(files: ListedFiles) -> list[DataFile]:
    facts = ("rows", "offsets_null", "partition_lo", "partition_hi", "offset_lo", "offset_hi")
    rows = zip(files.locations, *(getattr(files, fact).tolist() for fact in facts), strict=True)
    return [
        DataFile(location, count, nulls if count else 0, (partition_lo, partition_hi), (offset_lo, offset_hi))
        for location, count, nulls, partition_lo, partition_hi, offset_lo, offset_hi in rows
    ]


def _places(places: Sequence[int]) -> Longs:
    return np.array(places, np.int64)


def _names(files: ListedFiles) -> Iterable[tuple[str, int]]:
    """One file may have several deletion vectors."""
    return zip(files.locations, files.blob_start.tolist(), strict=True)


def _only_in(one: Sequence[Manifest], other: Sequence[Manifest]) -> list[Manifest]:
    left = Counter(manifest.location for manifest in other)
    only = []
    for manifest in one:
        if left[manifest.location] > 0:
            left[manifest.location] -= 1
        else:
            only.append(manifest)
    return only
