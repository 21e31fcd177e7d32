"""Checks a table's files against its manifests, and partitions against the log. Pure; for `lakestream doctor`.

Before: table_state.py, which reads manifests.  After: table.py. The values of manifests are checked against the files.
Imports neither Arrow nor the kernels, and shares no code with the readers that brokers use.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.manifest import DATA, DELETED, PARQUET, ManifestFile
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.columns import OFFSET_ID, PARTITION_ID
from lakestream.model import MiB, Span

POSITION_DELETES, EQUALITY_DELETES = 1, 2
RESTORE: Final = "restore it from a backup"
WINDOW_BYTES: Final = 16 * MiB
"""Approximate size of the decoded rows that are compared together."""
_UNPACKED: Final = 3
"""Approximate ratio of decoded rows to their file."""
_PATH_ID: Final = 2147483546
_REFERENCED_FILE, _BLOB_START, _BLOB_SIZE = 143, 144, 145


class Problem(NamedTuple):
    kind: str
    subject: str
    """Object of the problem: the same kind and subject in a second check is the same problem."""
    text: str
    """Message: the object, what is wrong, what to do."""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.subject


class NamedFile(NamedTuple):
    """A file as its manifest entry describes it. Bounds are inclusive; None if the manifest has none."""

    location: str
    content: int
    is_parquet: bool
    rows: int
    size: int
    sequence: int
    partition: int | None
    """Topic partition, if the table's partitioning gives the file one."""
    partitions: tuple[int | None, int | None]
    offsets: tuple[int | None, int | None]
    is_by_offset: bool
    """Whether its sort order id promises rows sorted by offset."""
    about: str | None
    """Of a delete file: its single data file, if it has one."""
    blob: Span | None
    """Of a deletion vector: its byte range in the file."""
    spec_id: int = 0
    values: tuple[tuple[int, Any], ...] = ()
    """Its partition values, by field id of that partition spec, as stored in the manifest."""
    offsets_null: int | None = None
    """Rows without an offset, or None if the manifest has no null count."""

    @property
    def has_records(self) -> bool:
        return self.offsets_null is None or self.offsets_null < self.rows or not self.rows

    def may_contain(self, partition: int) -> bool:
        if self.partition is not None:
            return self.partition == partition
        low, high = self.partitions
        return (low is None or low <= partition) and (high is None or partition <= high)

    def may_reach(self, span: Span) -> bool:
        low, high = self.offsets
        return (low is None or low < span.end) and (high is None or high >= span.start)


class FileContent(NamedTuple):
    """Row count and bounds of a file or a part of it, from its footer or from its rows."""

    rows: int
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TableShape:
    """Metadata that is needed to decode the entries of a table's manifests."""

    partition_fields: Mapping[int, int]
    """By partition spec: its field with the identity of the topic partition."""
    orders_by_offset: frozenset[int]

    @classmethod
    def of(cls, metadata: Json) -> "TableShape":
        fields = {
            spec["spec-id"]: field["field-id"]
            for spec in metadata["partition-specs"]
            for field in spec["fields"]
            if field.get("source-id") == PARTITION_ID and field.get("transform") == "identity"
        }
        orders = {order["order-id"] for order in metadata["sort-orders"] if _is_by_offset(order)}
        return cls(fields, frozenset(orders))


def _is_by_offset(order: Json) -> bool:
    first: Json = next(iter(order["fields"]), {})
    return (first.get("source-id"), first.get("transform"), first.get("direction")) == (OFFSET_ID, "identity", "asc")


# Manifests


def live_files(manifest: ManifestFile, entries: Iterable[dict[int, Any]], shape: TableShape) -> list[NamedFile]:
    return [_named(manifest, entry, shape) for entry in entries if entry[f.STATUS] != DELETED]


