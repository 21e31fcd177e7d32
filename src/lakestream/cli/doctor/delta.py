"""Checks of `lakestream doctor` for Delta tables: compares the files of a topic's Delta and Iceberg tables."""

from collections.abc import AsyncIterator
from typing import Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta.log import DeltaLog
from lakestream.catalog.delta.paths import key_of, path_of, root_key
from lakestream.catalog.delta.schema import unsupported_columns
from lakestream.catalog.delta.state import NO_VERSION, DeltaState
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.locations import LOG_FOLDER
from lakestream.catalog.operations.live_files import READS_AT_ONCE, LiveFileReader
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.topic_table.properties import HAS_DELTA
from lakestream.cli.doctor.findings import Finding, bad, note
from lakestream.cli.output.text import plural
from lakestream.coordination import topic_config
from lakestream.errors import LakestreamError, Missing, Rejected
from lakestream.metadata.topics import Topic

FILES_CHECKED_MAX: Final = 200
"""Limit for files that only the Delta table lists. The checks of the Iceberg table cover its own files."""


async def delta_findings(catalog: Catalog, name: str, topic: Topic) -> AsyncIterator[Finding]:
    is_enabled = topic_config.read(topic.settings).delta
    what = f"{name} delta"
    try:
        loaded = await catalog.load_id(topic.topic_id)
        if not is_enabled and HAS_DELTA not in loaded.metadata["properties"]:
            return
        async for finding in _compared(catalog, what, loaded, is_enabled=is_enabled):
            yield finding
    except NoSuchTable:
        return
    except LakestreamError as error:
        yield bad(what, f"cannot be read: {error}")


async def _compared(catalog: Catalog, what: str, loaded: LoadedTable, *, is_enabled: bool) -> AsyncIterator[Finding]:
    root = root_key(catalog.locations.key_of(loaded.metadata["location"]))
    state = await DeltaLog(catalog.objects, f"{root}/{LOG_FOLDER}").read()
    if state.version == NO_VERSION:
        yield note(what, "does not exist yet: the pipeline creates it soon after the table's first records")
        return
    iceberg_paths = await _paths(catalog, loaded, root)
    lacking, surplus = iceberg_paths - state.files.keys(), state.files.keys() - iceberg_paths
    if lost := await _lost(catalog, root, surplus):
        yield bad(
            what,
            f"version {state.version} lists {lost[0]}, which no longer exists: remove the folder {LOG_FOLDER} in"
            f" {catalog.locations.url_of(root)}, and the pipeline creates it again",
        )
    elif not is_enabled:
        yield note(what, f"switched off: it stays at version {state.version}, with {_files(state)}")
    elif reasons := unsupported_columns(schema_of(loaded.metadata)):
        yield bad(what, f"stays at version {state.version}: {reasons[0]}; drop that column, or switch Delta off")
    elif lacking or surplus:
        differences = f"lacks {plural(len(lacking), 'file')}, and has {len(surplus)} that the table no longer has"
        yield note(what, f"version {state.version} lags: it {differences}")
    else:
        url = catalog.locations.url_of(root)
        yield Finding(what, f"version {state.version} has the table's own {_files(state)}; it is {url}")


def _files(state: DeltaState) -> str:
    return plural(len(state.files), "file")


async def _paths(catalog: Catalog, loaded: LoadedTable, root: str) -> set[str]:
    listing = await LiveFileReader(catalog.objects, catalog.locations).of_main(loaded.metadata)
    paths: set[str] = set()
    for file in listing.data:
        if not file.has_records:
            continue
        try:
            path = path_of(catalog.locations.key_of(file.location), root)
        except Rejected:
            path = None
        paths.add(path or file.location)
    return paths


async def _lost(catalog: Catalog, root: str, paths: set[str]) -> list[str]:
    async def is_lost(path: str) -> bool:
        try:
            await catalog.objects.head(key_of(path, root))
        except Missing:
            return True
        return False

    checked = sorted(paths)[:FILES_CHECKED_MAX]
    results = await gather_limited([is_lost(path) for path in checked], READS_AT_ONCE)
    return [path for path, lost in zip(checked, results, strict=True) if lost]
