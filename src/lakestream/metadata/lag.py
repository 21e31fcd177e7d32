"""How far a table is behind its log, from three small records: the log's last claim, the table's end, the claim there.

For metrics and reports, never for a decision: what is moved is decided by the table and the log itself.
"""

from typing import NamedTuple

from lakestream.metadata.claims import END_OF_TIME, Claims
from lakestream.model import PartitionId


class Lag(NamedTuple):
    records: int = 0
    oldest_ms: int = 0
    """When the first record was appended that is not in the table; 0: all are."""


async def lag_of(claims: Claims, partition: PartitionId) -> Lag:
    """Up to the log's end: also what waits for a transaction to end."""
    newest = await claims.holding(partition, END_OF_TIME)
    if newest is None:
        return Lag()
    moved = await claims.table_end(partition)
    left = newest.claim.offset_end - moved
    if left <= 0:
        return Lag()
    first = await claims.holding(partition, moved) or newest
    return Lag(left, first.claim.appended_ms)
