"""Removes WAL objects and segments that no claim needs: the last step of the pipeline, safe to run anywhere, any number
of times, by several at once.

Before: log.trim, which tells what it dropped.  After: storage.

What was claimed and dropped is known from trims (`note_dropped`), so most objects go soon after the last partition in
them was moved; one slow partition pins only its own objects. What nobody saw being dropped (a crash came between, or it
was never claimed) is looked up in the chains, once it is so old that no claim on it can count any more.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple, TypeAlias

from lakestream.data.log import rules
from lakestream.data.wal.footers import may_be_sealed, object_footer, segment_footers
from lakestream.data.wal.format import Footer
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
PASSED_OVER_MAX: Final = 10
"""In one sweep. Each may have cost a long wait."""

Pin: TypeAlias = tuple[PartitionId, int]
"""A log, and the offset that its table must reach before the object may go."""


class Stored(NamedTuple):
    """An object or segment as storage lists it."""

    medium: Medium
    name: str
    size: int
    age_ms: int


class Content(NamedTuple):
    """Which extents of which logs lie in it."""

    extents: dict[str, PartitionId]
    sealed: bool
    """Nothing will be added to it."""


class Sweeper:
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
        self._pinned: dict[str, Pin] = {}  # objects that wait for a table to reach an offset
        self._unneeded_since: dict[str, int] = {}
        self._unreadable: set[str] = set()
        self._passed_over = 0  # in this sweep, although they may be sound
        self._topic_ids: set[str] = set()

    def note_dropped(self, claims: Iterable[Claim]) -> None:
        """These claims have left their chains."""
        for claim in claims:
            self._dropped[claim.name].add(claim.extent_id)

    @property
    def waits(self) -> bool:
        """Something may go soon: when its readers have had their time, or when it can be read again."""
        return bool(self._unneeded_since) or self._passed_over > 0

    async def sweep(self) -> list[str]:
        """Remove what nobody needs; returns the names. What became unneeded just now goes when readers that are under
        way have had their time."""
        now_ms = await self._metadata.now_ms()  # never this machine's clock: it may have been asleep
        self._passed_over = 0
        chains = _Chains(self._claims)
        noted = set(self._dropped)  # what is noted from here on may have been passed over, and is not forgotten
        seen: set[str] = set()
        unneeded: list[Stored] = []
        async for stored in self._candidates(now_ms):
            seen.add(stored.name)
            if not (await self._is_needed_surely(stored) or await self._is_needed(stored, chains)):
                unneeded.append(stored)
        self._forget(noted - seen, seen, {stored.name for stored in unneeded})
        due = [s for s in unneeded if self._unneeded_since.setdefault(s.name, now_ms) + self._read_grace_ms <= now_ms]
        await self._remove(due)
        return [stored.name for stored in due]

    async def _candidates(self, now_ms: int) -> AsyncIterator[Stored]:
        """What may go: something of it was dropped, or it is old, or a topic was deleted whose records may be in it."""
        topic_deleted = await self._topic_was_deleted()
        if topic_deleted:
            self._sizes.clear()  # extents of a topic that is gone are never dropped
        async for stored in self._walk(now_ms):
            waits = stored.name in self._unneeded_since  # for its readers
            if topic_deleted or waits or stored.name in self._dropped or _is_old(stored):
                yield stored

    async def _topic_was_deleted(self) -> bool:
        before = self._topic_ids
        self._topic_ids = {topic.topic_id for topic in (await self._topics.all()).values()}
        return not before <= self._topic_ids

    async def _walk(self, now_ms: int) -> AsyncIterator[Stored]:
        """Age counts from the later of the two times there are: the writer's in the name, and the store's."""
        async for page in self._store.walk(OBJECT_FOLDER):
            for info in page:
                if named := parse_object_key(info.key):
                    born_ms = max(named.created_ms, info.modified_ms)
                    yield Stored(Medium.OBJECT, info.key, info.size, now_ms - born_ms)
        for segment in await self._segments.walk() if self._segments is not None else []:
            if named := parse_segment_name(segment.name):
                yield Stored(Medium.SEGMENT, segment.name, segment.size, now_ms - named.created_ms)

    async def _is_needed_surely(self, stored: Stored) -> bool:
        """As can be told without reading what is in it, which may be thousands of frames."""
        if _is_old(stored):
            return False
        if stored.name in self._sizes:
            return len(self._dropped.get(stored.name, ())) < self._sizes[stored.name]
        if stored.medium is Medium.OBJECT or self._segments is None:
            return False
        try:
            return not await may_be_sealed(self._segments, stored.name)
        except Missing:
            return True  # another sweeper was here
        except LakestreamError as error:
            self._pass_over(stored, error)
            return True

    async def _is_needed(self, stored: Stored, chains: "_Chains") -> bool:
        if await self._is_pinned_still(stored):
            return True
        content = await self._content(stored)
        if content is None:
            return True
        if content.sealed and all(log_id.topic_id in self._topic_ids for log_id in content.extents.values()):
            self._sizes[stored.name] = len(content.extents)
        dropped = self._dropped.get(stored.name, set())
        left = [(extent, log_id) for extent, log_id in content.extents.items() if extent not in dropped]
        left = [(extent, log_id) for extent, log_id in left if not await self._is_gone(log_id, chains)]
        pins = [pin for extent, log_id in left if (pin := await chains.pin(log_id, extent))] if _is_old(stored) else []
        if pins:
            self._pinned[stored.name] = pins[0]
        return not rules.may_sweep(
            pinned=len(pins), unclaimed=len(left) - len(pins), sealed=content.sealed, age_ms=stored.age_ms
        )

    async def _is_gone(self, partition: PartitionId, chains: "_Chains") -> bool:
        return partition.topic_id not in self._topic_ids and await chains.is_gone(partition)

    async def _is_pinned_still(self, stored: Stored) -> bool:
        """A claim was seen that needs it: nothing changes before the table has got that far, or the topic is gone."""
        if stored.name not in self._pinned:
            return False
        partition, offset_end = self._pinned[stored.name]
        if partition.topic_id in self._topic_ids and await self._claims.table_end(partition) < offset_end:
            return True
        del self._pinned[stored.name]
        return False

    async def _content(self, stored: Stored) -> Content | None:
        """None: it cannot be read, so it is not touched."""
        try:
            if stored.medium is Medium.OBJECT:
                return Content(_extents([await object_footer(self._store, stored.name, stored.size)]), sealed=True)
            assert self._segments is not None
            segment = await segment_footers(self._segments, stored.name)
            return Content(_extents(segment.footers), segment.sealed)
        except Missing:
            return None  # another sweeper was here
        except LakestreamError as error:
            self._pass_over(stored, error)
            return None

    def _pass_over(self, stored: Stored, error: LakestreamError) -> None:
        """One that is damaged, or cannot be read, must not keep all others. Where many cannot, it is the store."""
        self._passed_over += not isinstance(error, Corrupt)
        if self._passed_over > PASSED_OVER_MAX:
            raise error
        if stored.name not in self._unreadable:
            log.error("wal.sweep_skips object=%s error=%s", stored.name, error)
        self._unreadable.add(stored.name)

    async def _remove(self, due: list[Stored]) -> None:
        objects = [stored.name for stored in due if stored.medium is Medium.OBJECT]
        if objects:
            await self._store.delete(objects)
        segments = [stored.name for stored in due if stored.medium is Medium.SEGMENT]
        if segments and self._segments is not None:
            await self._segments.delete(segments)
        for stored in due:
            self._dropped.pop(stored.name, None)
            self._unneeded_since.pop(stored.name, None)
            log.info("wal.swept object=%s bytes=%d", stored.name, stored.size)

    def _forget(self, gone: set[str], seen: set[str], unneeded: set[str]) -> None:
        """What is no longer there need not be remembered."""
        for name in gone:
            self._dropped.pop(name, None)  # two sweeps at once are fine
        for name in [name for name in self._pinned if name not in seen]:
            del self._pinned[name]
        for name in self._sizes.keys() - seen:
            del self._sizes[name]
        self._unreadable &= seen
        for name in [name for name in self._unneeded_since if name not in unneeded]:
            del self._unneeded_since[name]


class _Chains:
    """The chains as one sweep sees them, each read at most once and on a node that leads for certain."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._floors: dict[PartitionId, int | None] = {}
        self._live: dict[PartitionId, dict[str, int]] = {}

    async def is_gone(self, partition: PartitionId) -> bool:
        if partition not in self._floors:
            self._floors[partition] = await self._claims.floor(partition)
        return self._floors[partition] is None

    async def pin(self, partition: PartitionId, extent_id: str) -> Pin | None:
        """The claim that still needs an extent, if there is one."""
        if await self.is_gone(partition):
            return None
        if partition not in self._live:
            self._live[partition] = await self._scan(partition, self._floors[partition] or 0)
        offset_end = self._live[partition].get(extent_id)
        return None if offset_end is None else (partition, offset_end)

    async def _scan(self, partition: PartitionId, offset: int) -> dict[str, int]:
        """End offset of each live claim, by its extent."""
        live: dict[str, int] = {}
        while True:
            chain = await self._claims.scan(partition, offset, limit=SCAN_CLAIMS, confirmed=True)
            live |= {dated.claim.extent_id: dated.claim.offset_end for dated in chain.claims}
            if len(chain.claims) < SCAN_CLAIMS:
                return live
            offset = chain.claims[-1].claim.offset_end


def _is_old(stored: Stored) -> bool:
    return stored.age_ms > rules.ORPHAN_AFTER_MS


def _extents(footers: list[Footer]) -> dict[str, PartitionId]:
    return {part.claim_id: PartitionId(part.topic_id, part.partition) for f in footers for part in f.ranges}
