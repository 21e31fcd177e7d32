"""What a snapshot of ours says of itself, in the words that every engine uses. Pure."""

from collections.abc import Sequence
from typing import Final

from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.shapes import Json
from lakestream.catalog.taking_out import TakenOut

_NOTHING: Final = {
    "total-records": 0,
    "total-files-size": 0,
    "total-data-files": 0,
    "total-delete-files": 0,
    "total-position-deletes": 0,
    "total-equality-deletes": 0,
}


def summary_of(files: Sequence[FileDescription], parent: Json | None) -> dict[str, str]:
    """Totals go on from those of the parent; what it does not say, or says wrongly, stays unsaid."""
    records, size = sum(file.record_count for file in files), sum(file.size for file in files)
    added = {"total-records": records, "total-files-size": size, "total-data-files": len(files)}
    said = {
        "added-data-files": len(files),
        "added-records": records,
        "added-files-size": size,
        "changed-partition-count": len({(file.spec_id, file.values or file.partition) for file in files}),
    }
    for name in _NOTHING:
        before = _total(parent, name)
        if before is not None:
            said[name] = before + added.get(name, 0)
    return {"operation": "append", **{name: str(number) for name, number in said.items()}}


def _total(parent: Json | None, name: str) -> int | None:
    if parent is None:
        return _NOTHING[name]
    text = (parent.get("summary") or {}).get(name, "")
    return int(text) if text.isdecimal() else None


def summary_of_rewrite(
    operation: str, files: Sequence[FileDescription], taken: Sequence[TakenOut], parent: Json
) -> dict[str, str]:
    """Of a snapshot in which `files` stand where others were taken out."""
    added_rows, added_size = sum(file.record_count for file in files), sum(file.size for file in files)
    gone = sum(out.files_gone for out in taken)
    gone_rows, gone_size = sum(out.rows_gone for out in taken), sum(out.bytes_gone for out in taken)
    changes = {
        "total-records": added_rows - gone_rows,
        "total-files-size": added_size - gone_size,
        "total-data-files": len(files) - gone,
    }
    said = {
        "added-data-files": len(files),
        "added-records": added_rows,
        "added-files-size": added_size,
        "deleted-data-files": gone,
        "deleted-records": gone_rows,
        "removed-files-size": gone_size,
    }
    for name in _NOTHING:
        before = _total(parent, name)
        if before is not None:
            said[name] = max(0, before + changes.get(name, 0))
    return {"operation": operation, **{name: str(number) for name, number in said.items()}}
