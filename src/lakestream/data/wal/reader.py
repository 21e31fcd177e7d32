"""Read path, last step: reads the bytes of claims, from the cache or from storage.

Before: data/log/log.py.  After: storage/object_store.py, segments.py. The cache holds whole extents: an extent is
stored in one piece, and a consumer that reads a part of it soon reads the rest. Claims of one object are read in one
call, which joins ranges that are close to each other; concurrent reads of one claim share one call.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from lakestream.aio.cache import LruCache
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, LakestreamError, Misconfigured, Missing, OutOfRange, Unavailable
from lakestream.metadata.claims import Claim, Medium
from lakestream.model import Buffer, KiB, Span
from lakestream.records.batch import AnyBatch, batch_in_file, verify
from lakestream.records.file_region import SharedFile
from lakestream.storage.object_store import ObjectStore

READS_MAX: Final = 64
"""Concurrent calls to storage."""

READ_TIMEOUT_S: Final = 30

BLOCK_OVERHEAD: Final = 512
"""Bytes of memory that a cached claim takes besides its records. Without them a cache of small batches would take half
as much again as its bound."""

FILE_REGION_BYTES_MIN: Final = 32 * KiB
"""From this size on, a batch of a segment stays in its file: sending it from there saves two copies of it, and costs
two system calls."""

Batches: TypeAlias = tuple[AnyBatch, ...]
"""A claim's record batches, in order: bytes, or regions of a file."""

ReadOutcome: TypeAlias = Batches | LakestreamError
_Read: TypeAlias = "asyncio.Task[dict[str, ReadOutcome]]"


class Reader:
    def __init__(self, store: ObjectStore, segments: SegmentFiles | None, cache: LruCache[str, Batches]) -> None:
        self._store = store
        self._segments = segments
        self.cache = cache
        self._reading: dict[str, _Read] = {}  # by claim id
        self._joining: dict[tuple[Medium, str], tuple[_Read, list[Claim]]] = {}  # not started yet
        self._slots = asyncio.Semaphore(READS_MAX)

    def keep(self, claim: Claim, batches: tuple[Buffer, ...]) -> None:
        """Caches batches that were just written, for consumers at the end. Regions of a file count as if they were in
        memory: so they leave the cache before the system drops their pages, and sending them never waits for the
        disk."""
        file = self._segments.open_file(claim.name) if self._segments and claim.medium is Medium.SEGMENT else None
        cached: Batches = batches
        if file is not None:
            cached = _with_file_regions(file, claim, batches)
        self.cache.put(claim.claim_id, cached, extent_of(claim).size)

    async def read(self, claims: Sequence[Claim]) -> list[Batches]:
        """Returns the batches of each claim, in order. Raises Missing if an object or segment does not exist."""
        outcomes: dict[str, ReadOutcome | None] = {claim.claim_id: self.cache.get(claim.claim_id) for claim in claims}
        absent = [claim for claim in claims if outcomes[claim.claim_id] is None]
        for task in self._reads_of(absent):
            outcomes |= await asyncio.shield(task)
        return [_batches_or_raise(outcomes[claim.claim_id]) for claim in claims]

    def kill(self) -> None:
        for task in set(self._reading.values()):
            task.cancel()

    def _reads_of(self, claims: Sequence[Claim]) -> list[_Read]:
        """Returns the reads of these claims: running ones, and new ones for the rest."""
        return list(dict.fromkeys(self._reading.get(claim.claim_id) or self._start(claim) for claim in claims))

    def _start(self, claim: Claim) -> _Read:
        """Starts a read, or joins one. Claims requested in the same turn of the loop share one call per object."""
        key = (claim.medium, claim.name)
        joining = self._joining.get(key)
        if joining is None:
            claims = [claim]
            task = asyncio.get_running_loop().create_task(self._fetch(key, claims), name="wal.read")
            task.add_done_callback(lambda done: self._finished(done, claims))
            joining = self._joining[key] = (task, claims)
        else:
            joining[1].append(claim)
        self._reading[claim.claim_id] = joining[0]
        return joining[0]

    def _finished(self, task: _Read, claims: list[Claim]) -> None:
        for claim in claims:
            del self._reading[claim.claim_id]
        if task.cancelled() or task.exception() is not None:
            return  # raised in the waiting calls
        for claim in claims:
            outcome = task.result()[claim.claim_id]
            if not isinstance(outcome, LakestreamError):
                self.cache.put(claim.claim_id, outcome, extent_of(claim).size)

    async def _fetch(self, key: tuple[Medium, str], claims: list[Claim]) -> dict[str, ReadOutcome]:
        await asyncio.sleep(0)
        del self._joining[key]
        async with self._slots:
            return await self._outcomes(*key, claims)

    async def _outcomes(self, medium: Medium, name: str, claims: list[Claim]) -> dict[str, ReadOutcome]:
        """Reads claims of one object. An error of one claim's bytes is the outcome of that claim only."""
        try:
            batches = await self._read_batches(medium, name, claims)
        except Missing as error:
            return {claim.claim_id: _missing(claim, error) for claim in claims}
        except OutOfRange as error:
            if len(claims) == 1:
                short = Corrupt(f"{name} is shorter than its claims require ({error}); restore it from a backup")
                return {claims[0].claim_id: short}
            outcomes: dict[str, ReadOutcome] = {}
            for claim in claims:
                outcomes |= await self._outcomes(medium, name, [claim])
            return outcomes
        return {claim.claim_id: outcome for claim, outcome in zip(claims, batches, strict=True)}

    async def _read_batches(self, medium: Medium, name: str, claims: list[Claim]) -> list[ReadOutcome]:
        spans = [extent_of(claim) for claim in claims]
        if medium is Medium.OBJECT:
            extents = await self._store.get_ranges(name, spans)
            return [
                _verified_or_error(claim, _unshared(memoryview(extent)))
                for claim, extent in zip(claims, extents, strict=True)
            ]
        if self._segments is None:
            raise Misconfigured(f"segment {name} cannot be read: this broker has no WAL folder: set --wal-dir")
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._segments.read_each(
                    name, spans, lambda index, view, file: _from_file(claims[index], view, file)
                )
        except TimeoutError:
            raise Unavailable(f"{name}: the disk did not respond within {READ_TIMEOUT_S} s") from None


