"""Summaries of snapshots, with the keys that Iceberg's engines use. Pure."""

from collections.abc import Sequence
from typing import Final

from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.remove_files import FilteredManifest
from lakestream.catalog.table_metadata.json_model import Json, decimal

_NO_TOTALS: Final = {
    "total-records": 0,
    "total-files-size": 0,
    "total-data-files": 0,
    "total-delete-files": 0,
    "total-position-deletes": 0,
    "total-equality-deletes": 0,
}


def append_summary(files: Sequence[FileDescription], parent: Json | None) -> dict[str, str]:
    """Returns the summary of an append. Totals that the parent does not have, or that are invalid, are left out."""
    records, size = sum(file.record_count for file in files), sum(file.size for file in files)
    added = {"total-records": records, "total-files-size": size, "total-data-files": len(files)}
    totals = {
        "added-data-files": len(files),
        "added-records": records,
        "added-files-size": size,
        "changed-partition-count": len({(file.spec_id, file.values or file.partition) for file in files}),
    }
    for name in _NO_TOTALS:
        before = _total(parent, name)
        if before is not None:
            totals[name] = before + added.get(name, 0)
    return {"operation": "append", **{name: str(number) for name, number in totals.items()}}


def _total(parent: Json | None, name: str) -> int | None:
    if parent is None:
        return _NO_TOTALS[name]
    return decimal((parent.get("summary") or {}).get(name, ""))


def rewrite_summary(
    operation: str, files: Sequence[FileDescription], taken: Sequence[FilteredManifest], parent: Json
) -> dict[str, str]:
    """Returns the summary of a snapshot in which `files` replace those that were taken out of manifests."""
    added_rows, added_size = sum(file.record_count for file in files), sum(file.size for file in files)
    files_deleted = sum(out.files_removed for out in taken)
    rows_deleted, size_deleted = sum(out.rows_removed for out in taken), sum(out.bytes_removed for out in taken)
    changes = {
        "total-records": added_rows - rows_deleted,
        "total-files-size": added_size - size_deleted,
        "total-data-files": len(files) - files_deleted,
    }
    totals = {
        "added-data-files": len(files),
        "added-records": added_rows,
        "added-files-size": added_size,
        "deleted-data-files": files_deleted,
        "deleted-records": rows_deleted,
        "removed-files-size": size_deleted,
    }
    for name in _NO_TOTALS:
        before = _total(parent, name)
        if before is not None:
            totals[name] = max(0, before + changes.get(name, 0))
    return {"operation": operation, **{name: str(number) for name, number in totals.items()}}
