"""Expires old snapshots of a table, and then deletes the files that no snapshot names any more.

Snapshots are selected by the rules of Iceberg and the standard properties (`history.expire.…`), with one additional
rule. Queries may still read a snapshot that was `main` a few minutes ago, also if it is old: a table may get no writes
for days. So a snapshot expires only after it has not been `main` for a while, and its files can be deleted immediately.

The commit comes first, then the files: a crash in between leaves files that no metadata names, which
remove_orphan_files.py deletes.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.commit_checks.metadata_paths import inline_manifests, manifest_lists, statistics_of
from lakestream.catalog.locations import overlap
from lakestream.catalog.manifests.manifest import ManifestFile
from lakestream.catalog.operations.live_files import READS_AT_ONCE, LiveFileReader, TableManifests
from lakestream.catalog.table_metadata.json_model import LONG_MAX, MAIN, Json, decimal
from lakestream.catalog.table_metadata.updates import RemoveSnapshotRef, RemoveSnapshots, Update
from lakestream.errors import LakestreamError, Missing

log = logging.getLogger(__name__)

AGE_MAX: Final = "history.expire.max-snapshot-age-ms"
KEPT_MIN: Final = "history.expire.min-snapshots-to-keep"
REF_AGE_MAX: Final = "history.expire.max-ref-age-ms"
DELETED_TOGETHER: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySettings:
    age_ms: int = 60 * 60 * 1000  # of a snapshot, if the table has no property for it
    kept_min: int = 1
    grace_ms: int = 10 * 60 * 1000  # since a snapshot was `main`, for queries that read it
    at_once: int = 500  # snapshots in one commit


@dataclass(frozen=True, slots=True)
class Expiry:
    snapshots: frozenset[int] = frozenset()
    refs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.refs)


@dataclass(frozen=True, slots=True)
class Expired:
    snapshots: int
    files: int


# Selection


def expiry(metadata: Json, now_ms: int, settings: ExpirySettings) -> Expiry:
    """Returns the snapshots and refs to expire: the oldest snapshots first, at most `settings.at_once`."""
    known = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    refs = tuple(sorted(name for name, ref in metadata["refs"].items() if _is_over(name, ref, known, metadata, now_ms)))
    left_ms = _main_until(metadata, known)
    before_ms = now_ms - _number(metadata, AGE_MAX, settings.age_ms)
    kept: set[int] = set()
    on_branches: set[int] = set()
    for name, ref in metadata["refs"].items():
        if name in refs:
            continue
        kept.add(ref["snapshot-id"])
        if ref["type"] == "branch":
            line = list(_line(ref["snapshot-id"], known))
            on_branches.update(line)
            kept.update(_retained_snapshots(line, ref, known, metadata, now_ms, settings))
    kept.update(
        number for number, one in known.items() if number not in on_branches and one["timestamp-ms"] > before_ms
    )
    kept.update(number for number in known if left_ms.get(number, 0) > now_ms - settings.grace_ms)
    expired = sorted(set(known) - kept, key=lambda number: known[number]["timestamp-ms"])
    return Expiry(frozenset(expired[: settings.at_once]), refs)


def _retained_snapshots(
    line: list[int], ref: Json, known: Mapping[int, Json], metadata: Json, now_ms: int, settings: ExpirySettings
) -> Iterator[int]:
    age_ms = ref.get("max-snapshot-age-ms") or _number(metadata, AGE_MAX, settings.age_ms)
    count = max(1, ref.get("min-snapshots-to-keep") or _number(metadata, KEPT_MIN, settings.kept_min))
    for place, number in enumerate(line):
        if place >= count and known[number]["timestamp-ms"] < now_ms - age_ms:
            return
        yield number


def _line(number: int | None, known: Mapping[int, Json]) -> Iterator[int]:
    seen: set[int] = set()
    while number is not None and number in known and number not in seen:
        seen.add(number)
        yield number
        number = known[number].get("parent-snapshot-id")


def _main_until(metadata: Json, known: Mapping[int, Json]) -> dict[int, int]:
    """Returns until when each snapshot was `main`, by the snapshot log and by the timestamps of its children."""
    left: dict[int, int] = {}
    for snapshot in known.values():
        parent = snapshot.get("parent-snapshot-id")
        if parent is not None:
            left[parent] = max(left.get(parent, 0), snapshot["timestamp-ms"])
    entries = metadata["snapshot-log"]
    for place, entry in enumerate(entries):
        end_ms = entries[place + 1]["timestamp-ms"] if place + 1 < len(entries) else LONG_MAX
        left[entry["snapshot-id"]] = max(left.get(entry["snapshot-id"], 0), end_ms)
    return left


def _is_over(name: str, ref: Json, known: Mapping[int, Json], metadata: Json, now_ms: int) -> bool:
    """Returns whether a branch or tag is older than its max-ref-age."""
    if name == MAIN:
        return False
    if ref["snapshot-id"] not in known:
        return True
    age_ms: int = ref.get("max-ref-age-ms") or _number(metadata, REF_AGE_MAX, LONG_MAX)
    made_ms: int = known[ref["snapshot-id"]]["timestamp-ms"]
    return now_ms - made_ms > age_ms


def _number(metadata: Json, name: str, default: int) -> int:
    return decimal(metadata["properties"].get(name, "")) or default


# Commit and files


async def expire(
    catalog: Catalog,
    loaded: LoadedTable,
    listings: LiveFileReader,
    now_ms: int,
    settings: ExpirySettings,
    kept: Set[str] = frozenset(),
) -> Expired:
    """Expires at most `settings.at_once` snapshots and deletes their files. If it is interrupted, orphans remain.

    `kept`: keys of files that must stay, also if no snapshot names them.
    """
    if not expiry(loaded.metadata, now_ms, settings):
        return Expired(0, 0)
    before: list[Json] = []

    def updates_for(metadata: Json) -> list[Update]:
        before[:] = [metadata]
        return _updates(expiry(metadata, now_ms, settings))

    after = await catalog.change(loaded.table_id, updates_for)
    left = {snapshot["snapshot-id"] for snapshot in after.metadata["snapshots"]}
    expired = [snapshot for snapshot in before[0]["snapshots"] if snapshot["snapshot-id"] not in left]
    needed = await named_keys(after, listings)
    folder = catalog.locations.table(loaded.metadata["location"])
    statistics = statistics_of(before[0]) - statistics_of(after.metadata)
    named = await _named_by(listings.of(before[0]), statistics, expired, needed)
    keys = folder.own_keys(named) if folder.is_removable else []
    if len(keys) < len(named):
        log.warning("catalog.files_shared location=%s count=%d", folder.location, len(named) - len(keys))
    keys = [key for key in dict.fromkeys(keys) if key not in needed and key not in kept]
    if keys and await is_shared(catalog, after):
        keys = []
    return Expired(len(expired), await remove_keys(catalog, keys))


async def is_shared(catalog: Catalog, loaded: LoadedTable) -> bool:
    """Returns whether the folder overlaps with another table's, which two concurrent creates can cause.

    Then a file may be the other table's.
    """
    location = loaded.metadata["location"]
    async for entry in catalog.pointers.all():
        if entry.table_id != loaded.table_id and overlap(location, entry.table.location):
            log.warning("catalog.files_shared location=%s table=%s", location, entry.table.full_name)
            return True
    return False


def _updates(chosen: Expiry) -> list[Update]:
    updates: list[Update] = [RemoveSnapshotRef(name) for name in chosen.refs]
    return [*updates, RemoveSnapshots(sorted(chosen.snapshots))] if chosen.snapshots else updates


async def _named_by(
    manifests: TableManifests, statistics: Set[str], expired: list[Json], needed: Set[str]
) -> list[str]:
    """Returns the files that the expired snapshots name, data files first, because the manifests list them.

    A list or manifest that is not in the table's folder is in the result, but is not read.
    """
    own_keys = manifests.folder.own_keys
    lists = [snapshot["manifest-list"] for snapshot in expired if snapshot.get("manifest-list")]
    listed = await _listed(manifests, (path for path in lists if own_keys([path])))
    old = [one for path, one in listed.items() if any(key not in needed for key in own_keys([path]))]
    found = await gather_limited([manifests.manifest(one) for one in old], READS_AT_ONCE)
    data = {path for manifest in found for path in manifest.all_paths}
    return [*sorted(data), *listed, *sorted(statistics), *lists]


async def named_keys(loaded: LoadedTable, listings: LiveFileReader) -> set[str]:
    """Returns the keys of all files that any snapshot names, of any kind, and of the metadata files.

    Corrupt: a list or a manifest cannot be read, so the files that it names are unknown.
    """
    metadata = loaded.metadata
    manifests = listings.of(metadata)
    lists = manifest_lists(metadata)
    listed = await _listed(manifests, lists)
    named = {loaded.metadata_location, *(entry["metadata-file"] for entry in metadata["metadata-log"])}
    named |= {*statistics_of(metadata), *lists, *listed, *inline_manifests(metadata)}
    for found in await gather_limited([manifests.manifest(one) for one in listed.values()], READS_AT_ONCE):
        named.update(file.location for file in found.live)  # without deleted entries
    return set(manifests.folder.own_keys(named))


async def _listed(manifests: TableManifests, lists: Iterable[str]) -> dict[str, ManifestFile]:
    found = await gather_limited([manifests.listed(place) for place in lists], READS_AT_ONCE)
    return {manifest.manifest_path: manifest for one in found for manifest in one}


async def remove_keys(catalog: Catalog, keys: Sequence[str]) -> int:
    """Deletes files. Returns their number."""
    for start in range(0, len(keys), DELETED_TOGETHER):
        some = keys[start : start + DELETED_TOGETHER]
        try:
            await catalog.objects.delete(some)
        except Missing:
            continue
        except LakestreamError as error:
            log.warning("catalog.cleanup_failed count=%d first=%s error=%s", len(keys) - start, some[0], error)
            return start
    return len(keys)
