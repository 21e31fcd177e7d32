"""Deletes WAL objects and segments that no claim references. Safe to run in any process, any number of times, also
concurrently.

Before: trim.py, which returns the dropped claims.  After: storage.

Claims that a trim of this process dropped are noted (`note_dropped`), so most objects are deleted soon after the last
partition in them was moved; a slow partition keeps only its own objects. For objects without such notes (a process
crashed in between, or an extent was never claimed) the chains are read, once a new claim on them would be stale.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple, TypeAlias

from lakestream.data.log import rules
from lakestream.data.wal.footers import may_be_sealed, object_footer, segment_footers
from lakestream.data.wal.format import FrameFooter
from lakestream.data.wal.names import OBJECT_FOLDER, parse_object_key, parse_segment_name
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, LakestreamError, Missing
from lakestream.metadata.claims import Claim, Claims, Medium
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import Topics
from lakestream.model import PartitionId
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

SCAN_CLAIMS: Final = 1_000
SKIPPED_MAX: Final = 10
"""Objects skipped in one run. Each may have cost a long wait."""

Reference: TypeAlias = tuple[PartitionId, int]
"""A partition, and the offset that its table must reach before the object may be deleted."""


class WalFile(NamedTuple):
    """An object or segment as storage lists it."""

    medium: Medium
    name: str
    size: int
    age_ms: int


class WalFileContent(NamedTuple):
    """Extents of an object or segment, and their partitions."""

    extents: dict[str, PartitionId]
    sealed: bool
    """Whether nothing will be added to it."""


class WalGarbageCollector:
    def __init__(
        self, metadata: MetadataStore, store: ObjectStore, segments: SegmentFiles | None, *, read_grace_ms: int
    ) -> None:
        self._metadata = metadata
        self._claims = Claims(metadata)
        self._topics = Topics(metadata)
        self._store = store
        self._segments = segments
        self._read_grace_ms = read_grace_ms
        self._dropped: defaultdict[str, set[str]] = defaultdict(set)  # extents by object
        self._sizes: dict[str, int] = {}  # extents in an object that cannot grow; all must be dropped before it goes
        self._references: dict[str, Reference] = {}  # of objects that wait for a table to reach an offset
        self._unneeded_since: dict[str, int] = {}
        self._unreadable: set[str] = set()
        self._skipped = 0  # in this run, although they may be sound
        self._topic_ids: set[str] = set()

    def note_dropped(self, claims: Iterable[Claim]) -> None:
        """Notes claims that were dropped from their chains."""
        for claim in claims:
            self._dropped[claim.name].add(claim.extent_id)

    @property
    def has_pending(self) -> bool:
        """Whether objects may be deleted soon: after the grace period of reads, or when they can be read again."""
        return bool(self._unneeded_since) or self._skipped > 0

    async def collect(self) -> list[str]:
        """Deletes objects and segments that no claim references; returns their names. One that became unreferenced just
        now is deleted after the grace period for reads in progress."""
        now_ms = await self._metadata.now_ms()  # never this machine's clock: it may have been paused
        self._skipped = 0
        chains = _Chains(self._claims)
        noted = set(self._dropped)  # later notes may be of objects that the listing has passed already
        seen: set[str] = set()
        unneeded: list[WalFile] = []
        async for stored in self._candidates(now_ms):
            seen.add(stored.name)
            if not (await self._is_certainly_needed(stored) or await self._is_needed(stored, chains)):
                unneeded.append(stored)
        self._forget(noted - seen, seen, {stored.name for stored in unneeded})
        due = [s for s in unneeded if self._unneeded_since.setdefault(s.name, now_ms) + self._read_grace_ms <= now_ms]
        await self._remove(due)
        return [stored.name for stored in due]

    async def _candidates(self, now_ms: int) -> AsyncIterator[WalFile]:
        """Yields what may be deleted: an extent was dropped, it is old, or a topic was deleted that may be in it."""
        topic_deleted = await self._topic_was_deleted()
        if topic_deleted:
            self._sizes.clear()  # extents of a deleted topic are never dropped
        async for stored in self._walk(now_ms):
            in_grace = stored.name in self._unneeded_since
            if topic_deleted or in_grace or stored.name in self._dropped or _is_old(stored):
                yield stored

    async def _topic_was_deleted(self) -> bool:
        before = self._topic_ids
        self._topic_ids = {topic.topic_id for topic in (await self._topics.all()).values()}
        return not before <= self._topic_ids

    async def _walk(self, now_ms: int) -> AsyncIterator[WalFile]:
        """Lists all objects and segments. Age counts from the later of two times: the writer's in the name, and the
        store's."""
        async for page in self._store.walk(OBJECT_FOLDER):
            for info in page:
                if named := parse_object_key(info.key):
                    created_ms = max(named.created_ms, info.modified_ms)
                    yield WalFile(Medium.OBJECT, info.key, info.size, now_ms - created_ms)
        for segment in await self._segments.walk() if self._segments is not None else []:
            if named := parse_segment_name(segment.name):
                yield WalFile(Medium.SEGMENT, segment.name, segment.size, now_ms - named.created_ms)

    async def _is_certainly_needed(self, stored: WalFile) -> bool:
        """Returns True if that is certain without reading the footers, which may be thousands."""
        if _is_old(stored):
            return False
        if stored.name in self._sizes:
            return len(self._dropped.get(stored.name, ())) < self._sizes[stored.name]
        if stored.medium is Medium.OBJECT or self._segments is None:
            return False
        try:
            return not await may_be_sealed(self._segments, stored.name)
        except Missing:
            return True  # another process deleted it
        except LakestreamError as error:
            self._skip(stored, error)
            return True

    async def _is_needed(self, stored: WalFile, chains: "_Chains") -> bool:
        if await self._has_cached_reference(stored):
            return True
        content = await self._content(stored)
        if content is None:
            return True
        if content.sealed and all(log_id.topic_id in self._topic_ids for log_id in content.extents.values()):
            self._sizes[stored.name] = len(content.extents)
        dropped = self._dropped.get(stored.name, set())
        left = [(extent, log_id) for extent, log_id in content.extents.items() if extent not in dropped]
        left = [(extent, log_id) for extent, log_id in left if not await self._is_deleted(log_id, chains)]
        references = []
        if _is_old(stored):
            references = [found for extent, log_id in left if (found := await chains.reference(log_id, extent))]
        if references:
            self._references[stored.name] = references[0]
        return not rules.may_delete(
            referenced=len(references),
            unclaimed=len(left) - len(references),
            sealed=content.sealed,
            age_ms=stored.age_ms,
        )

    async def _is_deleted(self, partition: PartitionId, chains: "_Chains") -> bool:
        return partition.topic_id not in self._topic_ids and await chains.is_deleted(partition)

    async def _has_cached_reference(self, stored: WalFile) -> bool:
        """Checks a reference that was read earlier. It lasts until the table reaches its offset, or the topic is
        deleted."""
        if stored.name not in self._references:
            return False
        partition, offset_end = self._references[stored.name]
        if partition.topic_id in self._topic_ids and await self._claims.table_end(partition) < offset_end:
            return True
        del self._references[stored.name]
        return False

    async def _content(self, stored: WalFile) -> WalFileContent | None:
        """Reads the footers. Returns None if they cannot be read: the object is then left alone."""
        try:
            if stored.medium is Medium.OBJECT:
                return WalFileContent(
                    _extents([await object_footer(self._store, stored.name, stored.size)]), sealed=True
                )
            assert self._segments is not None
            segment = await segment_footers(self._segments, stored.name)
            return WalFileContent(_extents(segment.footers), segment.sealed)
        except Missing:
            return None  # another process deleted it
        except LakestreamError as error:
            self._skip(stored, error)
            return None

    def _skip(self, stored: WalFile, error: LakestreamError) -> None:
        """Skips an object that is damaged or cannot be read, so that the others are deleted. If many cannot be read,
        the store is at fault, and the error is raised."""
        self._skipped += not isinstance(error, Corrupt)
        if self._skipped > SKIPPED_MAX:
            raise error
        if stored.name not in self._unreadable:
            log.error("gc.object_skipped object=%s error=%s", stored.name, error)
        self._unreadable.add(stored.name)

    async def _remove(self, due: list[WalFile]) -> None:
        objects = [stored.name for stored in due if stored.medium is Medium.OBJECT]
        if objects:
            await self._store.delete(objects)
        segments = [stored.name for stored in due if stored.medium is Medium.SEGMENT]
        if segments and self._segments is not None:
            await self._segments.delete(segments)
        for stored in due:
            self._dropped.pop(stored.name, None)
            self._unneeded_since.pop(stored.name, None)
            log.info("gc.object_deleted object=%s bytes=%d", stored.name, stored.size)

    def _forget(self, deleted: set[str], seen: set[str], unneeded: set[str]) -> None:
        """Drops notes of objects that no longer exist."""
        for name in deleted:
            self._dropped.pop(name, None)  # concurrent runs are fine
        for name in [name for name in self._references if name not in seen]:
            del self._references[name]
        for name in self._sizes.keys() - seen:
            del self._sizes[name]
        self._unreadable &= seen
        for name in [name for name in self._unneeded_since if name not in unneeded]:
            del self._unneeded_since[name]


