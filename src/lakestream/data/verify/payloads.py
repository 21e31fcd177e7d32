"""Reads the record batches of a partition's claims and verifies their checksums, for `lakestream doctor`.

log.py reads only footers. This module reads the newest claims and a random sample, or all of them, a few megabytes at a
time, with the reader that brokers use. Problems of claims trimmed meanwhile are dropped.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

from lakestream.aio.cache import LruCache
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
SAMPLE: Final = 12
PROBLEMS_MAX: Final = 100
"""Of one partition; more would add no information."""


class PayloadReport(NamedTuple):
    claims: int
    bytes: int
    problems: list[str]


class _Problem(NamedTuple):
    claim: Claim
    text: str


class PayloadVerifier:
    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        segments: SegmentFiles | None,
        rng: random.Random,
        *,
        full: bool,
    ) -> None:
        self._claims = Claims(metadata)
        self._reader = Reader(store, segments, LruCache(1, BLOCK_OVERHEAD))  # nothing is read twice
        self._rng = rng
        self._full = full

    async def check(self, partition: PartitionId) -> PayloadReport:
        """Reads and verifies batches. Raises Missing if the partition was deleted, Unavailable if a store fails."""
        count, size, problems = 0, 0, list[_Problem]()
        async for claims in self._chosen(partition):
            for some in _chunks(claims):
                texts = await asyncio.gather(*map(self._error_of, some))
                problems += [_Problem(claim, text) for claim, text in zip(some, texts, strict=True) if text]
                count += len(some)
                size += sum(extent_of(claim).size for claim in some)
            if len(problems) >= PROBLEMS_MAX:
                break
        floor = await self._claims.floor(partition) if problems else 0
        left = [one for one in problems if floor is not None and one.claim.offset_end > floor]
        return PayloadReport(count, size, [_message(one) for one in left[:PROBLEMS_MAX]])

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
            claims = newest + page
            newest = claims[-NEWEST:]
            for claim in claims[:-NEWEST]:  # reservoir sampling: each has the same chance
                seen += 1
                if len(others) < SAMPLE:
                    others.append(claim)
                elif (index := self._rng.randrange(seen)) < SAMPLE:
                    others[index] = claim
        yield others + newest

    async def _pages(self, partition: PartitionId) -> AsyncIterator[list[Claim]]:
        offset = 0
        while True:
            chain = await self._claims.scan(partition, offset, limit=PAGE_CLAIMS, confirmed=True)
            if chain.floor is None:
                raise Missing(
                    f"partition {partition} does not exist: its topic was deleted, or is being deleted; delete it again"
                )
            if not rules.floor_allows(chain.floor, offset):
                offset = chain.floor
                continue
            if not chain.claims:
                return
            offset = chain.claims[-1].claim.offset_end
            # A stale claim is void, and its bytes may be gone.
            yield [claim for claim, created_ms in chain.claims if not rules.is_stale(claim, created_ms)]

    async def _error_of(self, claim: Claim) -> str:
        try:
            await self._reader.read([claim])
        except (Corrupt, Missing) as error:
            return str(error)
        except Misconfigured:
            return ""  # a segment without --wal-dir: log.py reports it
        return ""


def _chunks(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    chunk: list[Claim] = []
    size = 0
    for claim in claims:
        if chunk and size + extent_of(claim).size > READ_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(claim)
        size += extent_of(claim).size
    if chunk:
        yield chunk


def _message(problem: _Problem) -> str:
    start, end = problem.claim.offset_start, problem.claim.offset_end
    text = problem.text.removesuffix("; restore it from a backup")
    return (
        f"offsets {start} to {end - 1}: {text}; restore {problem.claim.name} from a backup,"
        f" or give these records up: delete the partition's records before offset {end}"
    )
