"""Files in a table's folder that no metadata names: left by a crash, by a commit of which nobody learned what became.

First the folder, then the metadata: what is old in the listing and in no metadata that was read *after* it belongs to
no table. What is being written now is young; a commit takes minutes, and files are left alone for days. Age is told by
the stores' clocks alone.

A step looks at a bounded part of the folder, and the next one goes on behind it.
"""

import logging
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta.paths import LOG_FOLDER
from lakestream.catalog.expire import removed, statistics_of
from lakestream.catalog.listing import READS_AT_ONCE, Listings, partition_fields
from lakestream.catalog.locations import overlap
from lakestream.catalog.shapes import Json
from lakestream.errors import Rejected
from lakestream.storage.together import together

log = logging.getLogger(__name__)

DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanSettings:
    age_ms: int = 3 * DAY_MS  # of a file that nobody names, before it goes
    every_ms: int = DAY_MS  # between looks through a whole folder
    step_files: int = 10_000  # looked at in one step


@dataclass(frozen=True, slots=True)
class Step:
    removed: int
    following: str
    """Behind which key the next step goes on; empty: the folder is through."""


async def remove_orphans(
    catalog: Catalog,
    table_id: str,
    listings: Listings,
    now_ms: int,
    settings: OrphanSettings,
    after: str = "",
    kept: Set[str] = frozenset(),
) -> Step:
    """`now_ms`: by the stores' clock. `kept`: keys of files that others than Iceberg name."""
    loaded = await catalog.load_id(table_id)
    folder = catalog.locations.key_of(loaded.metadata["location"])
    if await _is_shared(catalog, loaded):
        return Step(0, "")
    seen, following, old = 0, "", set[str]()
    async for page in catalog.objects.walk(folder, after):
        seen += len(page)
        old.update(info.key for info in page if info.modified_ms < now_ms - settings.age_ms and not _is_log(info.key))
        if seen >= settings.step_files and page:
            following = page[-1].key
            break
    old -= kept
    if old:
        old -= await _named_keys(catalog, await catalog.load_id(table_id, confirmed=True), listings)
    count = await removed(catalog, [catalog.locations.url_of(key) for key in sorted(old)])
    return Step(count, following)


def _is_log(key: str) -> bool:
    """Of a Delta table over the same files."""
    return f"/{LOG_FOLDER}/" in key


async def _is_shared(catalog: Catalog, loaded: LoadedTable) -> bool:
    """Whether another table lies in the same folder: then nobody knows whose a file is."""
    place = loaded.metadata["location"]
    async for found in catalog.pointers.all():
        if found.table_id != loaded.table_id and overlap(place, found.table.location):
            log.warning("catalog.orphans_kept location=%s also_of=%s", place, found.table.full_name)
            return True
    return False


async def _named_keys(catalog: Catalog, loaded: LoadedTable, listings: Listings) -> set[str]:
    """Everything that any snapshot names, and the metadata files themselves."""
    metadata = loaded.metadata
    named = {loaded.metadata_location, *(entry["metadata-file"] for entry in metadata["metadata-log"])}
    named |= statistics_of(metadata)
    lists = [snapshot["manifest-list"] for snapshot in metadata["snapshots"] if snapshot.get("manifest-list")]
    named.update(lists)
    manifests = {}
    for listed in await together([listings.manifests(place) for place in lists], READS_AT_ONCE):
        manifests.update({manifest.manifest_path: manifest for manifest in listed})
    named.update(manifests)
    places = partition_fields(metadata)
    for found in await together([listings.manifest(one, places) for one in manifests.values()], READS_AT_ONCE):
        named.update(file.location for file in found.files)  # not what a commit took out: others name it, or nobody
    named.update(_others(metadata))
    return {key for location in named if (key := _key(catalog, location))}


def _others(metadata: Json) -> set[str]:
    """Of version 1: manifests without a list."""
    return {path for snapshot in metadata["snapshots"] for path in snapshot.get("manifests") or ()}


def _key(catalog: Catalog, location: str) -> str:
    try:
        return catalog.locations.key_of(location)
    except Rejected:
        return ""  # it lies elsewhere
