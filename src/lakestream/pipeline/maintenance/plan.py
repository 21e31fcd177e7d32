"""Plans the maintenance of a table from its files, its settings and the time. Pure.

Before: catalog/operations/live_files.py, which lists the files.  After: service.py, which runs and commits the tasks.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lakestream.catalog.operations.live_files import LiveFiles
from lakestream.catalog.operations.rewrite_files import ROW_IDS_SINCE
from lakestream.catalog.operations.update_layout import file_layout, own_specs
from lakestream.catalog.table_metadata.json_model import Json, decimal
from lakestream.catalog.topic_table.checks import partition_types, plain_spec
from lakestream.catalog.topic_table.columns import VALUE_ID, iceberg_schema
from lakestream.catalog.topic_table.field_names import file_columns
from lakestream.catalog.topic_table.live_file import POSITION_DELETES, LiveFile, by_partition
from lakestream.catalog.topic_table.properties import bound_ids
from lakestream.pipeline.maintenance.key_compaction import Cleaned, CompactionSettings, cleaned_of, plan_compaction
from lakestream.pipeline.maintenance.row_retention import plan_row_removal
from lakestream.pipeline.maintenance.small_files import MergeSettings, plan_merges
from lakestream.pipeline.maintenance.tasks import Compact, Merge, RemoveRows, SourceFile, Task, Writing
from lakestream.schemas.columns import Column, columns_of, leaf_ids, pruned

TARGET_SIZE: Final = "write.target-file-size-bytes"
PARQUET_PREFIX: Final = "write.parquet."
FOR_EVER: Final = -1


class Policy(NamedTuple):
    """Settings of a topic for its table."""

    compaction: CompactionSettings | None = None
    """None: the table is not compacted."""
    rows_ms: int = FOR_EVER
    """How long rows stay in the table after the log no longer has their records."""
    with_deletes: frozenset[str] = frozenset()
    """Files to rewrite without deleted rows, because the Delta table needs it."""
    misnamed: frozenset[str] = frozenset()
    """Files to rewrite with other column names, because the Delta table needs it. Files with foreign columns are not
    rewritten, because these columns keep their names."""


@dataclass(frozen=True, slots=True)
class Plan:
    tasks: tuple[Task, ...] = ()
    dropped: tuple[LiveFile, ...] = ()
    """Files to delete as a whole, without reading them."""
    skipped: str = ""
    """Why files that need maintenance are skipped; empty if none are."""
    cleaned: Mapping[int, Cleaned] = field(default_factory=dict)


def plan(
    metadata: Json,
    listing: LiveFiles,
    policy: Policy,
    log_starts: Mapping[int, int],
    now_ms: int,
    settings: MergeSettings,
    failed_merges: Collection[str] = (),
) -> Plan:
    """Returns the tasks of one visit: removal of rows first, then compaction, then merges; limited in size.

    `failed_merges`: files of failed merges, which are skipped.
    """
    if reason := _unsupported(metadata, listing):
        return Plan(skipped=reason)
    cleaned = cleaned_of(metadata)
    planner = _Planner(metadata, listing, policy, now_ms, settings, failed_merges)
    for partition, files in by_partition(listing.data).items():
        planner.partition(partition, files, cleaned.get(partition, Cleaned()), log_starts.get(partition, 0))
    return Plan(tuple(planner.tasks), tuple(planner.dropped), planner.skipped, cleaned)


def _unsupported(metadata: Json, listing: LiveFiles) -> str:
    if metadata["format-version"] >= ROW_IDS_SINCE:
        return "the table has format v3 with row ids: its files are not rewritten"
    if any(file.content != POSITION_DELETES or not file.is_parquet for file in listing.deletes):
        return "the table has equality deletes: no file is rewritten until you run CALL system.rewrite_data_files"
    return ""


class _Planner:
    def __init__(
        self,
        metadata: Json,
        listing: LiveFiles,
        policy: Policy,
        now_ms: int,
        settings: MergeSettings,
        failed_merges: Collection[str],
    ) -> None:
        self._failed_merges = failed_merges
        self._policy = policy
        self._now_ms = now_ms
        self._settings = settings
        self._deletes = listing.deletes
        self._location: str = metadata["location"]
        self._target = _target(metadata, settings)
        self._bound = bound_ids(metadata)
        self._columns = _own_columns(metadata, self._bound)
        self._own_specs = own_specs(metadata)
        self._partitions = FilePartitions(metadata)
        self._writing = writing_of(metadata)
        self._ages_ms = {one.get("sequence-number", 0): now_ms - one["timestamp-ms"] for one in metadata["snapshots"]}
        self._deleted_rows: dict[str, int] = {}
        for file in listing.deletes:
            if file.referenced_file is not None:
                self._deleted_rows[file.referenced_file] = (
                    self._deleted_rows.get(file.referenced_file, 0) + file.record_count
                )
        self._has_all_bounds = all(
            file.is_parquet and file.partition >= 0 and file.offset_first is not None and not file.offsets_null
            for file in listing.data
            if file.has_records
        )
        self._room = settings.round_bytes_max
        self.tasks: list[Task] = []
        self.dropped: list[LiveFile] = []
        self.skipped = ""

    def partition(self, number: int, files: Sequence[LiveFile], cleaned: Cleaned, log_start: int) -> None:
        """Plans one kind of task for a partition: each kind replaces the files that the next one would plan with."""
        left = self._remove_rows(number, files, log_start)
        if left is not None and not self._compact(number, left, cleaned):
            self._merge(number, left)

    def _remove_rows(self, number: int, files: Sequence[LiveFile], log_start: int) -> Sequence[LiveFile] | None:
        """Returns the files that are left; None if files are to be rewritten without expired rows."""
        if self._policy.rows_ms == FOR_EVER:
            return files
        before_ms = self._now_ms - self._policy.rows_ms
        whole, border = plan_row_removal(files, log_start, before_ms)
        self.dropped += whole
        border = tuple(file for file in border if file.is_parquet)
        if border and self._take(border):
            sources = self._sources(border)
            self.tasks.append(
                RemoveRows(
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
        due = plan_compaction(files, cleaned, self._policy.compaction, self._now_ms, self._ages_ms)
        if due is None:
            return False
        if not self._has_all_bounds:
            self.skipped = (
                "some files have rows of several partitions, rows without offsets, or no bounds of offsets: the table"
                " is not compacted"
            )
            return False
        self._room -= sum(file.size for file in due.files)  # all or nothing: it may exceed the limit
        self.tasks.append(
            Compact(
                number,
                self._sources(due.files),
                self._location,
                self._target,
                due.dirty_from,
                due.end,
                due.tombstones_before,
                due.newest,
                self._columns,
                self._writing,
            )
        )
        return True

    def _merge(self, number: int, files: Sequence[LiveFile]) -> None:
        mergeable = [file for file in files if self._can_be_merged(file)]
        if blocking := [file for file in files if self._blocks_delta(file)]:
            for file in blocking:  # each alone; other merges follow later, because files of a merge must be adjacent
                if self._take([file]):
                    self.tasks.append(self._merged(number, [file]))
            return
        for group in _by_values(mergeable):
            for run in plan_merges(group, self._ages_ms, self._target, self._settings, self._deleted_rows):
                if self._take(run):
                    self.tasks.append(self._merged(number, run))

    def _merged(self, number: int, files: Sequence[LiveFile]) -> Merge:
        return Merge(number, self._sources(files), self._location, self._target, self._columns, self._writing)

    def _blocks_delta(self, file: LiveFile) -> bool:
        """Whether to rewrite a file for the Delta table. With foreign columns only rows can be removed."""
        if file.location in self._policy.with_deletes:
            return file.is_parquet and file.location not in self._failed_merges
        return file.location in self._policy.misnamed and self._can_be_merged(file)

    def _can_be_merged(self, file: LiveFile) -> bool:
        """Whether to merge a file. Files with partition specs or columns of other engines are not merged."""
        return (
            file.is_parquet
            and file.spec_id in self._own_specs
            and file.more_columns <= self._bound
            and file.location not in self._failed_merges
        )

    def _take(self, files: Sequence[LiveFile]) -> bool:
        size = sum(file.size for file in files)
        if self._room <= 0:
            return False
        self._room -= size
        return True

    def _sources(self, files: Sequence[LiveFile]) -> tuple[SourceFile, ...]:
        return tuple(
            SourceFile(
                file.location,
                file.size,
                file.offset_first or 0,
                file.offset_last or 0,
                file.tombstones != 0,
                tuple(one.location for one in self._deletes if may_delete_from(one, file)),
                *self._partitions.of(file),
            )
            for file in files
        )


class FilePartitions:
    """Partitions of the table's files. A rewritten file stays in its partition."""

    def __init__(self, metadata: Json) -> None:
        plain = plain_spec(metadata)
        self._plain = None if plain is None else plain["spec-id"]
        self._fields = {
            spec["spec-id"]: [field["field-id"] for field in spec["fields"]]
            for spec in metadata["partition-specs"]
            if partition_types(metadata, spec) is not None
        }

    def of(self, file: LiveFile) -> tuple[int | None, tuple[Any, ...]]:
        """Returns spec id and values; None if the spec is unsupported, so that only the stream's partition is kept."""
        fields, values = self._fields.get(file.spec_id), dict(file.values)
        if file.spec_id == self._plain or fields is None or not values.keys() >= set(fields):
            return None, ()
        return file.spec_id, tuple(values[number] for number in fields)


