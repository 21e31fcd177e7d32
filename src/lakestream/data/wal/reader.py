"""The read path's last step: the bytes of claims, from memory where we wrote or read them before, else from storage.

Before: data/log/log.py.  After: storage/object_store.py, segments.py.  The unit of caching is what one claim names: it
lies together in its object, and whoever reads a part of it soon wants the rest. Claims that lie in one object are read
in one call, which joins ranges that are near one another; many who want the same claim wait for one read.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from lakestream.batch import AnyBatch, filed, verify
from lakestream.data.cache.blocks import BlockCache
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, LakestreamError, Misconfigured, Missing, OutOfRange, Unavailable
from lakestream.filed import OpenFile
from lakestream.metadata.claims import Claim, Medium
from lakestream.model import Buffer, KiB, Span
from lakestream.storage.object_store import ObjectStore

READS_MAX: Final = 64
"""Calls to storage under way at once."""

READ_TIMEOUT_S: Final = 30

BLOCK_OVERHEAD: Final = 512
"""Bytes of memory that a cached claim takes besides its records. Without them a cache of small batches is half as large
again as it says."""

FILED_BYTES_MIN: Final = 32 * KiB
"""A batch of a segment that is as large as this stays in its file: sending it from there saves two copies of it, which
costs two system calls."""

Batches: TypeAlias = tuple[AnyBatch, ...]
"""A claim's record batches, in its order: their bytes, or where they lie."""

Outcome: TypeAlias = Batches | LakestreamError
_Read: TypeAlias = "asyncio.Task[dict[str, Outcome]]"


class Reader:
    def __init__(self, store: ObjectStore, segments: SegmentFiles | None, cache: BlockCache[str, Batches]) -> None:
        self._store = store
        self._segments = segments
        self.cache = cache
        self._reading: dict[str, _Read] = {}  # by claim id
        self._joining: dict[tuple[Medium, str], tuple[_Read, list[Claim]]] = {}  # not begun yet
        self._slots = asyncio.Semaphore(READS_MAX)

    def keep(self, claim: Claim, batches: tuple[Buffer, ...]) -> None:
        """What was just written is what tail readers want next. What is in a file counts as much as if it were in
        memory: so it leaves here before the system forgets it, and nobody waits for the disk unawares."""
        file = self._segments.opened(claim.name) if self._segments and claim.medium is Medium.SEGMENT else None
        kept: Batches = batches
        if file is not None:
            kept = _left_in(file, claim, batches)
        self.cache.put(claim.claim_id, kept, extent_of(claim).size)

    async def read(self, claims: Sequence[Claim]) -> list[Batches]:
        """The batches of each claim, in order. Missing: an object is not there (any more)."""
        found: dict[str, Outcome | None] = {claim.claim_id: self.cache.get(claim.claim_id) for claim in claims}
        absent = [claim for claim in claims if found[claim.claim_id] is None]
        for task in self._reads_of(absent):
            found |= await asyncio.shield(task)
        return [_good(found[claim.claim_id]) for claim in claims]

    def kill(self) -> None:
        for task in set(self._reading.values()):
            task.cancel()

    def _reads_of(self, claims: Sequence[Claim]) -> list[_Read]:
        """The reads that bring these claims: those under way, and new ones for the others."""
        return list(dict.fromkeys(self._reading.get(claim.claim_id) or self._started(claim) for claim in claims))

    def _started(self, claim: Claim) -> _Read:
        """Claims that are wanted in the same turn of the loop, by whomever, are read with one call per object."""
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
            return  # told to those who wait
        for claim in claims:
            outcome = task.result()[claim.claim_id]
            if not isinstance(outcome, LakestreamError):
                self.cache.put(claim.claim_id, outcome, extent_of(claim).size)

    async def _fetch(self, key: tuple[Medium, str], claims: list[Claim]) -> dict[str, Outcome]:
        await asyncio.sleep(0)
        del self._joining[key]
        async with self._slots:
            return await self._outcomes(*key, claims)

    async def _outcomes(self, medium: Medium, name: str, claims: list[Claim]) -> dict[str, Outcome]:
        """What is wrong with one claim's bytes is told to those who want that one."""
        try:
            cut = await self._cut_from(medium, name, claims)
        except Missing as error:
            return {claim.claim_id: _missing(claim, error) for claim in claims}
        except OutOfRange as error:
            if len(claims) == 1:
                short = Corrupt(f"{name} is shorter than its claims say ({error}); restore it from a backup")
                return {claims[0].claim_id: short}
            alone = [await self._outcomes(medium, name, [claim]) for claim in claims]
            return {claim_id: outcome for one in alone for claim_id, outcome in one.items()}
        return {claim.claim_id: outcome for claim, outcome in zip(claims, cut, strict=True)}

    async def _cut_from(self, medium: Medium, name: str, claims: list[Claim]) -> list[Outcome]:
        spans = [extent_of(claim) for claim in claims]
        if medium is Medium.OBJECT:
            extents = await self._store.get_ranges(name, spans)
            return [_cut_out(claim, _apart(memoryview(extent))) for claim, extent in zip(claims, extents, strict=True)]
        if self._segments is None:
            raise Misconfigured(f"segment {name} is wanted, but this broker has no WAL folder: set --wal-dir")
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._segments.look(
                    name, spans, lambda index, view, file: _cut_out_of_file(claims[index], view, file)
                )
        except TimeoutError:
            raise Unavailable(f"{name}: the disk did not answer within {READ_TIMEOUT_S} s") from None


