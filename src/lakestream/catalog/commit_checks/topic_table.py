"""Rules for commits of clients. Pure. Commits of brokers and of the pipeline are not checked.

    properties   clients cannot set `lakestream.*`, in table properties and in summaries of snapshots
    columns      of a topic's table: clients cannot change those that records need, and any in `_stream`
    rows         of a topic's table: each row on `main` has an offset, and each offset occurs once

`data/table/commit_check.py` reads the files that the rules about rows need.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.topic_table.checks import wrong_columns
from lakestream.catalog.topic_table.columns import COLUMNS, FIRST_FREE_ID, STREAM, StreamColumn
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, ancestors, main_of, parse_offsets
from lakestream.errors import Rejected
from lakestream.schemas.column_matching import KEY

OURS: Final = "lakestream."
"""Prefix of Lakestream's own properties and summary keys."""


# Properties


def check_own_properties(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises Rejected if a property of Lakestream was set, changed or removed."""
    for name in sorted(name for name in before.keys() | after.keys() if name.startswith(OURS)):
        if before.get(name) != after.get(name):
            raise Rejected(
                f"property {name} cannot be set or removed through the catalog, because Lakestream manages it:"
                " leave it out (operators: lakestream table accept-rollback, lakestream table set-next-offsets)"
            )


def check_summaries(before: Json | None, after: Json) -> None:
    """Raises Rejected if the summary of a new snapshot has a key of Lakestream."""
    known = set() if before is None else {one["snapshot-id"] for one in before["snapshots"]}
    for snapshot in after["snapshots"]:
        if snapshot["snapshot-id"] in known:
            continue
        for name in snapshot.get("summary") or {}:
            if name.startswith(OURS):
                raise Rejected(
                    f"summary of snapshot {snapshot['snapshot-id']} has {name}, which only Lakestream sets: leave it"
                    " out"
                )


# Columns


def check_stream_columns_unchanged(before: Json, after: Json) -> None:
    """Raises Rejected if the commit changes columns of the stream. A commit may repair such a change."""
    if schema_of(before) == schema_of(after):
        return
    known = set(_column_errors(before))
    # With the schemas of both: a commit may remove those that have the former columns.
    schemas = [*after["schemas"], *before["schemas"]]
    for error in _column_errors({**after, "schemas": schemas}):
        if error not in known:
            raise Rejected(f"{error}, but the topic of this table needs the column unchanged: do not change it")


def _column_errors(metadata: Json) -> Iterator[str]:
    schema = schema_of(metadata)
    yield from wrong_columns(schema, metadata)
    (stream,) = (column for column in COLUMNS if column.name == STREAM)
    fields_by_id = {field["id"]: field for field in schema["fields"]}
    yield from _altered(stream, fields_by_id, "")
    for field in schema["fields"]:
        if field["id"] >= FIRST_FREE_ID and field["name"].casefold() == STREAM:
            yield f"column {field['name']} was added"
    names = {field["id"]: field["name"] for field in schema["fields"]}
    for known in metadata["schemas"]:
        for field in known["fields"]:
            if field["name"] == KEY and field["id"] >= FIRST_FREE_ID and names.get(field["id"], KEY) != KEY:
                yield f"column {KEY} was renamed to {names[field['id']]}"


def _altered(column: StreamColumn, fields_by_id: Mapping[int, Json], parent: str) -> Iterator[str]:
    """Yields the changes of a column of the stream and of its nested columns which `wrong_columns` does not yield."""
    field, name = fields_by_id.get(column.field_id), f"{parent}{column.name}"
    if field is None:
        return
    if field["name"] != column.name:
        yield f"column {name} was renamed to {field['name']}"
    if field["required"] != column.required:
        yield f"column {name} was made {'required' if field['required'] else 'optional'}"
    kind = field["type"]
    if not column.fields or not isinstance(kind, dict) or kind.get("type") != column.type:
        return
    if column.type == "list" and not kind["element-required"]:
        yield f"elements of column {name} were made optional"
    struct = kind["element"] if column.type == "list" else kind
    if not isinstance(struct, dict) or struct.get("type") != "struct":
        return  # `wrong_columns` yields it
    inner = {one["id"]: one for one in struct["fields"]}
    for number in inner.keys() - {one.field_id for one in column.fields}:
        yield f"column {name}.{inner[number]['name']} was added"
    for one in column.fields:
        yield from _altered(one, inner, f"{name}.")


# Rows


class SnapshotPair(NamedTuple):
    """Two snapshots. The rows that `head` adds to `base` are checked; those of `base` are valid."""

    base: Json | None
    """None: no rows before."""
    head: Json


def snapshots_to_check(before: Json, after: Json) -> SnapshotPair | None:
    """Returns the snapshots to compare after a commit moved `main`; None: the snapshot of `main` is valid.

    Valid are snapshots of the pipeline, and those that `main` was at before. Snapshots of a branch, or staged ones, are
    checked when `main` gets them, against their newest valid ancestor.
    """
    moved_to = main_of(after)
    if moved_to is None or moved_to == main_of(before):
        return None
    right = {main_of(before), *(entry["snapshot-id"] for entry in before["snapshot-log"])}
    line = list(ancestors(after))
    for snapshot in line:
        if snapshot["snapshot-id"] in right or NEXT_OFFSETS in (snapshot.get("summary") or {}):
            return None if snapshot is line[0] else SnapshotPair(snapshot, line[0])
    former = next(iter(ancestors(before)), None)  # the common ancestor was expired
    return SnapshotPair(former, line[0])


class DataFile(NamedTuple):
    """A data file as described by its manifest or its footer. Bounds are inclusive."""

    location: str
    rows: int
    offsets_null: int
    """Rows without an offset; below 0: unknown."""
    partitions: tuple[int, int]
    """Of the stream."""
    offsets: tuple[int, int]

    @property
    def has_offsets(self) -> bool:
        return self.rows > self.offsets_null


def check_rows(
    added: Sequence[DataFile], removed: Sequence[DataFile], rows_deleted: int, next_offsets: Mapping[int, int] | None
) -> None:
    """Raises Rejected if the files add rows without offsets, or offsets that other files have or will have.

    Engines rewrite rows when they compact, sort, update or delete: such rows have the offsets of rows that the same
    commit removes, with their files or by position (`rows_deleted`). The positions are not read: then the rows are only
    counted. `next_offsets`: of the table; None: unknown, as after a rollback.
    """
    _check_offsets_present(added, removed)
    placed = [file for file in added if file.has_offsets]
    removed_ranges = _Ranges(removed)
    for file in placed:
        if next_offsets is not None:
            _check_end(file, next_offsets)
        if not rows_deleted:
            _check_replaces(file, removed_ranges)
    count = sum(file.rows - file.offsets_null for file in placed)
    room = sum(file.rows for file in removed) + rows_deleted
    if count > room:
        raise Rejected(
            f"{placed[0].location} and {len(placed) - 1} other files: the commit adds {count:,} rows with offsets and"
            f" removes {room:,}, so some offsets would occur twice: add only rows that the same commit removes"
        )


def check_all_rows(files: Sequence[DataFile], rows_deleted: int, next_offsets: Mapping[int, int] | None) -> None:
    """Raises Rejected if the files of a registered table have rows that the topic's table cannot have.

    These are rows without offsets, rows that the pipeline has not moved into the table, and more rows than there are
    offsets between the bounds of the files.
    """
    _check_offsets_present(files, [])
    placed = [file for file in files if file.has_offsets]
    for file in placed:
        if next_offsets is not None:
            _check_end(file, next_offsets)
    count = sum(file.rows - file.offsets_null for file in placed) - rows_deleted
    room = _Ranges(placed).offsets_count
    if count > room:
        raise Rejected(
            f"{placed[0].location} and {len(placed) - 1} other files have {count:,} rows for the {room:,} offsets"
            " between their bounds, so some offsets occur twice: register a metadata file from before the rows were"
            " added"
        )


def _check_offsets_present(added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
    """Raises Rejected if the commit adds rows without offsets. Existing rows without offsets may be rewritten."""
    for file in added:
        if file.rows < 0 or file.offsets_null > file.rows:
            raise Rejected(
                f"{file.location}: its manifest states {file.rows} rows, of which {file.offsets_null} have no offset:"
                " write the counts that the file has"
            )
        if file.offsets_null < 0:
            raise Rejected(
                f"{file.location}: neither its manifest nor its footer states how many rows have no offset: configure"
                " its writer to write statistics of _stream.offset"
            )
    lacking = [file for file in added if file.offsets_null]
    count = sum(file.offsets_null for file in lacking)
    if count > sum(max(0, file.offsets_null) for file in removed):
        raise Rejected(
            f"{lacking[0].location}: {count:,} rows have no offset (_stream.offset is null), so they would be in the"
            " table but not in the topic: produce them to the topic, and they become rows of the table"
        )


def _check_end(file: DataFile, next_offsets: Mapping[int, int]) -> None:
    low, high = file.partitions
    end = max((offset for number, offset in next_offsets.items() if low <= number <= high), default=0)
    if file.offsets[1] >= end:
        raise Rejected(
            f"{file.location}: it has rows up to offset {file.offsets[1]}{_of_partition(file)}, but the pipeline has"
            f" moved only those before {end} into the table: leave out rows that the table never had"
        )


class _Ranges:
    """The offsets between the bounds of files: disjoint ranges by partition, and files of several partitions."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._mixed = [file for file in files if file.partitions[0] != file.partitions[1]]
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for file in sorted(files, key=lambda file: file.offsets):
            if file.partitions[0] == file.partitions[1]:
                own = self._ranges.setdefault(file.partitions[0], [])
                if own and file.offsets[0] <= own[-1][1]:
                    own[-1] = own[-1][0], max(own[-1][1], file.offsets[1])
                else:
                    own.append(file.offsets)

    @property
    def offsets_count(self) -> int:
        """An upper bound of the number of offsets in all files."""
        mixed = sum(file.rows for file in self._mixed)
        return mixed + sum(high - low + 1 for own in self._ranges.values() for low, high in own)

    def may_have(self, partitions: tuple[int, int], offset: int) -> bool:
        low, high = partitions
        numbers = [low] if low == high else [number for number in self._ranges if low <= number <= high]
        for number in numbers:
            own = self._ranges.get(number, [])
            place = bisect_right(own, offset, key=itemgetter(0)) - 1
            if place >= 0 and offset <= own[place][1]:
                return True
        return any(
            file.partitions[0] <= high and low <= file.partitions[1] and file.offsets[0] <= offset <= file.offsets[1]
            for file in self._mixed
        )


def _check_replaces(file: DataFile, removed_ranges: _Ranges) -> None:
    """Raises Rejected unless removed files may have the first and the last row of a file.

    Of the rows between them some may stay in other files.
    """
    for offset in file.offsets:
        if not removed_ranges.may_have(file.partitions, offset):
            raise Rejected(
                f"{file.location}: it adds a row with offset {offset}{_of_partition(file)}, which no file that the"
                " commit removes has, so the offset would occur twice: rows with offsets can only replace rows; produce"
                " new ones to the topic"
            )


def _of_partition(file: DataFile) -> str:
    low, high = file.partitions
    return f" of partition {low}" if low == high else ""


def stated_offsets(metadata: Json) -> dict[int, int] | None:
    """Returns the next offsets that the table states; None: the property is absent or invalid."""
    try:
        return parse_offsets(metadata["properties"][NEXT_OFFSETS])
    except (KeyError, IncompatibleTable):
        return None


def claimed_offsets(metadata: Json) -> dict[int, int]:
    """Returns, by partition, the highest next offset that the table could ever state.

    If the property is absent, the pipeline's newest snapshot on `main` decides, and a client can move `main`.
    """
    stated = [metadata["properties"].get(NEXT_OFFSETS)]
    stated += [(snapshot.get("summary") or {}).get(NEXT_OFFSETS) for snapshot in metadata["snapshots"]]
    claimed: dict[int, int] = {}
    for text in stated:
        try:
            offsets = parse_offsets(text or "{}")
        except IncompatibleTable:
            continue  # while this one is in effect, the topic is stopped
        for number, offset in offsets.items():
            claimed[number] = max(offset, claimed.get(number, 0))
    return claimed