def extent_of(claim: Claim) -> Span:
    return Span(claim.batches[0].byte_start, claim.batches[-1].byte_end)


def _missing(claim: Claim, error: Missing) -> Missing:
    return Missing(f"{claim.name}, which holds the records from offset {claim.offset_start} on, is missing ({error})")


def _verified_or_error(claim: Claim, view: memoryview) -> ReadOutcome:
    try:
        return _verified(claim, view)
    except Corrupt as error:
        return error


def _from_file(claim: Claim, view: memoryview, file: SharedFile | None) -> ReadOutcome:
    """Verifies an extent on a reader's thread, whose buffer is reused; large batches stay in the file."""
    try:
        batches = _verified(claim, view)
    except Corrupt as error:
        return error
    if file is not None and len(view) >= FILE_REGION_BYTES_MIN * len(batches):
        return _with_file_regions(file, claim, batches)
    return _split(claim, memoryview(bytes(view)))


def _with_file_regions(file: SharedFile, claim: Claim, batches: tuple[Buffer, ...]) -> Batches:
    return tuple(
        batch_in_file(batch, file, info.byte_start) if len(batch) >= FILE_REGION_BYTES_MIN else bytes(batch)
        for batch, info in zip(batches, claim.batches, strict=True)
    )


def _split(claim: Claim, view: memoryview) -> tuple[memoryview, ...]:
    origin = claim.batches[0].byte_start
    return tuple(view[batch.byte_start - origin : batch.byte_end - origin] for batch in claim.batches)


def _verified(claim: Claim, view: memoryview) -> tuple[memoryview, ...]:
    """Splits an extent into its batches and verifies each against its checksum and the claim."""
    batches = _split(claim, view)
    for batch, info in zip(batches, claim.batches, strict=True):
        header = verify(batch, claim.name)
        if (header.record_count, header.base_sequence) != (info.record_count, info.sequence_first):
            raise Corrupt(
                f"{claim.name}: the batch at byte {info.byte_start} is not the one that the claim at offset"
                f" {claim.offset_start} has there; restore it from a backup"
            )
    return batches


def _unshared(view: memoryview) -> memoryview:
    """Copies a small part of a buffer, so that it does not keep all of it alive. Ranges read together share one."""
    return memoryview(bytes(view)) if 2 * len(view) < memoryview(view.obj).nbytes else view


def _batches_or_raise(outcome: ReadOutcome | None) -> Batches:
    assert outcome is not None
    if isinstance(outcome, LakestreamError):
        raise outcome
    return outcome
