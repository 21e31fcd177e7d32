"""Next offsets of a topic's table, and the check that `main` still has all records before them. Pure.

    lakestream.next-offsets   a property, and in the summary of each snapshot of the pipeline: {"0": 123, …}
    lakestream.last-commit    a property: the pipeline's last snapshot, "sequence number/snapshot id"

Both are set in the commit that adds the rows. Engines may commit in between: rewrite files, delete rows, expire
snapshots. A `main` without the pipeline's last commit is an error: rows below the next offsets would be missing which
no delete removed, and which are no longer in the log.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.table_metadata.json_model import LONG_MAX, MAIN, Json, decimal

NEXT_OFFSETS: Final = "lakestream.next-offsets"
LAST_COMMIT: Final = "lakestream.last-commit"
TOTAL_BYTES: Final = "total-files-size"
TOPIC: Final = "lakestream.topic"
TOPIC_ID: Final = "lakestream.topic-id"
ACCEPT_ROLLBACK: Final = "lakestream.accept-rollback"
"""Set by `lakestream table accept-rollback`: the id of a snapshot that is accepted although rows are missing in it."""

_decode = msgspec.json.Decoder(dict[str, int]).decode


class LastCommit(NamedTuple):
    sequence_number: int
    snapshot_id: int

    def text(self) -> str:
        return f"{self.sequence_number}/{self.snapshot_id}"


def next_offsets(metadata: Json) -> dict[int, int]:
    """Returns the next offset to move into the table, by partition; 0 for partitions that are not listed.

    Raises IncompatibleTable if `main` does not descend from the pipeline's last commit, or its offsets are unknown.
    """
    stated = metadata["properties"].get(NEXT_OFFSETS)
    inherited = next(_next_offsets_of_ancestors(metadata), None)
    if stated is None:
        if inherited is None and metadata["snapshots"]:
            raise IncompatibleTable(
                f"property {NEXT_OFFSETS} was removed and no snapshot on {MAIN} has it, so it is unknown which records"
                f" are in the table: set it again (lakestream table set-next-offsets {_topic(metadata)} …)"
            )
        return {} if inherited is None else parse_offsets(inherited)
    offsets = parse_offsets(stated)
    _check_descent(metadata, offsets, None if inherited is None else parse_offsets(inherited))
    return offsets


def parse_offsets(text: str) -> dict[int, int]:
    try:
        offsets = {int(partition): offset for partition, offset in _decode(text).items()}
    except (msgspec.DecodeError, ValueError) as error:
        raise IncompatibleTable(
            f"{NEXT_OFFSETS} is {text[:60]!r}, not a JSON object of partition and offset"
        ) from error
    if any(partition < 0 or offset < 0 for partition, offset in offsets.items()):
        raise IncompatibleTable(f"{NEXT_OFFSETS} is {text[:60]!r}: a partition or an offset is negative")
    return offsets


def moved_offsets(metadata: Json) -> int:
    """Returns the sum of the next offsets; 0 if they are not known."""
    try:
        return min(LONG_MAX, sum(parse_offsets(metadata["properties"].get(NEXT_OFFSETS, "{}")).values()))
    except IncompatibleTable:
        return 0


def total_bytes(metadata: Json) -> int:
    """Returns the size of all files of `main`, as its summary has it; 0 if it does not."""
    newest = next(ancestors(metadata), None)
    return 0 if newest is None else decimal((newest.get("summary") or {}).get(TOTAL_BYTES, "")) or 0


def text_of(offsets: Mapping[int, int]) -> str:
    return msgspec.json.encode({str(partition): offsets[partition] for partition in sorted(offsets)}).decode()


def main_of(metadata: Json) -> int | None:
    """Returns the snapshot id of `main`."""
    ref = metadata["refs"].get(MAIN)
    return None if ref is None else ref["snapshot-id"]


def ancestors(metadata: Json) -> Iterator[Json]:
    """Yields the snapshots of `main`, newest first, as far back as they are kept."""
    known = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    at = main_of(metadata)
    while at is not None and (snapshot := known.pop(at, None)) is not None:  # each once, so a cycle ends
        yield snapshot
        at = snapshot.get("parent-snapshot-id")


def _next_offsets_of_ancestors(metadata: Json) -> Iterator[str]:
    for snapshot in ancestors(metadata):
        text = (snapshot.get("summary") or {}).get(NEXT_OFFSETS)
        if text is not None:
            yield text


def _check_descent(metadata: Json, stated: dict[int, int], inherited: dict[int, int] | None) -> None:
    """Raises IncompatibleTable unless the pipeline's newest snapshot on `main` states the same offsets as the property.

    If that snapshot was expired, `main` must have been committed after it: sequence numbers only grow.
    """
    last = _last_commit(metadata)
    if last is None and inherited is None:
        return  # the pipeline has not committed yet
    if inherited is not None and stated == inherited:
        return
    if inherited is None and last is not None and _has_newer_snapshot(metadata, last):
        return
    if _is_accepted(metadata):
        return
    raise IncompatibleTable(_rolled_back(metadata, last))


def _last_commit(metadata: Json) -> LastCommit | None:
    text = metadata["properties"].get(LAST_COMMIT, "")
    sequence_number, snapshot_id = (decimal(part) for part in text.partition("/")[::2])
    return None if sequence_number is None or snapshot_id is None else LastCommit(sequence_number, snapshot_id)


def _has_newer_snapshot(metadata: Json, last: LastCommit) -> bool:
    newest = next(ancestors(metadata), None)
    return newest is not None and newest.get("sequence-number", 0) > last.sequence_number


def _is_accepted(metadata: Json) -> bool:
    accepted = metadata["properties"].get(ACCEPT_ROLLBACK)
    return any(str(snapshot["snapshot-id"]) == accepted for snapshot in ancestors(metadata))


def _topic(metadata: Json) -> str:
    return str(metadata["properties"].get(TOPIC, "TOPIC"))


def _rolled_back(metadata: Json, last: LastCommit | None) -> str:
    main = main_of(metadata)
    kept = any(last and snapshot["snapshot-id"] == last.snapshot_id for snapshot in metadata["snapshots"])
    forward = (
        f"roll forward (CALL system.set_current_snapshot to {last.snapshot_id})"
        if last and kept
        else "restore its snapshots from a backup"
    )
    accept = (
        f"accept the loss (lakestream table accept-rollback {_topic(metadata)} --snapshot {main})"
        if main
        else "delete the topic"
    )
    return (
        f"{MAIN} is at snapshot {main}, which does not descend from the last commit of the pipeline: the table was"
        f" rolled back, and records are missing in it. Either {forward}, or {accept}"
    )
