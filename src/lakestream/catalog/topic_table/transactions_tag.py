"""The tag `transactions-whole`: the newest snapshot that contains each transaction completely or not at all. Pure.

    transactions-whole      a tag, moved in the commit that adds such a snapshot
    lakestream.whole-at     a property, set with it: the table is whole once it has these offsets, {"0": 123, …}
                            {}: it is whole now

For an append, pipeline/transaction_cut.py decides whether the snapshot is whole. All other commits, by maintenance or
by an engine, add no records of the log: a snapshot after a whole one is whole too, with files rewritten or rows
deleted. So the catalog moves the tag in the same commit, and readers of the tag never see rows that `main` no longer
has.
"""

from collections.abc import Mapping
from typing import Final

from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.updates import SetProperties, SetSnapshotRef, Update
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, ancestors, main_of, parse_offsets, text_of

WHOLE_TAG: Final = "transactions-whole"
WHOLE_AT: Final = "lakestream.whole-at"
_MAX_REF_AGE_MS: Final = 2**63 - 1
"""The tag's own max-ref-age: it is kept in a table whose other tags expire, also if the topic gets no records."""


def incomplete_offsets(metadata: Json) -> dict[int, int] | None:
    """Returns the offsets at which the table is whole; empty: it is whole now. None: unknown."""
    stated = metadata["properties"].get(WHOLE_AT)
    if stated is None:
        return None if metadata["snapshots"] else {}
    try:
        return parse_offsets(stated)
    except IncompatibleTable:  # only the tag depends on it, and the next append computes it again
        return None


def tag_updates(split: Mapping[int, int] | None, snapshot_id: int) -> list[Update]:
    """Returns the updates for an append. `split`: as `incomplete_offsets`; None: unknown, and nothing changes."""
    if split is None:
        return []
    whole_at = SetProperties({WHOLE_AT: text_of(split)})
    return [whole_at] if split else [whole_at, _tag_at(snapshot_id)]


def carry_tag(before: Json, after: Json) -> Update | None:
    """Returns the update that moves the tag with a commit that is not an append; None if it must not move."""
    tag, main, main_before = before["refs"].get(WHOLE_TAG), main_of(after), main_of(before)
    if tag is None or main is None or main == main_before or tag["snapshot-id"] != main_before:
        return None
    if after["refs"].get(WHOLE_TAG) != tag:
        return None  # the commit moved it
    if after["properties"].get(NEXT_OFFSETS) != before["properties"].get(NEXT_OFFSETS):
        return None  # an append, which sets it itself
    if not any(snapshot["snapshot-id"] == main_before for snapshot in ancestors(after)):
        return None  # a rollback
    return _tag_at(main)


def _tag_at(snapshot_id: int) -> SetSnapshotRef:
    return SetSnapshotRef(WHOLE_TAG, "tag", snapshot_id, max_ref_age_ms=_MAX_REF_AGE_MS)
