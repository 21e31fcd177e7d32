"""What a table's files should be, and what is wrong with them: the pure part of `lakestream doctor` for tables.

Before: examine_state.py, which reads manifests.  After: examine.py.  Manifests are believed only until their files were
looked at. Loads neither Arrow nor the kernels, and shares no code with the readers that brokers use.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.manifests import DATA, DELETED, PARQUET, ManifestFile
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_layout import OFFSET_ID, PARTITION_ID
from lakestream.model import MiB, Span

POSITION_DELETES, EQUALITY_DELETES = 1, 2
RESTORE: Final = "restore it from a backup"
WINDOW_BYTES: Final = 16 * MiB
"""Of rows that are compared together, unpacked, about."""
_UNPACKED: Final = 3
"""How much larger rows are than their file, about."""
_PATH_ID: Final = 2147483546
_REFERENCED_FILE, _BLOB_START, _BLOB_SIZE = 143, 144, 145


class Trouble(NamedTuple):
    kind: str
    subject: str
    """What it is about: the same kind and subject at a second look is the same trouble."""
    text: str
    """What, where, what to do."""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.subject


class NamedFile(NamedTuple):
    """A file as a manifest names it. Bounds are inclusive; None: nobody wrote them down."""

    location: str
    content: int
    is_parquet: bool
    rows: int
    size: int
    sequence: int
    partition: int | None
    """Of the stream, if the file is of one partition by the table's partitioning."""
    partitions: tuple[int | None, int | None]
    offsets: tuple[int | None, int | None]
    is_by_offset: bool
    """It says that its rows are sorted by offset."""
    about: str | None
    """Of deletes: the one data file that they are about, where that is known."""
    blob: Span | None
    """Of a deletion vector: where in the file it lies."""
    spec_id: int = 0
    values: tuple[tuple[int, Any], ...] = ()
    """What its rows have in common by that partition spec: by field of it, as manifests keep it."""

    def may_hold(self, partition: int) -> bool:
        if self.partition is not None:
            return self.partition == partition
        low, high = self.partitions
        return (low is None or low <= partition) and (high is None or partition <= high)

    def may_reach(self, span: Span) -> bool:
        low, high = self.offsets
        return (low is None or low < span.end) and (high is None or high >= span.start)


class Content(NamedTuple):
    """What is in a file, or in a part of it, as itself says or as was counted."""

    rows: int
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Shape:
    """How to understand the entries of a table's manifests."""

    partition_fields: Mapping[int, int]
    """By partition spec: its field that is the stream's partition as it is."""
    orders_by_offset: frozenset[int]

    @classmethod
    def of(cls, metadata: Json) -> "Shape":
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


def live_files(manifest: ManifestFile, entries: Iterable[dict[int, Any]], shape: Shape) -> list[NamedFile]:
    return [_named(manifest, entry, shape) for entry in entries if entry[f.STATUS] != DELETED]


def _named(manifest: ManifestFile, entry: dict[int, Any], shape: Shape) -> NamedFile:
    file = entry[f.DATA_FILE]
    lower, upper = file.get(f.LOWER_BOUNDS) or {}, file.get(f.UPPER_BOUNDS) or {}
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
    )