def _named(manifest: ManifestFile, entry: dict[int, Any], shape: TableShape) -> NamedFile:
    file = entry[f.DATA_FILE]
    lower, upper = file.get(f.LOWER_BOUNDS) or {}, file.get(f.UPPER_BOUNDS) or {}
    nulls = file.get(f.NULL_COUNTS) or {}
    field = shape.partition_fields.get(manifest.partition_spec_id)
    sequence = entry.get(f.SEQUENCE_NUMBER)
    start, size = file.get(_BLOB_START), file.get(_BLOB_SIZE)
    return NamedFile(
        location=file[f.FILE_PATH],
        content=file.get(f.CONTENT) or DATA,
        is_parquet=str(file.get(f.FILE_FORMAT)).upper() == PARQUET,
        rows=file[f.RECORD_COUNT],
        size=file[f.FILE_SIZE],
        sequence=manifest.sequence_number if sequence is None else sequence,
        partition=None if field is None else file[f.PARTITION].get(field),
        partitions=(_number(lower.get(PARTITION_ID)), _number(upper.get(PARTITION_ID))),
        offsets=(_number(lower.get(OFFSET_ID)), _number(upper.get(OFFSET_ID))),
        is_by_offset=file.get(f.SORT_ORDER_ID) in shape.orders_by_offset,
        about=_about(file, lower, upper),
        blob=Span(start, start + size) if start is not None and size else None,
        spec_id=manifest.partition_spec_id,
        values=tuple(file[f.PARTITION].items()),
        offsets_null=nulls.get(OFFSET_ID),
    )


