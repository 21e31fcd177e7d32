"""Plans merges of small files. Pure.

Every micro-batch adds a file to each partition with new records. Adjacent files are merged when there are enough of
them, and the larger files of a run are left out until the smaller ones add up to their size: so a row is rewritten a
few times in its life, not with every merge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.model import MiB

DELETED_SHARE: Final = 0.3
"""Share of deleted rows from which rewriting a file pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    files_min: int = 8  # files of one merge
    many: int = 32  # this many files are merged even if they are young
    young_ms: int = 60_000  # younger files wait, because more may follow
    target_bytes: int = 128 * MiB  # of a file, unless the table has a target size
    round_bytes_max: int = 1024 * MiB  # read in one visit of the table
    small_share: float = 0.75  # of the target: larger files are not merged


def plan_merges(
    files: Sequence[LiveFile],
    ages_ms: Mapping[int, int],
    target: int,
    settings: MergeSettings,
    deleted_rows: Mapping[str, int] | None = None,
) -> list[list[LiveFile]]:
    """Returns runs of files of one partition, by offset, each of which becomes one file.

    `ages_ms`: of young files, by sequence number. `deleted_rows`: number of deleted rows by file.
    """
    small = target * settings.small_share
    deleted = deleted_rows or {}
    found: list[list[LiveFile]] = []
    run: list[LiveFile] = []
    for file in files:
        if file.size >= small or sum(one.size for one in run) + file.size > target:
            found.append(run)
            run = []
        if file.size >= small:
            if deleted.get(file.location, 0) > file.record_count * DELETED_SHARE:
                found.append([file])
            continue
        run.append(file)
    found.append(run)
    return [
        chosen for run in found if (chosen := _worth(run, ages_ms, target, settings) or _with_deletes(run, deleted))
    ]


def _worth(run: Sequence[LiveFile], ages_ms: Mapping[int, int], target: int, settings: MergeSettings) -> list[LiveFile]:
    """Returns the end of a run that is worth merging now."""
    if len(run) < settings.many:
        run = [file for file in run if ages_ms.get(file.sequence_number, settings.young_ms) >= settings.young_ms]
    if len(run) >= 2 and sum(file.size for file in run) >= target * settings.small_share:
        return list(run)  # the new file has its final size
    start = 0
    while len(run) - start >= settings.files_min and run[start].size > sum(file.size for file in run[start + 1 :]):
        start += 1
    return list(run[start:]) if len(run) - start >= settings.files_min else []


def _with_deletes(run: Sequence[LiveFile], deleted: Mapping[str, int]) -> list[LiveFile]:
    """Returns one file of the run that is worth rewriting alone because of its deletes."""
    return [file for file in run if deleted.get(file.location, 0) > file.record_count * DELETED_SHARE][:1]
