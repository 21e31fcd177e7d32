"""Batches that failed on their way to the log, as one connection remembers them.

An idempotent producer sends on before it hears that a batch failed. The log holds back what follows a batch that failed
there (`claimer.py:Failure`), but it knows nothing of one that never came so far: its topic could not be looked up, or
the broker's clock was wrong. A producer that is new to the log could then begin with its second batch, and the first
would be out of order for ever. So a batch behind a failed one is let through only if the log knows its producer, and
judges for itself.
"""

from typing import Final, NamedTuple, TypeAlias, cast

from lakestream.batch import NO_PRODUCER, RecordBatch
from lakestream.data.log.log import Log
from lakestream.errors import Corrupt, OutOfOrder, Rejected
from lakestream.model import PartitionId

SETBACKS: Final = "produce.setbacks"
"""Under this name they are part of a connection's state, as long as there are any."""

SETBACKS_MAX: Final = 1_000

Place: TypeAlias = tuple[object, int]
"""A partition as the client names it."""


class Failed(NamedTuple):
    epoch: int
    sequence: int


_Known: TypeAlias = dict[tuple[Place, int], Failed]  # by place and producer


def note(state: dict[str, object], place: Place, records: memoryview | None) -> None:
    """This batch failed before the log had it."""
    try:
        batch = RecordBatch.parse(records or b"")
    except (Corrupt, Rejected):
        return  # nobody can send it again with success
    if batch.producer_id == NO_PRODUCER:
        return
    known = cast(_Known, state.setdefault(SETBACKS, {}))
    before = known.get((place, batch.producer_id))
    if before is None or before.epoch != batch.producer_epoch or batch.base_sequence < before.sequence:
        known[place, batch.producer_id] = Failed(batch.producer_epoch, batch.base_sequence)
    if len(known) > SETBACKS_MAX:
        del known[next(iter(known))]


async def check(state: dict[str, object], place: Place, batch: RecordBatch, partition: PartitionId, log: Log) -> None:
    """OutOfOrder: a batch before this one failed, and the log could not know."""
    known = cast(_Known, state.get(SETBACKS, {}))
    failed = known.get((place, batch.producer_id))
    if failed is None:
        return
    if (
        batch.producer_epoch == failed.epoch
        and batch.base_sequence > failed.sequence
        and batch.producer_id not in await log.producers(partition, confirmed=True)
    ):
        raise OutOfOrder(
            f"producer {batch.producer_id}: send the batch with sequence {failed.sequence} first; it failed"
        )
    known.pop((place, batch.producer_id), None)  # it comes again, or its producer began anew, or the log judges
    if not known:
        state.pop(SETBACKS, None)
