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


class Inspector:
    def __init__(self, metadata: MetadataStore, store: ObjectStore, segments: SegmentFiles | None) -> None:
        self._claims = Claims(metadata)
        self._store = store
        self._segments = segments
        self._extents: dict[str, frozenset[str] | str] = {}  # what lies in each object, or why that is not known

    async def inspect(self, partition: PartitionId) -> Health:
        floor = await self._claims.floor(partition)
        if floor is None:
            raise Missing(f"log {partition} has no floor: its topic is being deleted; delete it again")
        offset, count, troubles = floor, 0, list[str]()
        while claims := (await self._claims.scan(partition, offset, limit=PAGE_CLAIMS)).claims:
            if not rules.is_gapless(claims, offset):
                troubles.append(f"offsets are missing behind {offset}: restore the metadata store from a backup")
            troubles += [trouble for dated in claims if (trouble := await self._trouble(dated))]
            count += len(claims)
            offset = claims[-1].claim.offset_end
        return Health(floor, offset, count, troubles)

    async def _trouble(self, dated: Dated) -> str | None:
        claim = dated.claim
        if rules.is_stale(claim, dated.created_ms):
            return None  # its offsets are a gap, its bytes may be gone
        extents = await self._content(claim)
        if isinstance(extents, str):
            return f"offset {claim.offset_start}: {extents}"
        if claim.extent_id not in extents:
            return f"offset {claim.offset_start}: {claim.name} does not hold what claim {claim.claim_id} names"
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
