"""The read path's last step: the bytes of claims, from memory where we wrote or read them before, else from storage.

Before: data/log/log.py.  After: storage/object_store.py, segments.py.  The unit of caching is what one claim names: it
lies together in its object, and whoever reads a part of it soon wants the rest. Claims that lie in one object are read
in one call, which joins ranges that are near one another; many who want the same claim wait for one read.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeAlias

from lakestream.batch import verify
from lakestream.data.cache.blocks import BlockCache
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, Misconfigured, Missing, OutOfRange
from lakestream.metadata.claims import Claim, Medium
from lakestream.model import Buffer, Span
from lakestream.storage.object_store import ObjectStore

READS_MAX: Final = 64
"""Calls to storage under way at once."""

BLOCK_OVERHEAD: Final = 512
"""Bytes of memory that a cached claim takes besides its records. Without them a cache of small batches is half as large
again as it says."""

Batches: TypeAlias = tuple[Buffer, ...]
"""The bytes of a claim's record batches, in its order."""


class Reader:
    def __init__(self, store: ObjectStore, segments: SegmentFiles | None, cache: BlockCache[str, Batches]) -> None:
        self._store = store
        self._segments = segments
        self.cache = cache
        self._reading: dict[str, asyncio.Task[dict[str, Batches]]] = {}  # by claim id
        self._slots = asyncio.Semaphore(READS_MAX)

    def keep(self, claim: Claim, batches: Batches) -> None:
        """What was just written is what tail readers want next."""
        self.cache.put(claim.claim_id, batches, sum(map(len, batches)))

    async def read(self, claims: Sequence[Claim]) -> list[Batches]:
        """The batches of each claim, in order. Missing: an object is not there (any more)."""
        found = {claim.claim_id: self.cache.get(claim.claim_id) for claim in claims}
        absent = [claim for claim in claims if found[claim.claim_id] is None]
        for task in self._reads_of(absent):
            found |= await asyncio.shield(task)
        return [_there(found[claim.claim_id]) for claim in claims]

    def kill(self) -> None:
        for task in set(self._reading.values()):
            task.cancel()

    def _reads_of(self, claims: Sequence[Claim]) -> list[asyncio.Task[dict[str, Batches]]]:
        """The reads that bring these claims: those under way, and a new one for each object with others."""
        by_object: defaultdict[tuple[Medium, str], list[Claim]] = defaultdict(list)
        tasks = []
        for claim in claims:
            under_way = self._reading.get(claim.claim_id)
            if under_way is None:
                by_object[claim.medium, claim.name].append(claim)
            elif under_way not in tasks:
                tasks.append(under_way)
        return tasks + [self._start(medium, name, wanted) for (medium, name), wanted in by_object.items()]

    def _start(self, medium: Medium, name: str, claims: list[Claim]) -> asyncio.Task[dict[str, Batches]]:
        task = asyncio.get_running_loop().create_task(self._fetch(medium, name, claims), name="wal.read")
        for claim in claims:
            self._reading[claim.claim_id] = task
        task.add_done_callback(lambda done: self._finished(done, claims))
        return task

    def _finished(self, task: asyncio.Task[dict[str, Batches]], claims: list[Claim]) -> None:
        for claim in claims:
            del self._reading[claim.claim_id]
        if task.cancelled() or task.exception() is not None:
            return  # told to those who wait
        for claim in claims:
            self.cache.put(claim.claim_id, task.result()[claim.claim_id], extent_of(claim).size)

    async def _fetch(self, medium: Medium, name: str, claims: list[Claim]) -> dict[str, Batches]:
        async with self._slots:
            try:
                extents = await self._ranges(medium, name, [extent_of(claim) for claim in claims])
            except Missing as error:
                raise Missing(
                    f"{name}, which holds the records from offset {claims[0].offset_start} on, is missing ({error})"
                ) from error
            except OutOfRange as error:
                raise Corrupt(f"{name} is shorter than its claims say ({error}); restore it from a backup") from error
        return {claim.claim_id: _cut(claim, extent) for claim, extent in zip(claims, extents, strict=True)}

    async def _ranges(self, medium: Medium, name: str, spans: list[Span]) -> list[Buffer]:
        if medium is Medium.OBJECT:
            return await self._store.get_ranges(name, spans)
        if self._segments is None:
            raise Misconfigured(f"segment {name} is wanted, but this broker has no WAL folder: set --wal-dir")
        return await self._segments.read(name, spans)


def extent_of(claim: Claim) -> Span:
    return Span(claim.batches[0].byte_start, claim.batches[-1].byte_end)


def _cut(claim: Claim, extent: Buffer) -> Batches:
    """The batches of a claim out of its bytes, each held against its checksum."""
    view = memoryview(extent)
    origin = claim.batches[0].byte_start
    batches = tuple(view[batch.byte_start - origin : batch.byte_end - origin] for batch in claim.batches)
    for batch, info in zip(batches, claim.batches, strict=True):
        found = verify(batch, claim.name)
        if (found.record_count, found.base_sequence) != (info.record_count, info.sequence_first):
            raise Corrupt(
                f"{claim.name}: the batch at byte {info.byte_start} is another than the log has at that place;"
                " restore it from a backup"
            )
    return batches


def _there(batches: Batches | None) -> Batches:
    assert batches is not None
    return batches
