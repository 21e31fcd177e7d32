"""A commit may rewrite the rows that it removes, in any division into files; other rows with offsets are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.catalog.commit_checks.topic_table import DataFile, check_rows
from lakestream.errors import Rejected

OFFSETS = st.sets(st.integers(0, 300), min_size=1, max_size=60)


def files_of(offsets: set[int], cuts: list[int]) -> list[DataFile]:
    """Returns the rows, divided into files."""
    parts: dict[int, list[int]] = {}
    for place, offset in enumerate(sorted(offsets)):
        parts.setdefault(cuts[place % len(cuts)], []).append(offset)
    return [DataFile(f"{number}.parquet", len(own), 0, (0, 0), (min(own), max(own))) for number, own in parts.items()]


CUTS = st.lists(st.integers(0, 5), min_size=1, max_size=7)


@given(there=OFFSETS, before=CUTS, after=CUTS, gone=st.sets(st.integers(0, 300)), stays=st.sets(st.integers(0, 5)))
def test_rewrite_of_some_files_is_accepted(
    there: set[int], before: list[int], after: list[int], gone: set[int], stays: set[int]
) -> None:
    files = {file.location: file for file in files_of(there, before)}
    parts: dict[str, set[int]] = {name: set() for name in files}
    for place, offset in enumerate(sorted(there)):
        parts[f"{before[place % len(before)]}.parquet"].add(offset)
    removed = [file for name, file in files.items() if int(name.split(".")[0]) not in stays]
    rows = {offset for file in removed for offset in parts[file.location]}
    check_rows(files_of(rows - gone, after) if rows - gone else [], removed, 0, {0: 301})


@given(there=OFFSETS, cuts=CUTS, deleted=st.integers(0, 60))
def test_update_is_accepted_for_deleted_rows_only(there: set[int], cuts: list[int], deleted: int) -> None:
    added = files_of(there, cuts)
    if deleted >= len(there):
        check_rows(added, [], deleted, {0: 301})
    else:
        with pytest.raises(Rejected):
            check_rows(added, [], deleted, {0: 301})


@given(there=OFFSETS, cuts=CUTS, lacking=st.integers(1, 10))
def test_rows_without_offsets_are_rejected_with_any_rewrite(there: set[int], cuts: list[int], lacking: int) -> None:
    files = files_of(there, cuts)
    new = DataFile("new.parquet", 10, lacking, (0, 0), files[0].offsets)
    with pytest.raises(Rejected, match="have no offset"):
        check_rows([*files, new], files, 20, {0: 301})
