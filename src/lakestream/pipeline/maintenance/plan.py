"""What a table needs now: pure, from its files, its settings and the clock.

Before: catalog/listing.py, which knows the files.  After: maintain.py, which has the work done and committed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lakestream.catalog.arranging import file_layout, own_specs
from lakestream.catalog.bound_columns import bound_ids
from lakestream.catalog.listing import POSITION_DELETES, Listing, LiveFile, by_partition
from lakestream.catalog.parquet_names import file_columns
from lakestream.catalog.rewrite import ROW_IDS_SINCE
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_layout import VALUE_ID, iceberg_schema
from lakestream.catalog.topic_shape import kinds_of, plain_spec
from lakestream.pipeline.maintenance.compacting import Cleaned, CompactionSettings, cleaned_of, due
from lakestream.pipeline.maintenance.merging import MergeSettings, merges
from lakestream.pipeline.maintenance.rows import leaving
from lakestream.pipeline.maintenance.tasks import Compact, Forget, Merge, Source, Task, Writing
from lakestream.schemas.columns import Column, columns_of, leaf_ids, pruned

TARGET_SIZE: Final = "write.target-file-size-bytes"
FOR_EVER: Final = -1


class Policy(NamedTuple):
    """What a topic wants of its table."""

    compaction: CompactionSettings | None = None
    """None: it is not compacted."""
    rows_ms: int = FOR_EVER
    """How long rows stay that the stream has forgotten."""
    anew: frozenset[str] = frozenset()
    """Files that are to be written anew without rows that were deleted: its Delta table waits for that."""
    misnamed: frozenset[str] = frozenset()
    """And those that are to be for the names of their columns. Columns of others keep theirs, so these files wait."""


@dataclass(frozen=True, slots=True)
class Plan:
    tasks: tuple[Task, ...] = ()
    dropped: tuple[LiveFile, ...] = ()
    """Files that go whole: no worker need look at them."""
    not_possible: str = ""
    """Why files are left as they are, where there would be something to do."""
    cleaned: Mapping[int, Cleaned] = field(default_factory=dict)


def plan(
    metadata: Json,
    listing: Listing,
    policy: Policy,
    log_starts: Mapping[int, int],
    now_ms: int,
    settings: MergeSettings,
    not_merged: Collection[str] = (),
) -> Plan:
    """At most as much as one round takes: rows that are to go first, then compaction, then merges. `not_merged`: files
    with which that has failed."""
    hindered = _hindrance(metadata, listing)
    if hindered:
        return Plan(not_possible=hindered)
    cleaned = cleaned_of(metadata)
    making = _Making(metadata, listing, policy, now_ms, settings, not_merged)
    for partition, files in by_partition(listing.data).items():
        making.partition(partition, files, cleaned.get(partition, Cleaned()), log_starts.get(partition, 0))
    return Plan(tuple(making.tasks), tuple(making.dropped), making.hindered, cleaned)


def _hindrance(metadata: Json, listing: Listing) -> str:
    if metadata["format-version"] >= ROW_IDS_SINCE:
        return "the table is of format v3: its rows have ids, and are left where they are"
    if any(file.content != POSITION_DELETES or not file.is_parquet for file in listing.deletes):
        return "rows were deleted by equality: files are left as they are until CALL system.rewrite_data_files is done"
    return ""


class _Making:
    def __init__(
        self,
        metadata: Json,
        listing: Listing,
        policy: Policy,
        now_ms: int,
        settings: MergeSettings,
        not_merged: Collection[str],
    ) -> None:
        self._not_merged = not_merged
        self._policy = policy
        self._now_ms = now_ms
        self._settings = settings
        self._deletes = listing.deletes
        self._location: str = metadata["location"]
        self._target = _target(metadata, settings)
        self._bound = bound_ids(metadata)
        self._columns = _typed_columns(metadata, self._bound)
        self._own_specs = own_specs(metadata)
        self._placed = Placed(metadata)
        self._writing = writing_of(metadata)
        self._ages_ms = {one.get("sequence-number", 0): now_ms - one["timestamp-ms"] for one in metadata["snapshots"]}
        self._deleted_rows: dict[str, int] = {}
        for file in listing.deletes:
            if file.about is not None:
                self._deleted_rows[file.about] = self._deleted_rows.get(file.about, 0) + file.record_count
        self._all_known = all(
            file.is_parquet and file.partition >= 0 and file.offset_first is not None for file in listing.data
        )
        self._room = settings.round_bytes_max
        self.tasks: list[Task] = []
        self.dropped: list[LiveFile] = []
        self.hindered = ""

    def partition(self, number: int, files: Sequence[LiveFile], cleaned: Cleaned, log_start: int) -> None:
        """What one partition needs, one thing at a time: each makes other files of what the next would look at."""
        left = self._forget(number, files, log_start)
        if left is not None and not self._compact(number, left, cleaned):
            self._merge(number, left)

    def _forget(self, number: int, files: Sequence[LiveFile], log_start: int) -> Sequence[LiveFile] | None:
        """None: files are to be written anew for it."""
        if self._policy.rows_ms == FOR_EVER:
            return files
        before_ms = self._now_ms - self._policy.rows_ms
        whole, border = leaving(files, log_start, before_ms)
        self.dropped += whole
        border = tuple(file for file in border if file.is_parquet)
        if border and self._take(border):
            sources = self._sources(border)
            self.tasks.append(
                Forget(
                    number,
                    sources,
                    self._location,
                    self._target,
                    before_ms,
                    log_start,
                    self._columns,
                    self._writing,
                )
            )
            return None
        return [file for file in files if file not in whole]

    def _compact(self, number: int, files: Sequence[LiveFile], cleaned: Cleaned) -> bool:
        if self._policy.compaction is None or not files:
            return False
        wanted = due(files, cleaned, self._policy.compaction, self._now_ms, self._ages_ms)
        if wanted is None:
            return False
        if not self._all_known:
            self.hindered = "some files hold rows of several partitions, or no bounds of offsets: not compacted"
            return False
        self._room -= sum(file.size for file in wanted.files)  # all of it, or nothing: it may be more than there is
        self.tasks.append(
            Compact(
                number,
                self._sources(wanted.files),
                self._location,
                self._target,
                wanted.dirty_from,
                wanted.end,
                wanted.tombstones_before,
                wanted.newest,
                self._columns,
                self._writing,
            )
        )
        return True

    def _merge(self, number: int, files: Sequence[LiveFile]) -> None:
        ours = [file for file in files if self._can_be_merged(file)]
        if anew := [file for file in files if self._is_wanted_anew(file)]:
            for file in anew:  # each for itself, and others another time: what is merged lies side by side
                if self._take([file]):
                    self.tasks.append(self._merged(number, [file]))
            return
        for together in _by_values(ours):
            for run in merges(together, self._ages_ms, self._target, self._settings, self._deleted_rows):
                if self._take(run):
                    self.tasks.append(self._merged(number, run))

    def _merged(self, number: int, files: Sequence[LiveFile]) -> Merge:
        return Merge(number, self._sources(files), self._location, self._target, self._columns, self._writing)

    def _is_wanted_anew(self, file: LiveFile) -> bool:
        """Columns of others are no hindrance where only rows go: they stay as they are."""
        if file.location in self._policy.anew:
            return file.is_parquet and file.location not in self._not_merged
        return file.location in self._policy.misnamed and self._can_be_merged(file)

    def _can_be_merged(self, file: LiveFile) -> bool:
        """What others have partitioned or widened is left as they want it."""
        return (
            file.is_parquet
            and file.spec_id in self._own_specs
            and file.more_columns <= self._bound
            and file.location not in self._not_merged
        )

    def _take(self, files: Sequence[LiveFile]) -> bool:
        size = sum(file.size for file in files)
        if self._room <= 0:
            return False
        self._room -= size
        return True

    def _sources(self, files: Sequence[LiveFile]) -> tuple[Source, ...]:
        return tuple(
            Source(
                file.location,
                file.size,
                file.offset_first or 0,
                file.offset_last or 0,
                file.tombstones != 0,
                tuple(one.location for one in self._deletes if _may_be_about(one, file)),
                *self._placed.of(file),
            )
            for file in files
        )


class Placed:
    """Which partition of the table what is written anew of a file is in: the same."""

    def __init__(self, metadata: Json) -> None:
        plain = plain_spec(metadata)
        self._plain = None if plain is None else plain["spec-id"]
        self._fields = {
            spec["spec-id"]: [field["field-id"] for field in spec["fields"]]
            for spec in metadata["partition-specs"]
            if kinds_of(metadata, spec) is not None
        }

    def of(self, file: LiveFile) -> tuple[int | None, tuple[Any, ...]]:
        """None: the partition of the stream alone, where its own spec is none that can be followed."""
        fields, values = self._fields.get(file.spec_id), dict(file.values)
        if file.spec_id == self._plain or fields is None or not values.keys() >= set(fields):
            return None, ()
        return file.spec_id, tuple(values[number] for number in fields)


def writing_of(metadata: Json) -> Writing:
    asked = tuple((name, text) for name, text in metadata["properties"].items() if name.startswith("write.parquet."))
    return Writing(file_layout(metadata), asked)


def _by_values(files: Sequence[LiveFile]) -> list[list[LiveFile]]:
    """Files of one partition of the table each, in their order."""
    found: dict[object, list[LiveFile]] = {}
    for file in files:
        found.setdefault((file.spec_id, file.values), []).append(file)
    return list(found.values())


def _may_be_about(deletes: LiveFile, file: LiveFile) -> bool:
    return deletes.about in (None, file.location) and deletes.sequence_number >= file.sequence_number


def _typed_columns(metadata: Json, bound: frozenset[int]) -> tuple[Column, ...]:
    """Of a typed table, as its files have them: what rows are written anew with."""
    columns = file_columns(metadata)
    if not bound and any(column.field_id == VALUE_ID for column in columns):
        return ()
    return pruned(columns, bound | _OWN)


_OWN: Final = leaf_ids(columns_of(iceberg_schema()))


def _target(metadata: Json, settings: MergeSettings) -> int:
    text = metadata["properties"].get(TARGET_SIZE, "")
    return int(text) if text.isdecimal() and int(text) > 0 else settings.target_bytes
