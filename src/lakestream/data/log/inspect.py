"""Holds a log's claims against the bytes they name, without trusting either: what `lakestream doctor` sees.

Every claim above the floor must follow the one before it, and name an object whose footer knows its extent.
"""

from typing import Final, NamedTuple

from lakestream.data.log import rules
from lakestream.data.wal.footers import object_footer, segment_footers
from lakestream.data.wal.format import Footer
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, Missing
from lakestream.metadata.claims import Claim, Claims, Dated, Medium
from lakestream.metadata.store import MetadataStore
from lakestream.model import PartitionId
from lakestream.storage.object_store import ObjectStore

PAGE_CLAIMS: Final = 1_000


class Health(NamedTuple):
    floor: int
    offset_end: int
    claims: int
    troubles: list[str]


class Trouble(NamedTuple):
    offset_end: int
    text: str


class Inspector:
    def __init__(self, metadata: MetadataStore, store: ObjectStore, segments: SegmentFiles | None) -> None:
        self._claims = Claims(metadata)
        self._store = store
        self._segments = segments
        self._extents: dict[str, frozenset[str] | str] = {}  # what lies in each object, or why that is not known

    async def inspect(self, partition: PartitionId) -> Health:
        """Beside brokers that append, trim and sweep: what was trimmed while it was looked at is no trouble."""
        offset, count, troubles = 0, 0, list[Trouble]()
        while True:
            chain = await self._claims.scan(partition, offset, limit=PAGE_CLAIMS, confirmed=True)
            if chain.floor is None:
                raise Missing(f"log {partition} is gone: its topic was deleted, or is being deleted; delete it again")
            if not rules.floor_allows(chain.floor, offset):
                offset, count = chain.floor, 0
                continue
            if not chain.claims:
                left = [trouble.text for trouble in troubles if trouble.offset_end > chain.floor]
                return Health(chain.floor, offset, count, left)
            end = chain.claims[-1].claim.offset_end
            if not rules.is_gapless(chain.claims, offset):
                gap = f"offsets are missing behind {offset}: restore the metadata store from a backup"
                troubles.append(Trouble(end, gap))
            troubles += [trouble for dated in chain.claims if (trouble := await self._trouble(dated))]
            count += len(chain.claims)
            offset = end

    async def _trouble(self, dated: Dated) -> Trouble | None:
        claim = dated.claim
        if rules.is_stale(claim, dated.created_ms):
            return None  # its offsets are a gap, its bytes may be gone
        extents = await self._content(claim)
        if not isinstance(extents, str) and claim.extent_id not in extents:
            del self._extents[claim.name]  # a segment that has grown since it was looked at for another claim
            extents = await self._content(claim)
        if isinstance(extents, str):
            return Trouble(claim.offset_end, f"offset {claim.offset_start}: {extents}")
        if claim.extent_id not in extents:
            wrong = f"{claim.name} does not hold what claim {claim.claim_id} names"
            return Trouble(claim.offset_end, f"offset {claim.offset_start}: {wrong}")
        return None

    async def _content(self, claim: Claim) -> frozenset[str] | str:
        if claim.name not in self._extents:
            try:
                footers = await self._footers(claim)
                self._extents[claim.name] = frozenset(part.claim_id for footer in footers for part in footer.ranges)
            except (Missing, Corrupt) as error:
                self._extents[claim.name] = f"{error}; restore {claim.name} from a backup"
        return self._extents[claim.name]

    async def _footers(self, claim: Claim) -> list[Footer]:
        if claim.medium is Medium.OBJECT:
            size = (await self._store.head(claim.name)).size
            return [await object_footer(self._store, claim.name, size)]
        if self._segments is None:
            raise Missing(f"segment {claim.name} cannot be looked at without --wal-dir")
        return (await segment_footers(self._segments, claim.name)).footers
