"""The part of `lakestream doctor` that is about Delta tables: the files of a topic's two tables against each other."""

from collections.abc import AsyncIterator
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta.log import DeltaLog
from lakestream.catalog.delta.paths import HAS_DELTA, LOG_FOLDER, key_of, path_of, root_key
from lakestream.catalog.delta.schema import unsayable
from lakestream.catalog.delta.state import NOTHING, State
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.listing import READS_AT_ONCE, Listings
from lakestream.catalog.shapes import schema_of
from lakestream.cli.doctor_findings import Finding, bad, note
from lakestream.cli.text import plural
from lakestream.coordination import topic_settings
from lakestream.errors import LakestreamError, Missing, Rejected
from lakestream.metadata.topics import Topic
from lakestream.storage.together import together

LOOKED_FOR_MAX: Final = 200
"""Files that only the Delta table lists: those that Iceberg lists are looked at with its own."""


async def delta_findings(catalog: Catalog, name: str, topic: Topic) -> AsyncIterator[Finding]:
    wanted = topic_settings.read(topic.settings).delta
    what = f"{name} delta"
    try:
        loaded = await catalog.load_id(topic.topic_id)
        if not wanted and HAS_DELTA not in loaded.metadata["properties"]:
            return
        async for finding in _compared(catalog, what, loaded, wanted=wanted):
            yield finding
    except NoSuchTable:
        return
    except LakestreamError as error:
        yield bad(what, f"cannot be read: {error}")


async def _compared(catalog: Catalog, what: str, loaded: LoadedTable, *, wanted: bool) -> AsyncIterator[Finding]:
    root = root_key(catalog.locations.key_of(loaded.metadata["location"]))
    state = await DeltaLog(catalog.objects, f"{root}/{LOG_FOLDER}").read()
    if state.version == NOTHING:
        yield note(what, "nothing yet: the pipeline makes it soon after the table's first records")
        return
    there = await _paths(catalog, loaded, root)
    lacking, surplus = there - state.files.keys(), state.files.keys() - there
    if lost := await _lost(catalog, root, surplus):
        yield bad(
            what,
            f"version {state.version} lists {lost[0]}, which is not there any more: remove the folder {LOG_FOLDER} in"
            f" {catalog.locations.url_of(root)}, and the pipeline makes it anew",
        )
    elif not wanted:
        yield note(what, f"switched off: it stays at version {state.version}, with {_files(state)}")
    elif reasons := unsayable(schema_of(loaded.metadata)):
        yield bad(what, f"stays at version {state.version}: {reasons[0]}; drop that column, or switch Delta off")
    elif lacking or surplus:
        behind = f"lacks {plural(len(lacking), 'file')}, and has {len(surplus)} that the table no longer has"
        yield note(what, f"version {state.version} is behind: it {behind}")
    else:
        place = catalog.locations.url_of(root)
        yield Finding(what, f"version {state.version} has the table's own {_files(state)}; it is {place}")


def _files(state: State) -> str:
    return plural(len(state.files), "file")


async def _paths(catalog: Catalog, loaded: LoadedTable, root: str) -> set[str]:
    listing = await Listings(catalog.objects, catalog.locations).of_main(loaded.metadata)
    found: set[str] = set()
    for file in listing.data:
        try:
            path = path_of(catalog.locations.key_of(file.location), root)
        except Rejected:
            path = None
        found.add(path or file.location)
    return found


async def _lost(catalog: Catalog, root: str, paths: set[str]) -> list[str]:
    async def is_lost(path: str) -> bool:
        try:
            await catalog.objects.head(key_of(path, root))
        except Missing:
            return True
        return False

    some = sorted(paths)[:LOOKED_FOR_MAX]
    found = await together([is_lost(path) for path in some], READS_AT_ONCE)
    return [path for path, lost in zip(some, found, strict=True) if lost]
