"""Old snapshots leave a table, and then the files that no snapshot names any more.

Which ones: pure, by the rules of Iceberg and the properties that every engine knows (`history.expire.…`), with one rule
more. A snapshot that was `main` a few minutes ago is still being read, however old it is: a table may rest for days and
then be written to. So it goes only when it has not been `main` for a while, and then its files can go with it at once.

First the commit, then the files: a crash in between leaves files that no metadata names, which orphans.py removes.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.listing import READS_AT_ONCE, Listings, partition_fields
from lakestream.catalog.manifests import ManifestFile
from lakestream.catalog.shapes import MAIN, Json
from lakestream.catalog.updates import RemoveSnapshotRef, RemoveSnapshots, Update
from lakestream.errors import LakestreamError, Missing, Rejected
from lakestream.storage.together import together

log = logging.getLogger(__name__)

AGE_MAX: Final = "history.expire.max-snapshot-age-ms"
KEPT_MIN: Final = "history.expire.min-snapshots-to-keep"
REF_AGE_MAX: Final = "history.expire.max-ref-age-ms"
_FOR_EVER: Final = 2**63 - 1
DELETED_TOGETHER: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySettings:
    age_ms: int = 60 * 60 * 1000  # of a snapshot, where the table says nothing else
    kept_min: int = 1
    grace_ms: int = 10 * 60 * 1000  # since a snapshot was `main`: for those who read it
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


# What may go


def expiry(metadata: Json, now_ms: int, settings: ExpirySettings) -> Expiry:
    """The oldest first, as many as go at once."""
    known = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    refs = tuple(sorted(name for name, ref in metadata["refs"].items() if _is_over(name, ref, known, metadata, now_ms)))
    left_ms = _left_main(metadata, known)
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
            kept.update(_kept_of_branch(line, ref, known, metadata, now_ms, settings))
    kept.update(
        number for number, one in known.items() if number not in on_branches and one["timestamp-ms"] > before_ms
    )
    kept.update(number for number in known if left_ms.get(number, 0) > now_ms - settings.grace_ms)
    gone = sorted(set(known) - kept, key=lambda number: known[number]["timestamp-ms"])
    return Expiry(frozenset(gone[: settings.at_once]), refs)


def _kept_of_branch(
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


def _left_main(metadata: Json, known: Mapping[int, Json]) -> dict[int, int]:
    """When each snapshot was last `main`; until now, for the one that is. By the log, and by whose child is how old."""
    left: dict[int, int] = {}
    for snapshot in known.values():
        parent = snapshot.get("parent-snapshot-id")
        if parent is not None:
            left[parent] = max(left.get(parent, 0), snapshot["timestamp-ms"])
    entries = metadata["snapshot-log"]
    for place, entry in enumerate(entries):
        end_ms = entries[place + 1]["timestamp-ms"] if place + 1 < len(entries) else _FOR_EVER
        left[entry["snapshot-id"]] = max(left.get(entry["snapshot-id"], 0), end_ms)
    return left


def _is_over(name: str, ref: Json, known: Mapping[int, Json], metadata: Json, now_ms: int) -> bool:
    """A branch or tag that was to be kept for so long only."""
    if name == MAIN:
        return False
    if ref["snapshot-id"] not in known:
        return True
    age_ms: int = ref.get("max-ref-age-ms") or _number(metadata, REF_AGE_MAX, _FOR_EVER)
    made_ms: int = known[ref["snapshot-id"]]["timestamp-ms"]
    return now_ms - made_ms > age_ms


def _number(metadata: Json, name: str, default: int) -> int:
    text = metadata["properties"].get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else default


# The commit, and the files


async def expire(
    catalog: Catalog,
    loaded: LoadedTable,
    listings: Listings,
    now_ms: int,
    settings: ExpirySettings,
    kept: Set[str] = frozenset(),
) -> Expired:
    """Removes what may go now, at most as many snapshots as go at once. Whoever stops it in between leaves orphans.
    `kept`: keys of files that stay, whatever snapshots say."""
    if not expiry(loaded.metadata, now_ms, settings):
        return Expired(0, 0)
    before: list[Json] = []

    def updates_for(metadata: Json) -> list[Update]:
        before[:] = [metadata]
        return _updates(expiry(metadata, now_ms, settings))

    after = (await catalog.change(loaded.table_id, updates_for)).metadata
    left = {snapshot["snapshot-id"] for snapshot in after["snapshots"]}
    gone = [snapshot for snapshot in before[0]["snapshots"] if snapshot["snapshot-id"] not in left]
    files = await _unnamed(listings, before[0], after, gone)
    return Expired(len(gone), await removed(catalog, files, kept))


def _updates(chosen: Expiry) -> list[Update]:
    updates: list[Update] = [RemoveSnapshotRef(name) for name in chosen.refs]
    return [*updates, RemoveSnapshots(sorted(chosen.snapshots))] if chosen.snapshots else updates


async def _unnamed(listings: Listings, before: Json, after: Json, gone: list[Json]) -> list[str]:
    """What the snapshots that went name, and none that stayed does. Data first: while its manifest is there, whoever
    looks into the folder can see what it was."""
    listed = await _manifests(listings, gone)
    kept = await _manifests(listings, after["snapshots"])
    old = [manifest for path, manifest in listed.items() if path not in kept]
    places = partition_fields(before)
    left = await together([listings.manifest(one, places) for one in kept.values()], READS_AT_ONCE)
    went = await together([listings.manifest(one, places) for one in old], READS_AT_ONCE)
    named = {path for manifest in went for path in manifest.named}
    named -= {file.location for manifest in left for file in manifest.files}
    statistics = statistics_of(before) - statistics_of(after)
    lists = [snapshot["manifest-list"] for snapshot in gone if snapshot.get("manifest-list")]
    return [*sorted(named), *(manifest.manifest_path for manifest in old), *sorted(statistics), *lists]


async def _manifests(listings: Listings, snapshots: Iterable[Json]) -> dict[str, ManifestFile]:
    places = [snapshot["manifest-list"] for snapshot in snapshots if snapshot.get("manifest-list")]
    found = await together([listings.manifests(place) for place in places], READS_AT_ONCE)
    return {manifest.manifest_path: manifest for one in found for manifest in one}


def statistics_of(metadata: Json) -> set[str]:
    listed = [*metadata.get("statistics", ()), *metadata.get("partition-statistics", ())]
    return {one["statistics-path"] for one in listed if one.get("statistics-path")}


async def removed(catalog: Catalog, locations: Iterable[str], kept: Set[str] = frozenset()) -> int:
    """How many. What lies elsewhere is not ours to remove."""
    keys = []
    for location in locations:
        try:
            keys.append(catalog.locations.key_of(location))
        except Rejected:
            continue
    keys = [key for key in keys if key not in kept]
    for start in range(0, len(keys), DELETED_TOGETHER):
        some = keys[start : start + DELETED_TOGETHER]
        try:
            await catalog.objects.delete(some)
        except Missing:
            continue
        except LakestreamError as error:
            log.warning("catalog.files_left count=%d first=%s error=%s", len(keys) - start, some[0], error)
            return start
    return len(keys)
