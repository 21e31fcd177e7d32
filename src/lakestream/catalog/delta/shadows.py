"""Files with rows that a delete file of Iceberg says are gone: a reader of Delta would still see them. Pure."""

from collections.abc import Iterator, Sequence

from lakestream.catalog.listing import POSITION_DELETES, UNKNOWN_PARTITION, LiveFile


def shadowed(data: Sequence[LiveFile], deletes: Sequence[LiveFile]) -> Iterator[LiveFile]:
    """Those that some delete may be about. What was deleted before a file came is none of its rows."""
    if not deletes:
        return
    about: dict[str, int] = {}
    for one in deletes:
        if one.about is not None:
            about[one.about] = max(about.get(one.about, 0), one.sequence_number)
    of_any = [one for one in deletes if one.about is None]
    for file in data:
        if about.get(file.location, -1) >= file.sequence_number or any(_may_be_about(one, file) for one in of_any):
            yield file


def _may_be_about(delete: LiveFile, file: LiveFile) -> bool:
    if delete.content != POSITION_DELETES:  # by equality: only of rows that came before it
        return delete.sequence_number > file.sequence_number
    both_known = UNKNOWN_PARTITION not in (delete.partition, file.partition)
    return delete.sequence_number >= file.sequence_number and not (both_known and delete.partition != file.partition)
