"""The tag `transactions-whole`: the newest snapshot in which every transaction of the topic is whole. Pure.

    transactions-whole      a tag, moved in the very commit that makes such a snapshot
    lakestream.whole-at     a property, set with it: the table is whole once it has these offsets, {"0": 123, …}
                            {}: it is whole now

Who appends knows whether the snapshot is whole (pipeline/whole.py decides). Whoever else commits, our maintenance or a
foreign engine, brings in nothing of the log: what follows a whole snapshot is whole too, rewritten or with rows
deleted. So the catalog takes the tag along, in the same commit: nobody finds rows under it that `main` no longer has.
"""

from collections.abc import Mapping
from typing import Final

from lakestream.catalog.errors import TableAltered
from lakestream.catalog.next_offsets import NEXT_OFFSETS, ancestors, main_of, parsed, text_of
from lakestream.catalog.shapes import Json
from lakestream.catalog.updates import SetProperties, SetSnapshotRef, Update

WHOLE_TAG: Final = "transactions-whole"
WHOLE_AT: Final = "lakestream.whole-at"
_FOR_EVER: Final = 2**63 - 1
"""Its own rule of expiry: a table whose other tags are to go after a while keeps this one, however quiet its topic."""


def split_of(metadata: Json) -> dict[int, int] | None:
    """How far the table has to go until it is whole; empty: it is. None: it does not say."""
    stated = metadata["properties"].get(WHOLE_AT)
    if stated is None:
        return None if metadata["snapshots"] else {}
    try:
        return parsed(stated)
    except TableAltered:  # it is only about the tag: nothing is lost if it has to be found out anew
        return None


def stating(split: Mapping[int, int] | None, snapshot_id: int) -> list[Update]:
    """What a commit says of its snapshot. None: it is not known whether it is whole, and nothing changes."""
    if split is None:
        return []
    said = SetProperties({WHOLE_AT: text_of(split)})
    return [said] if split else [said, _tag_at(snapshot_id)]


def following(before: Json, after: Json) -> Update | None:
    """What a commit that is not an append has to change besides, if anything."""
    tag, main, main_before = before["refs"].get(WHOLE_TAG), main_of(after), main_of(before)
    if tag is None or main is None or main == main_before or tag["snapshot-id"] != main_before:
        return None
    if after["refs"].get(WHOLE_TAG) != tag:
        return None  # it was moved on purpose
    if after["properties"].get(NEXT_OFFSETS) != before["properties"].get(NEXT_OFFSETS):
        return None  # an append, which knows by itself
    if not any(snapshot["snapshot-id"] == main_before for snapshot in ancestors(after)):
        return None  # a rollback
    return _tag_at(main)


def _tag_at(snapshot_id: int) -> SetSnapshotRef:
    return SetSnapshotRef(WHOLE_TAG, "tag", snapshot_id, max_ref_age_ms=_FOR_EVER)