class _Chains:
    """The chains as one run reads them: each at most once, with confirmed reads."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._floors: dict[PartitionId, int | None] = {}
        self._live: dict[PartitionId, dict[str, int]] = {}

    async def is_deleted(self, partition: PartitionId) -> bool:
        if partition not in self._floors:
            self._floors[partition] = await self._claims.floor(partition)
        return self._floors[partition] is None

    async def reference(self, partition: PartitionId, extent_id: str) -> Reference | None:
        """Returns the reference of a live claim to an extent, or None if there is none."""
        if await self.is_deleted(partition):
            return None
        if partition not in self._live:
            self._live[partition] = await self._scan(partition, self._floors[partition] or 0)
        offset_end = self._live[partition].get(extent_id)
        return None if offset_end is None else (partition, offset_end)

    async def _scan(self, partition: PartitionId, offset: int) -> dict[str, int]:
        """Returns the end offset of each live claim, by extent."""
        live: dict[str, int] = {}
        while True:
            chain = await self._claims.scan(partition, offset, limit=SCAN_CLAIMS, confirmed=True)
            live |= {stored.claim.extent_id: stored.claim.offset_end for stored in chain.claims}
            if len(chain.claims) < SCAN_CLAIMS:
                return live
            offset = chain.claims[-1].claim.offset_end


def _is_old(stored: WalFile) -> bool:
    return stored.age_ms > rules.ORPHAN_AFTER_MS


def _extents(footers: list[FrameFooter]) -> dict[str, PartitionId]:
    return {part.claim_id: PartitionId(part.topic_id, part.partition) for f in footers for part in f.ranges}