def _about(file: Mapping[int, Any], lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> str | None:
    if (said := file.get(_REFERENCED_FILE)) is not None:
        return str(said)
    path = lower.get(_PATH_ID)
    return path.decode(errors="replace") if path is not None and path == upper.get(_PATH_ID) else None


def _number(bound: bytes | None) -> int | None:
    return None if bound is None else int.from_bytes(bound, "little", signed=True)


def check_manifest(manifest: ManifestFile, size: int, entries: Sequence[dict[int, Any]]) -> Iterator[Trouble]:
    """Against what the list of manifests says of it: readers go by that."""
    location = manifest.manifest_path
    if size != manifest.manifest_length:
        yield Trouble("manifest", location, f"{location} has {_of(size, manifest.manifest_length)} bytes; {RESTORE}")
    alive = [entry for entry in entries if entry[f.STATUS] != DELETED]
    rows = sum(entry[f.DATA_FILE][f.RECORD_COUNT] for entry in alive)
    for what, found, said in (
        ("files", len(alive), manifest.live_files_count),
        ("rows", rows, manifest.live_rows_count),
    ):
        if found != said:
            text = f"{location} names {_of(found, said)} {what}; rewrite manifests (CALL system.rewrite_manifests)"
            yield Trouble("manifest", location, text)


# One file


def check_size(file: NamedFile, size: int) -> Iterator[Trouble]:
    if size != file.size:
        yield Trouble("file", file.location, f"{file.location} has {_of(size, file.size)} bytes; {RESTORE}")


def check_content(file: NamedFile, content: Content, how: str) -> Iterator[Trouble]:
    """`how`: who says so, its footer or its rows."""
    wrong: list[str] = []
    if content.rows != file.rows:
        wrong.append(f"{how} has {_of(content.rows, file.rows)} rows")
    for what, found, (low, high) in (
        ("offsets", content.offsets, file.offsets),
        ("partitions", content.partitions, (file.partition, file.partition)),
        ("partitions", content.partitions, file.partitions),
    ):
        if found and ((low is not None and found[0] < low) or (high is not None and found[1] > high)):
            wrong.append(
                f"{how} has {what} {found[0]} to {found[1]}, its manifest says {_shown(low)} to {_shown(high)}"
            )
    if wrong:
        advice = "readers do not find those rows: restore the file, or have it written anew by what wrote it"
        yield Trouble("file", file.location, f"{file.location}: {'; '.join(dict.fromkeys(wrong))}; {advice}")


def joined(parts: Sequence[Content]) -> Content:
    """Of the row groups of a file."""
    partitions = [part.partitions for part in parts if part.partitions]
    offsets = [part.offsets for part in parts if part.offsets]
    return Content(sum(part.rows for part in parts), _hull(partitions), _hull(offsets))


def _hull(bounds: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None


def overlap(before: Content, part: Content) -> bool:
    """Whether a row group has offsets that should be before those of the one before it. Of several partitions: no."""
    one, other = before.offsets, part.offsets
    partitions = joined([before, part]).partitions
    is_single = partitions is not None and partitions[0] == partitions[1]
    return is_single and one is not None and other is not None and other[0] <= one[1]


def check_reach(location: str, content: Content, next_offsets: Mapping[int, int]) -> Iterator[Trouble]:
    """Of a file whose rows were read: none of them is of an offset that the pipeline has yet to write."""
    if content.partitions is None or content.offsets is None or content.partitions[0] != content.partitions[1]:
        return
    end = next_offsets.get(content.partitions[0], 0)
    if content.offsets[1] >= end:
        yield beyond(location, content.partitions[0], content.offsets[1], end)


def check_sorted(file: NamedFile, is_sorted: bool) -> Iterator[Trouble]:
    if file.is_by_offset and not is_sorted:
        text = "says that it is sorted by offset, and is not: have it rewritten (CALL system.rewrite_data_files)"
        yield Trouble("file", file.location, f"{file.location} {text}")


# Between files


class Marks(NamedTuple):
    """Of one partition, read in this order. Each only grows, so each must be at least what was read before it, whatever
    happens in between."""

    floor: int
    table_end: int
    next_offset: int
    end: int


def check_marks(partition: int, marks: Marks) -> Iterator[Trouble]:
    where, subject = f"partition {partition}", str(partition)
    if marks.floor > marks.table_end:
        yield Trouble(
            "floor",
            subject,
            f"{where}: the log begins at offset {marks.floor}, but only what is before {marks.table_end} was moved into"
            " the table: records between are gone; restore the metadata store from a backup",
        )
    if marks.table_end > marks.next_offset:
        yield Trouble(
            "table_end",
            subject,
            f"{where}: records before offset {marks.table_end} have left the log for the table, but the table says that"
            f" it has them up to {marks.next_offset} only: somebody rolled it back or set lakestream.next-offsets; roll"
            " it forward, or register its newest metadata file again",
        )
    if marks.next_offset > marks.end:
        yield Trouble(
            "next_offset",
            subject,
            f"{where}: the table says that it has offsets up to {marks.next_offset}, but the log ends at {marks.end}:"
            " somebody set lakestream.next-offsets, or the metadata store was restored from an older backup; set the"
            " property back, or restore the newest metadata",
        )


def check_bounds(files: Iterable[NamedFile], next_offsets: Mapping[int, int], partition_count: int) -> list[Trouble]:
    """Rows that nobody moved: of offsets that the pipeline has yet to write, or of no partition of the topic."""
    found = []
    for file in files:
        low, high = (file.partition, file.partition) if file.partition is not None else file.partitions
        if high is not None and high >= partition_count:
            text = f"holds rows of partition {high}, but the topic has {partition_count}: delete those rows"
            found.append(Trouble("stray", file.location, f"{file.location} {text}"))
        elif low is not None and low == high and (file.offsets[1] or 0) >= (end := next_offsets.get(low, 0)):
            found.append(beyond(file.location, low, file.offsets[1] or 0, end))
    return found


def check_deletes(deletes: Iterable[NamedFile]) -> Iterator[Trouble]:
    for file in deletes:
        if file.content == EQUALITY_DELETES:
            text = (
                f"{file.location} deletes rows by equality, which the stream cannot follow: have the table's files"
                " rewritten (CALL system.rewrite_data_files, with delete-file-threshold 1), and delete by position from"
                " then on"
            )
            yield Trouble("equality", file.location, text)


def beyond(location: str, partition: int, offset: int, next_offset: int) -> Trouble:
    text = (
        f"{location} has rows of partition {partition} up to offset {offset}, but the pipeline has written those before"
        f" {next_offset} only: rows that others added would be there twice; delete them"
    )
    return Trouble("beyond", location, text)


def twice(partition: int, offset: int, one: str, other: str) -> Trouble:
    where = f"in {one} and in {other}" if one != other else f"twice in {one}"
    text = (
        f"partition {partition}: offset {offset} is {where}, so it cannot be served: take out what was added by other"
        " hands (delete those rows, or roll back to the snapshot before them)"
    )
    return Trouble("twice", str(partition), text)


class Difference(NamedTuple):
    """The first offset that is only in the table, that is only served, that is served as another record."""

    not_served: int | None = None
    not_in_table: int | None = None
    other: int | None = None


def differences(partition: int, subject: str, difference: Difference, where: str) -> Iterator[Trouble]:
    said = []
    if difference.not_served is not None:
        said.append(f"offset {difference.not_served} is in the table and is not served {where}")
    if difference.not_in_table is not None:
        said.append(f"offset {difference.not_in_table} is served {where} and is not in the table")
    if difference.other is not None:
        said.append(f"offset {difference.other} is served {where} with other content than the table has")
    if said:
        advice = "keep the files, restart the brokers, and report it if it stays: this is a fault of Lakestream"
        yield Trouble("served", subject, f"partition {partition}: {'; '.join(said)}; {advice}")


def check_counts(partition: int, files: Sequence[NamedFile], has_deletes: bool) -> Iterator[Trouble]:
    """More rows than offsets: some offset is there twice. Not so sure where rows were deleted, as an update does."""
    if has_deletes:
        return
    for some in overlapping([file for file in files if None not in file.offsets]):
        low, high = min(_low(file) for file in some), max(_high(file, 0) for file in some)
        if (rows := sum(file.rows for file in some)) > high - low + 1:
            names = " and ".join(file.location for file in some[:2])
            text = (
                f"partition {partition}: {names} hold {rows} rows for the {high - low + 1} offsets from {low} on: take"
                " out what was added by other hands (delete those rows, or roll back to the snapshot before them)"
            )
            yield Trouble("twice", str(partition), text)
            return


def overlapping(files: Sequence[NamedFile], end: int = 0) -> Iterator[list[NamedFile]]:
    """Files by offset, those together that have offsets in common. `end`: of those whose bounds nobody knows."""
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
    """Offsets that are compared together: all of `[0, end)`, so that about as many bytes are in each."""
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
    """Those that may have something to say about it."""
    return [
        one
        for one in deletes
        if one.content == POSITION_DELETES and one.sequence >= file.sequence and one.about in (None, file.location)
    ]


def _low(file: NamedFile) -> int:
    return max(file.offsets[0] or 0, 0)


def _high(file: NamedFile, end: int) -> int:
    return max(end - 1, 0) if file.offsets[1] is None else file.offsets[1]


def _of(found: int, said: int) -> str:
    return f"{found:,}, not {said:,},"


def _shown(bound: int | None) -> str:
    return "nothing" if bound is None else str(bound)