def extent_of(claim: Claim) -> Span:
    return Span(claim.batches[0].byte_start, claim.batches[-1].byte_end)


def _missing(claim: Claim, error: Missing) -> Missing:
    return Missing(f"{claim.name}, which holds the records from offset {claim.offset_start} on, is missing ({error})")


def _cut_out(claim: Claim, view: memoryview) -> Outcome:
    try:
        return _cut(claim, view)
    except Corrupt as error:
        return error


def _cut_out_of_file(claim: Claim, view: memoryview, file: OpenFile | None) -> Outcome:
    """On a reader's thread, where the bytes are only lent: they are checked, and large batches are left in the file."""
    try:
        batches = _cut(claim, view)
    except Corrupt as error:
        return error
    if file is not None and len(view) >= FILED_BYTES_MIN * len(batches):
        return _left_in(file, claim, batches)
    return _split(claim, memoryview(bytes(view)))


def _left_in(file: OpenFile, claim: Claim, batches: tuple[Buffer, ...]) -> Batches:
    return tuple(
        filed(batch, file, info.byte_start) if len(batch) >= FILED_BYTES_MIN else bytes(batch)
        for batch, info in zip(batches, claim.batches, strict=True)
    )


def _split(claim: Claim, view: memoryview) -> tuple[memoryview, ...]:
    origin = claim.batches[0].byte_start
    return tuple(view[batch.byte_start - origin : batch.byte_end - origin] for batch in claim.batches)


def _cut(claim: Claim, view: memoryview) -> tuple[memoryview, ...]:
    """The batches of a claim out of its bytes, each held against its checksum."""
    batches = _split(claim, view)
    for batch, info in zip(batches, claim.batches, strict=True):
        found = verify(batch, claim.name)
        if (found.record_count, found.base_sequence) != (info.record_count, info.sequence_first):
            raise Corrupt(
                f"{claim.name}: the batch at byte {info.byte_start} is another than the log has at that place;"
                " restore it from a backup"
            )
    return batches


def _apart(view: memoryview) -> memoryview:
    """Ranges that were read together share one buffer: a small part of a large one must not keep all of it alive."""
    return memoryview(bytes(view)) if 2 * len(view) < memoryview(view.obj).nbytes else view


def _good(outcome: Outcome | None) -> Batches:
    assert outcome is not None
    if isinstance(outcome, LakestreamError):
        raise outcome
    return outcome