def _about(file: Mapping[int, Any], lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> str | None:
    if (referenced := file.get(_REFERENCED_FILE)) is not None:
        return str(referenced)
    path = lower.get(_PATH_ID)
    return path.decode(errors="replace") if path is not None and path == upper.get(_PATH_ID) else None


def _number(bound: bytes | None) -> int | None:
    return None if bound is None else int.from_bytes(bound, "little", signed=True)


def check_manifest(manifest: ManifestFile, size: int, entries: Sequence[dict[int, Any]]) -> Iterator[Problem]:
    """Checks a manifest against its entry in the manifest list, which engines rely on."""
    location = manifest.manifest_path
    if size != manifest.manifest_length:
        yield Problem("manifest", location, f"{location} has {_of(size, manifest.manifest_length)} bytes; {RESTORE}")
    alive = [entry for entry in entries if entry[f.STATUS] != DELETED]
    rows = sum(entry[f.DATA_FILE][f.RECORD_COUNT] for entry in alive)
    for what, actual, expected in (
        ("files", len(alive), manifest.live_files_count),
        ("rows", rows, manifest.live_rows_count),
    ):
        if actual != expected:
            text = f"{location} names {_of(actual, expected)} {what}; rewrite manifests (CALL system.rewrite_manifests)"
            yield Problem("manifest", location, text)


# One file


def check_size(file: NamedFile, size: int) -> Iterator[Problem]:
    if size != file.size:
        yield Problem("file", file.location, f"{file.location} has {_of(size, file.size)} bytes; {RESTORE}")


def check_content(file: NamedFile, content: FileContent, how: str) -> Iterator[Problem]:
    """Checks the content of a file against its manifest entry. `how` names the source in messages."""
    wrong: list[str] = []
    if content.rows != file.rows:
        wrong.append(f"{how} has {_of(content.rows, file.rows)} rows")
    for what, actual, (low, high) in (
        ("offsets", content.offsets, file.offsets),
        ("partitions", content.partitions, (file.partition, file.partition)),
        ("partitions", content.partitions, file.partitions),
    ):
        if actual and ((low is not None and actual[0] < low) or (high is not None and actual[1] > high)):
            wrong.append(
                f"{how} has {what} {actual[0]} to {actual[1]}, its manifest says {_shown(low)} to {_shown(high)}"
            )
    if wrong:
        advice = "readers skip those rows: restore the file, or write it again with the engine that wrote it"
        yield Problem("file", file.location, f"{file.location}: {'; '.join(dict.fromkeys(wrong))}; {advice}")


def joined(parts: Sequence[FileContent]) -> FileContent:
    """Joins the content of the row groups of a file."""
    partitions = [part.partitions for part in parts if part.partitions]
    offsets = [part.offsets for part in parts if part.offsets]
    return FileContent(sum(part.rows for part in parts), _hull(partitions), _hull(offsets))


def _hull(bounds: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None


def overlap(before: FileContent, part: FileContent) -> bool:
    """Returns whether a row group has offsets below those of the one before it. False for several partitions."""
    one, other = before.offsets, part.offsets
    partitions = joined([before, part]).partitions
    is_single = partitions is not None and partitions[0] == partitions[1]
    return is_single and one is not None and other is not None and other[0] <= one[1]


def check_reach(location: str, content: FileContent, next_offsets: Mapping[int, int]) -> Iterator[Problem]:
    """Checks that no row of a file has an offset that the pipeline has not written yet."""
    if content.partitions is None or content.offsets is None or content.partitions[0] != content.partitions[1]:
        return
    end = next_offsets.get(content.partitions[0], 0)
    if content.offsets[1] >= end:
        yield beyond(location, content.partitions[0], content.offsets[1], end)


def check_sorted(file: NamedFile, is_sorted: bool) -> Iterator[Problem]:
    if file.is_by_offset and not is_sorted:
        text = "is marked as sorted by offset, and is not: rewrite it (CALL system.rewrite_data_files)"
        yield Problem("file", file.location, f"{file.location} {text}")


# Between files


class PartitionOffsets(NamedTuple):
    """Offsets of one partition, read in this order. Each only grows, so each must be at least the one read before it,
    whatever happens in between."""

    floor: int
    table_end: int
    next_offset: int
    end: int


def check_partition_offsets(partition: int, marks: PartitionOffsets) -> Iterator[Problem]:
    where, subject = f"partition {partition}", str(partition)
    if marks.floor > marks.table_end:
        yield Problem(
            "floor",
            subject,
            f"{where}: the log begins at offset {marks.floor}, but only records before {marks.table_end} were moved"
            " into the table: those between are lost; restore the metadata store from a backup",
        )
    if marks.table_end > marks.next_offset:
        yield Problem(
            "table_end",
            subject,
            f"{where}: records before offset {marks.table_end} were moved from the log into the table, but the table's"
            f" next offset is {marks.next_offset}: it was rolled back, or lakestream.next-offsets was set; roll it"
            " forward, or register its newest metadata file again",
        )
    if marks.next_offset > marks.end:
        yield Problem(
            "next_offset",
            subject,
            f"{where}: the table's next offset is {marks.next_offset}, but the log ends at {marks.end}:"
            " lakestream.next-offsets was set, or the metadata store was restored from an older backup; restore the"
            " newest one, or set the offset back (lakestream table set-next-offsets)",
        )


def check_bounds(files: Iterable[NamedFile], next_offsets: Mapping[int, int], partition_count: int) -> list[Problem]:
    """Finds rows that the pipeline did not write: with offsets beyond its own, or of no partition of the topic."""
    problems = []
    for file in files:
        low, high = (file.partition, file.partition) if file.partition is not None else file.partitions
        if high is not None and high >= partition_count:
            text = f"holds rows of partition {high}, but the topic has {partition_count}: delete those rows"
            problems.append(Problem("stray", file.location, f"{file.location} {text}"))
        elif low is not None and low == high and (file.offsets[1] or 0) >= (end := next_offsets.get(low, 0)):
            problems.append(beyond(file.location, low, file.offsets[1] or 0, end))
    return problems


def check_offsets(file: NamedFile, offsets_null: int, deletes: Iterable[NamedFile]) -> Iterator[Problem]:
    """Reports rows without offsets, unless as many rows of the file are deleted."""
    count = offsets_null - sum(one.rows for one in deletes if one.about == file.location)
    if count > 0:
        text = (
            f"{file.location}: {count:,} rows have no offset, since an engine inserted them: they are not in the"
            " stream, and consumers do not get them; produce them to the topic, then DELETE FROM the table WHERE"
            " _stream IS NULL OR _stream.offset IS NULL"
        )
        yield Problem("no_offset", file.location, text)


def check_deletes(deletes: Iterable[NamedFile]) -> Iterator[Problem]:
    for file in deletes:
        if file.content == EQUALITY_DELETES:
            text = (
                f"{file.location} deletes rows by equality, which brokers cannot apply: rewrite the table's files"
                " (CALL system.rewrite_data_files, with delete-file-threshold 1), and delete by position from then on"
            )
            yield Problem("equality", file.location, text)


def beyond(location: str, partition: int, offset: int, next_offset: int) -> Problem:
    text = (
        f"{location} has rows of partition {partition} up to offset {offset}, but the pipeline has written those before"
        f" {next_offset} only: rows that another program added would be duplicates; delete them"
    )
    return Problem("beyond", location, text)


def twice(partition: int, offset: int, one: str, other: str) -> Problem:
    where = f"in {one} and in {other}" if one != other else f"twice in {one}"
    text = (
        f"partition {partition}: offset {offset} is {where}, and consumers get only one of the rows: remove the rows"
        " that another program added (delete those rows, or roll back to the snapshot before them)"
    )
    return Problem("twice", str(partition), text)


class Difference(NamedTuple):
    """First offset that is only in the table, only served, or served with other content."""

    not_served: int | None = None
    not_in_table: int | None = None
    other: int | None = None


def differences(partition: int, subject: str, difference: Difference, where: str) -> Iterator[Problem]:
    texts = []
    if difference.not_served is not None:
        texts.append(f"offset {difference.not_served} is in the table and is not served {where}")
    if difference.not_in_table is not None:
        texts.append(f"offset {difference.not_in_table} is served {where} and is not in the table")
    if difference.other is not None:
        texts.append(f"offset {difference.other} is served {where} with other content than the table has")
    if texts:
        advice = "keep the files, restart the brokers, and report it if it stays: this is a bug of Lakestream"
        yield Problem("served", subject, f"partition {partition}: {'; '.join(texts)}; {advice}")


def check_counts(partition: int, files: Sequence[NamedFile], has_deletes: bool) -> Iterator[Problem]:
    """Finds more rows than offsets: an offset is duplicated. Not checked with deletes, as an update writes them."""
    if has_deletes:
        return
    for some in overlapping([file for file in files if None not in file.offsets]):
        low, high = min(_low(file) for file in some), max(_high(file, 0) for file in some)
        if (rows := sum(file.rows for file in some)) > high - low + 1:
            names = " and ".join(file.location for file in some[:2])
            text = (
                f"partition {partition}: {names} hold {rows} rows for the {high - low + 1} offsets from {low} on:"
                " remove the rows that another program added (delete them, or roll back to the snapshot before them)"
            )
            yield Problem("twice", str(partition), text)
            return


def overlapping(files: Sequence[NamedFile], end: int = 0) -> Iterator[list[NamedFile]]:
    """Groups files with overlapping offsets, in order of offset. `end` is the upper bound of files without bounds."""
    some: list[NamedFile] = []
    reach = -1
    for file in sorted(files, key=lambda file: (_low(file), _high(file, end))):
        if some and _low(file) > reach:
            yield some
            some = []
        some.append(file)
        reach = max(reach, _high(file, end))
    if some:
        yield some


def windows(files: Sequence[NamedFile], end: int) -> list[Span]:
    """Splits `[0, end)` into windows of offsets that are compared together, each with about as many bytes."""
    starts, filled = [0], 0
    for some in overlapping(files, end):
        low, high = min(_low(file) for file in some), max(_high(file, end) for file in some)
        size = _UNPACKED * sum(file.size for file in some)
        if filled + size > WINDOW_BYTES and low > starts[-1]:
            starts.append(low)
            filled = 0
        parts = max(1, -(-size // WINDOW_BYTES))
        width = -(-(high + 1 - low) // parts)
        starts += range(low + width, high + 1, width)
        filled = filled + size if parts == 1 else size // parts
    within = [start for start in starts if start < end]
    return [Span(start, stop) for start, stop in zip(within, [*within[1:], end], strict=True)]


def deletes_of(file: NamedFile, deletes: Iterable[NamedFile]) -> list[NamedFile]:
    """Returns the position deletes that may apply to a data file."""
    return [
        one
        for one in deletes
        if one.content == POSITION_DELETES and one.sequence >= file.sequence and one.about in (None, file.location)
    ]


def _low(file: NamedFile) -> int:
    return max(file.offsets[0] or 0, 0)


def _high(file: NamedFile, end: int) -> int:
    return max(end - 1, 0) if file.offsets[1] is None else file.offsets[1]


def _of(actual: int, expected: int) -> str:
    return f"{actual:,}, not {expected:,},"


def _shown(bound: int | None) -> str:
    return "nothing" if bound is None else str(bound)
