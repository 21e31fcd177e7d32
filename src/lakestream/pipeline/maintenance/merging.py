"""Which small files to merge now: pure.

Every round of the pipeline adds a file to each partition that has something. Files that lie beside one another become
one when enough of them have come together, and the larger ones of a run are left alone until the others have caught up:
so a row is written anew a few times in its life, not with every merge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.listing import LiveFile
from lakestream.model import MiB

DELETED_SHARE: Final = 0.3
"""Of a file's rows, deleted without the file being written anew: then it pays to do that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    files_min: int = 8  # that become one
    many: int = 32  # files that are merged however young they are
    young_ms: int = 60_000  # else they wait: more of them may come
    target_bytes: int = 128 * MiB  # of a file, where the table says nothing else
    round_bytes_max: int = 1024 * MiB  # read in one round
    small_share: float = 0.75  # of the target: what is larger is left alone


def merges(
    files: Sequence[LiveFile],
    ages_ms: Mapping[int, int],
    target: int,
    settings: MergeSettings,
    deleted_rows: Mapping[str, int] | None = None,
) -> list[list[LiveFile]]:
    """Runs of files of one partition, by offset, each to become one file. `ages_ms`: by sequence number, of those that
    are young; `deleted_rows`: by file, how many of its rows count no more."""
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
    """As much of a run as is worth merging now, from its end."""
    if len(run) < settings.many:
        run = [file for file in run if ages_ms.get(file.sequence_number, settings.young_ms) >= settings.young_ms]
    if len(run) >= 2 and sum(file.size for file in run) >= target * settings.small_share:
        return list(run)  # one that is as large as it gets, and not written again
    start = 0
    while len(run) - start >= settings.files_min and run[start].size > sum(file.size for file in run[start + 1 :]):
        start += 1
    return list(run[start:]) if len(run) - start >= settings.files_min else []


def _with_deletes(run: Sequence[LiveFile], deleted: Mapping[str, int]) -> list[LiveFile]:
    """A single one of the run that is worth it for itself."""
    return [file for file in run if deleted.get(file.location, 0) > file.record_count * DELETED_SHARE][:1]
