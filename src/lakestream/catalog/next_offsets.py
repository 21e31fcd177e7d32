"""How far a topic is in its table, and whether `main` still has all of it. Pure.

    lakestream.next-offsets   a property, and in the summary of each snapshot of ours: {"0": 123, …}
    lakestream.last-commit    a property: our last snapshot, "sequence number/snapshot id"

Both are set in the commit that adds the rows. Others may commit what they like in between: rewrite files, delete rows,
expire snapshots. What we cannot follow is a `main` that lost our last commit, since rows below next-offset would be
missing that no delete removed and that are in no log any more.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.errors import TableAltered
from lakestream.catalog.shapes import MAIN, Json

NEXT_OFFSETS: Final = "lakestream.next-offsets"
LAST_COMMIT: Final = "lakestream.last-commit"
TOPIC_ID: Final = "lakestream.topic-id"
ACCEPT_ROLLBACK: Final = "lakestream.accept-rollback"
"""Set by an operator, to the id of the snapshot that is to count although rows are missing in it."""

_decode = msgspec.json.Decoder(dict[str, int]).decode


class LastCommit(NamedTuple):
    sequence_number: int
    snapshot_id: int

    def text(self) -> str:
        return f"{self.sequence_number}/{self.snapshot_id}"


def next_offsets(metadata: Json) -> dict[int, int]:
    """The offset behind the last one that is in the table, by partition; a partition that is not there is at 0.

    TableAltered: `main` does not descend from our last commit, or it cannot be known how far it is. Never a guess.
    """
    stated = metadata["properties"].get(NEXT_OFFSETS)
    inherited = next(_stated_by_ancestors(metadata), None)
    if stated is None:
        if inherited is None and metadata["snapshots"]:
            raise TableAltered(
                f"property {NEXT_OFFSETS} was removed and no snapshot on {MAIN} has it, so nobody knows which records"
                " are in the table: set it again, as a JSON object of partition and next offset"
            )
        return {} if inherited is None else parsed(inherited)
    offsets = parsed(stated)
    _check_descent(metadata, offsets, None if inherited is None else parsed(inherited))
    return offsets


def parsed(text: str) -> dict[int, int]:
    try:
        offsets = {int(partition): offset for partition, offset in _decode(text).items()}
    except (msgspec.DecodeError, ValueError) as error:
        raise TableAltered(f"{NEXT_OFFSETS} is {text[:60]!r}, not a JSON object of partition and offset") from error
    if any(partition < 0 or offset < 0 for partition, offset in offsets.items()):
        raise TableAltered(f"{NEXT_OFFSETS} is {text[:60]!r}: a partition or an offset is below 0")
    return offsets


def text_of(offsets: Mapping[int, int]) -> str:
    return msgspec.json.encode({str(partition): offsets[partition] for partition in sorted(offsets)}).decode()


def main_of(metadata: Json) -> int | None:
    """The snapshot that `main` is at."""
    ref = metadata["refs"].get(MAIN)
    return None if ref is None else ref["snapshot-id"]


def ancestors(metadata: Json) -> Iterator[Json]:
    """The snapshots of `main`, the newest first, as far back as they are kept."""
    known = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    at = main_of(metadata)
    while at is not None and (snapshot := known.pop(at, None)) is not None:  # each once: a loop ends too
        yield snapshot
        at = snapshot.get("parent-snapshot-id")


def _stated_by_ancestors(metadata: Json) -> Iterator[str]:
    for snapshot in ancestors(metadata):
        text = (snapshot.get("summary") or {}).get(NEXT_OFFSETS)
        if text is not None:
            yield text


def _check_descent(metadata: Json, stated: dict[int, int], inherited: dict[int, int] | None) -> None:
    """The newest snapshot of ours on `main` says what the property says. Where it is expired, `main` must at least have
    been made after it: sequence numbers only grow."""
    last = _last_commit(metadata)
    if last is None and inherited is None:
        return  # nothing was committed yet
    if inherited is not None and stated == inherited:
        return
    if inherited is None and last is not None and _made_after(metadata, last):
        return
    if _is_accepted(metadata):
        return
    raise TableAltered(_rolled_back(metadata, last))


def _last_commit(metadata: Json) -> LastCommit | None:
    text = metadata["properties"].get(LAST_COMMIT, "")
    sequence_number, _, snapshot_id = text.partition("/")
    if not (sequence_number.isdecimal() and snapshot_id.isdecimal()):
        return None
    return LastCommit(int(sequence_number), int(snapshot_id))


def _made_after(metadata: Json, last: LastCommit) -> bool:
    newest = next(ancestors(metadata), None)
    return newest is not None and newest.get("sequence-number", 0) > last.sequence_number


def _is_accepted(metadata: Json) -> bool:
    accepted = metadata["properties"].get(ACCEPT_ROLLBACK)
    return any(str(snapshot["snapshot-id"]) == accepted for snapshot in ancestors(metadata))


def _rolled_back(metadata: Json, last: LastCommit | None) -> str:
    main = main_of(metadata)
    kept = any(last and snapshot["snapshot-id"] == last.snapshot_id for snapshot in metadata["snapshots"])
    forward = (
        f"roll forward (CALL system.set_current_snapshot to {last.snapshot_id})"
        if last and kept
        else "restore its snapshots from a backup"
    )
    accept = f"accept the loss (SET TBLPROPERTIES '{ACCEPT_ROLLBACK}' = '{main}')" if main else "delete the topic"
    return (
        f"{MAIN} is at snapshot {main}, which does not follow the last commit of the pipeline: somebody rolled the"
        f" table back, and records are missing in it. Either {forward}, or {accept}"
    )
