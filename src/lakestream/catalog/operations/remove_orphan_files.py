"""Deletes files in a table's folder that no metadata names: after a crash, or a commit with an unknown result.

First the folder is listed, then the metadata is read: an old file that metadata read *after* the listing does not name
is an orphan. Files being written now are young: a commit takes minutes, and only files that are days old are deleted.
Ages are by the stores' clocks alone.

A step lists a bounded part of the folder, and the next step continues there.
"""

import logging
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.locations import LOG_FOLDER
from lakestream.catalog.operations.expire_snapshots import is_shared, named_keys, remove_keys
from lakestream.catalog.operations.live_files import LiveFileReader

log = logging.getLogger(__name__)

DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanSettings:
    age_ms: int = 3 * DAY_MS  # after which an orphan is deleted
    every_ms: int = DAY_MS  # between scans of a whole folder
    step_files: int = 10_000  # listed in one step


@dataclass(frozen=True, slots=True)
class Step:
    removed: int
    following: str
    """The key after which the next step starts; empty: the scan is complete."""


async def remove_orphans(
    catalog: Catalog,
    table_id: str,
    listings: LiveFileReader,
    now_ms: int,
    settings: OrphanSettings,
    after: str = "",
    kept: Set[str] = frozenset(),
) -> Step:
    """Runs one step after the key `after`. `now_ms`: by the store's clock. `kept`: keys that a Delta log names."""
    loaded = await catalog.load_id(table_id)
    folder = catalog.locations.key_of(catalog.locations.check_table_location(loaded.metadata["location"]))
    if await is_shared(catalog, loaded):
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
        old -= await named_keys(await catalog.load_id(table_id, confirmed=True), listings)
    return Step(await remove_keys(catalog, sorted(old)), following)


def _is_log(key: str) -> bool:
    """Returns whether the file is part of a Delta log."""
    return f"/{LOG_FOLDER}/" in key
