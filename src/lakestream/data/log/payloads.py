"""Reads the record batches that a log's claims name, and holds each against its own checksum: `lakestream doctor`.

Beside inspect.py, which looks at footers only. The newest claims and some by chance, or all of them; a few megabytes at
a time, read and checked as brokers do it. What was trimmed meanwhile is no trouble.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

from lakestream.data.cache.blocks import BlockCache
from lakestream.data.log import rules
from lakestream.data.wal.reader import BLOCK_OVERHEAD, Reader, extent_of
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, Misconfigured, Missing
from lakestream.metadata.claims import Claim, Claims
from lakestream.metadata.store import MetadataStore
from lakestream.model import MiB, PartitionId
from lakestream.storage.object_store import ObjectStore

PAGE_CLAIMS: Final = 1_000
READ_BYTES: Final = 16 * MiB
"""In memory at once, or one claim."""
NEWEST: Final = 4
BY_CHANCE: Final = 12
TROUBLES_MAX: Final = 100
"""Of one log; more would tell nothing new."""


class Checked(NamedTuple):
    claims: int
    bytes: int
    troubles: list[str]


class _Trouble(NamedTuple):
    claim: Claim
    text: str


class Payloads:
    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        segments: SegmentFiles | None,
        luck: random.Random,
        *,
        full: bool,
    ) -> None:
        self._claims = Claims(metadata)
        self._reader = Reader(store, segments, BlockCache(1, BLOCK_OVERHEAD))  # nothing is wanted twice
        self._luck = luck
        self._full = full

    async def check(self, partition: PartitionId) -> Checked:
        """Missing: the log is gone. Unavailable: the bytes cannot be read now."""
        count, size, troubles = 0, 0, list[_Trouble]()
        async for claims in self._chosen(partition):
            for some in _parts(claims):
                said = await asyncio.gather(*map(self._wrong, some))
                troubles += [_Trouble(claim, text) for claim, text in zip(some, said, strict=True) if text]
                count += len(some)
                size += sum(extent_of(claim).size for claim in some)
            if len(troubles) >= TROUBLES_MAX:
                break
        floor = await self._claims.floor(partition) if troubles else 0
        left = [one for one in troubles if floor is not None and one.claim.offset_end > floor]
        return Checked(count, size, [_told(one) for one in left[:TROUBLES_MAX]])

    def close(self) -> None:
        self._reader.kill()

    async def _chosen(self, partition: PartitionId) -> AsyncIterator[Sequence[Claim]]:
        if self._full:
            async for page in self._pages(partition):
                yield page
            return
        newest: list[Claim] = []
        others: list[Claim] = []
        seen = 0
        async for page in self._pages(partition):
            known = newest + page
            newest = known[-NEWEST:]
            for claim in known[:-NEWEST]:  # each of them has the same chance to be among those that are kept
                seen += 1
                if len(others) < BY_CHANCE:
                    others.append(claim)
                elif (place := self._luck.randrange(seen)) < BY_CHANCE:
                    others[place] = claim
        yield others + newest

    async def _pages(self, partition: PartitionId) -> AsyncIterator[list[Claim]]:
        offset = 0
        while True:
            chain = await self._claims.scan(partition, offset, limit=PAGE_CLAIMS, confirmed=True)
            if chain.floor is None:
                raise Missing(f"log {partition} is gone: its topic was deleted, or is being deleted; delete it again")
            if not rules.floor_allows(chain.floor, offset):
                offset = chain.floor
                continue
            if not chain.claims:
                return
            offset = chain.claims[-1].claim.offset_end
            # A claim that came too late is a gap, and its bytes may be gone.
            yield [claim for claim, created_ms in chain.claims if not rules.is_stale(claim, created_ms)]

    async def _wrong(self, claim: Claim) -> str:
        try:
            await self._reader.read([claim])
        except (Corrupt, Missing) as error:
            return str(error)
        except Misconfigured:
            return ""  # a segment, and nobody has said where they are: inspect.py says so
        return ""


def _parts(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    part: list[Claim] = []
    size = 0
    for claim in claims:
        if part and size + extent_of(claim).size > READ_BYTES:
            yield part
            part, size = [], 0
        part.append(claim)
        size += extent_of(claim).size
    if part:
        yield part


def _told(trouble: _Trouble) -> str:
    start, end = trouble.claim.offset_start, trouble.claim.offset_end
    said = trouble.text.removesuffix("; restore it from a backup")
    return (
        f"offsets {start} to {end - 1}: {said}; restore {trouble.claim.name} from a backup,"
        f" or give these records up: delete the partition's records before offset {end}"
    )