def writing_of(metadata: Json) -> Writing:
    properties = tuple((name, text) for name, text in metadata["properties"].items() if name.startswith(PARQUET_PREFIX))
    return Writing(file_layout(metadata), properties)


def _by_values(files: Sequence[LiveFile]) -> list[list[LiveFile]]:
    """Groups files by table partition; keeps their order."""
    groups: dict[object, list[LiveFile]] = {}
    for file in files:
        groups.setdefault((file.spec_id, file.values), []).append(file)
    return list(groups.values())


def may_delete_from(deletes: LiveFile, file: LiveFile) -> bool:
    """Whether a delete file may have positions of a data file."""
    return deletes.referenced_file in (None, file.location) and deletes.sequence_number >= file.sequence_number


def _own_columns(metadata: Json, bound: frozenset[int]) -> tuple[Column, ...]:
    """Returns the columns with which rows of a table with schemas are rewritten; empty without schemas."""
    columns = file_columns(metadata)
    if not bound and any(column.field_id == VALUE_ID for column in columns):
        return ()
    return pruned(columns, bound | _OWN)


_OWN: Final = leaf_ids(columns_of(iceberg_schema()))


def _target(metadata: Json, settings: MergeSettings) -> int:
    return decimal(metadata["properties"].get(TARGET_SIZE, "")) or settings.target_bytes
