"""Checks a partition's claims against the objects and segments they name, for `lakestream doctor`.

Every claim above the floor must follow the one before it, and name an object whose footer has its extent.
"""

from typing import Final, NamedTuple

from lakestream.data.log import rules
from lakestream.data.wal.footers import object_footer, segment_footers
from lakestream.data.wal.format import FrameFooter
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, Missing
from lakestream.metadata.claims import Claim, Claims, Medium, StoredClaim
from lakestream.metadata.store import MetadataStore
from lakestream.model import PartitionId
from lakestream.storage.object_store import ObjectStore

PAGE_CLAIMS: Final = 1_000


class LogReport(NamedTuple):
    floor: int
    offset_end: int
    claims: int
    problems: list[str]


class _Problem(NamedTuple):
    offset_end: int
    text: str


class LogVerifier:
    def __init__(self, metadata: MetadataStore, store: ObjectStore, segments: SegmentFiles | None) -> None:
        self._claims = Claims(metadata)
        self._store = store
        self._segments = segments
        self._extents: dict[str, frozenset[str] | str] = {}  # in each object, or why they cannot be read

    async def verify(self, partition: PartitionId) -> LogReport:
        """Checks a partition while brokers append and trim: problems of claims trimmed meanwhile are dropped."""
        offset, count, problems = 0, 0, list[_Problem]()
        while True:
            chain = await self._claims.scan(partition, offset, limit=PAGE_CLAIMS, confirmed=True)
            if chain.floor is None:
                raise Missing(
                    f"partition {partition} does not exist: its topic was deleted, or is being deleted; delete it again"
                )
            if not rules.floor_allows(chain.floor, offset):
                offset, count = chain.floor, 0
                continue
            if not chain.claims:
                left = [problem.text for problem in problems if problem.offset_end > chain.floor]
                return LogReport(chain.floor, offset, count, left)
            end = chain.claims[-1].claim.offset_end
            if not rules.is_gapless(chain.claims, offset):
                gap = f"offsets are missing from {offset} on: restore the metadata store from a backup"
                problems.append(_Problem(end, gap))
            problems += [problem for dated in chain.claims if (problem := await self._check(dated))]
            count += len(chain.claims)
            offset = end

    async def _check(self, dated: StoredClaim) -> _Problem | None:
        claim = dated.claim
        if rules.is_stale(claim, dated.created_ms):
            return None  # void: its offsets are a gap, its bytes may be gone
        extents = await self._content(claim)
        if not isinstance(extents, str) and claim.extent_id not in extents:
            del self._extents[claim.name]  # a segment may have grown since it was read for another claim
            extents = await self._content(claim)
        if isinstance(extents, str):
            return _Problem(claim.offset_end, f"offset {claim.offset_start}: {extents}")
        if claim.extent_id not in extents:
            text = f"{claim.name} does not have the extent of claim {claim.claim_id}"
            return _Problem(claim.offset_end, f"offset {claim.offset_start}: {text}")
        return None

    async def _content(self, claim: Claim) -> frozenset[str] | str:
        if claim.name not in self._extents:
            try:
                footers = await self._footers(claim)
                self._extents[claim.name] = frozenset(stored.claim_id for footer in footers for stored in footer.ranges)
            except (Missing, Corrupt) as error:
                self._extents[claim.name] = f"{error}; restore {claim.name} from a backup"
        return self._extents[claim.name]

    async def _footers(self, claim: Claim) -> list[FrameFooter]:
        if claim.medium is Medium.OBJECT:
            size = (await self._store.head(claim.name)).size
            return [await object_footer(self._store, claim.name, size)]
        if self._segments is None:
            raise Missing(f"segment {claim.name} cannot be read without --wal-dir")
        return (await segment_footers(self._segments, claim.name)).footers
