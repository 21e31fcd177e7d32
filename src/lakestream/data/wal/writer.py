"""Write path, step 2: stores sealed buffers as frames and passes their extents to the claimer.

Before: buffer.py.  After: data/log/claimer.py. Frames are stored in parallel; their extents are passed on in seal
order, which keeps the order of each producer's batches. The bytes in flight (submitted, response not sent) are bounded:
beyond the bound, batches wait in order of arrival outside of the buffer, and the producer sees a slower response.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from lakestream.data.wal.buffer import Appended, Extent, OpenBuffer, PendingBatch, SealedBuffer
from lakestream.data.wal.frame_store import FrameStore
from lakestream.errors import LakestreamError, Unavailable
from lakestream.model import KiB, PartitionId
from lakestream.records.batch import RecordBatch

log = logging.getLogger(__name__)

GATHER_BYTES_MAX: Final = 256 * KiB
"""The cost of a frame of this size is in its bytes: it does not wait for more batches."""


class ExtentClaimer(Protocol):
    """Assigns offsets to stored extents and completes their futures, in the order of its calls."""

    def claim(self, extents: list[Extent]) -> None: ...

    def fail(self, extents: list[Extent], error: LakestreamError) -> None: ...


class WriterSettings(NamedTuple):
    flush_interval_ms: int
    flush_bytes_max: int
    buffer_bytes_max: int
    claim_batches_max: int
    writes_max: int
    """Frames being stored at once. With one, the next flush starts when the last one ends: group commit."""
    claim_wait_ms: int = 0
    """The next frame starts when the claims of this one are made, or so long after this one was stored: what arrives
    meanwhile shares one flush. Each flush costs a sync and several hand-overs between threads, however small it is."""
    gather_ms: int = 0
    """How long the next frame then waits for the producers whose requests just completed: most send the next request at
    once. The frame starts earlier when as many batches have arrived, or when it is large enough to be worth its
    cost."""


class _ClaimWait:
    """A stored frame whose claims are awaited before the next frame starts."""

    __slots__ = ("batch_count", "timer", "unfinished")

    def __init__(self, extents: list[Extent]) -> None:
        self.batch_count = sum(extent.batch_count for extent in extents)
        self.unfinished = len(extents)
        self.timer: asyncio.TimerHandle | None = None


class WalWriter:
    """Joins the batches of all partitions and writes them frame by frame.

    `on_finished` is called with the number of batches of a partition whose futures are complete: once per extent,
    because a callback on each future would cost a turn of the loop per batch.
    """

    def __init__(
        self,
        writer_id: str,
        frames: FrameStore,
        claimer: ExtentClaimer,
        settings: WriterSettings,
        next_number: Callable[[], int],
        on_finished: Callable[[PartitionId, int], None],
    ) -> None:
        self.writer_id = writer_id
        self._frames = frames
        self._claimer = claimer
        self._settings = settings
        self.next_number = next_number
        """Numbers batches in the order of their arrival in this broker."""
        self._on_finished = on_finished
        self._bytes_max = settings.buffer_bytes_max
        self._flush_bytes_max = settings.flush_bytes_max
        self._free_slots = settings.writes_max
        self._blocked: deque[tuple[PartitionId, PendingBatch]] = deque()  # the bytes in flight are at their bound
        self._bytes = 0  # in flight: in the open buffer, sealed, stored, being claimed
        self._open = OpenBuffer()
        self._due = False  # the open buffer may be written as soon as a slot is free
        self._expected = 0  # the next frame waits for so many batches; 0: for none
        self._timer: asyncio.TimerHandle | None = None
        self._sealed: deque[SealedBuffer] = deque()  # wait for a slot
        self._sequence = 0
        self._claim_waits: dict[Extent, _ClaimWait] = {}
        self._newest: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def bytes_in_flight(self) -> int:
        return self._bytes

    def submit(
        self, partition: PartitionId, batch: RecordBatch, transaction: int, number: int | None = None
    ) -> "asyncio.Future[Appended]":
        """Adds a batch to the open buffer, or queues it while the bytes in flight are at their bound.

        `number` is the number of a batch that arrived earlier and was queued before it came here."""
        if self._closed:
            raise Unavailable("this broker is stopping: send the batch to another one")
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        item = PendingBatch(batch, transaction, self.next_number() if number is None else number, future)
        if self._blocked or not self._has_room(batch.size):
            self._blocked.append((partition, item))
        else:
            self._add(partition, item)
        return future

    def flush(self) -> None:
        """Makes the submitted batches due immediately."""
        self._expected = 0
        self._due = bool(self._open)
        if not self._due:
            self._disarm()
        self._write_due()

    async def rewrite_extent(self, extent: Extent) -> None:
        self._sequence += 1
        extent.renew(f"{self.writer_id}.{self._sequence}.0")
        await self._frames.store([extent], self._sequence)

    def finish(self, extent: Extent) -> None:
        self._bytes -= extent.size
        while self._blocked and self._has_room(self._blocked[0][1].batch.size):
            self._add(*self._blocked.popleft())
        self._on_finished(extent.partition, extent.batch_count)
        wait = self._claim_waits.pop(extent, None)
        if wait is not None:
            wait.unfinished -= 1
            if not wait.unfinished and wait.timer is not None:
                self._gather(wait.batch_count)
                self._end_wait(wait)

    async def drain(self) -> None:
        """Accepts no more batches and passes on all submitted ones."""
        self._closed = True
        while self._open or self._tasks or self._blocked:
            self.flush()
            await asyncio.wait(self._tasks) if self._tasks else await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self._frames.close()

    def kill(self) -> None:
        """Stops immediately and completes no futures."""
        self._closed = True
        self._disarm()
        self._blocked.clear()
        self._sealed.clear()
        self._open = OpenBuffer()
        for task in self._tasks:
            task.cancel()

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._bytes_max

    def _add(self, partition: PartitionId, item: PendingBatch) -> None:
        self._bytes += item.batch.size
        self._open.add(partition, item)
        if self._open.bytes >= self._flush_bytes_max:
            self._seal()
            self._write_due()
        elif self._timer is None:
            # The timer runs from the first batch. With no interval it fires when this turn of the loop is over, so that
            # batches which arrived together are written together.
            self._arm(self._settings.flush_interval_ms)
        elif self._expected and (self._open.count >= self._expected or self._open.bytes >= GATHER_BYTES_MAX):
            self._expected = 0
            self._arm(self._settings.flush_interval_ms)

    def _arm(self, delay_ms: int) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.flush)

    def _seal(self) -> None:
        self._disarm()
        self._due = False
        self._expected = 0
        self._sealed.append(self._open.seal())
        self._open = OpenBuffer()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _write_due(self) -> None:
        """Starts due writes while slots are free."""
        while self._free_slots and (self._sealed or self._due):
            if not self._sealed:
                self._seal()
            self._free_slots -= 1
            self._sequence += 1
            write = self._write(self._sealed.popleft(), self._sequence, self._newest)
            self._newest = asyncio.get_running_loop().create_task(write, name="wal.write")
            self._tasks.add(self._newest)
            self._newest.add_done_callback(self._tasks.discard)

    async def _write(self, sealed: SealedBuffer, sequence: int, before: asyncio.Task[None] | None) -> None:
        extents = sealed.extents(f"{self.writer_id}.{sequence}", self, self._settings.claim_batches_max)
        error = await self._store(extents, sequence)
        if error is None and self._settings.claim_wait_ms:
            self._free_slot_after_claims(extents)
        else:
            self._free_slot()
        await _wait_for_previous(before)
        if error is None:
            self._claimer.claim(extents)
        else:
            self._claimer.fail(extents, error)

    def _free_slot_after_claims(self, extents: list[Extent]) -> None:
        delay_s = self._settings.claim_wait_ms / 1000
        wait = _ClaimWait(extents)
        wait.timer = asyncio.get_running_loop().call_later(delay_s, self._end_wait, wait)
        self._claim_waits |= dict.fromkeys(extents, wait)

    def _gather(self, completed: int) -> None:
        """Delays the next frame: the producers of completed requests may send more before it starts."""
        if self._settings.gather_ms and not self._closed and not self._sealed:
            self._expected = completed + self._open.count
            self._due = False
            self._arm(self._settings.gather_ms)

    def _end_wait(self, wait: _ClaimWait) -> None:
        if wait.timer is not None:
            wait.timer.cancel()
            wait.timer = None
            self._free_slot()

    def _free_slot(self) -> None:
        self._free_slots += 1
        if not self._closed or self._open or self._sealed:
            self._write_due()

    async def _store(self, extents: list[Extent], sequence: int) -> LakestreamError | None:
        try:
            await self._frames.store(extents, sequence)
        except LakestreamError as error:
            # Whatever the store's error is: without a claim nothing was appended, and the batches are not to blame.
            return error if type(error) is Unavailable else Unavailable(f"the batch is not stored: {error}")
        except Exception as error:
            log.exception("wal.write_failed writer=%s sequence=%d", self.writer_id, sequence)
            return Unavailable(f"the WAL could not be written ({error!r}); see this broker's log")
        return None


async def _wait_for_previous(before: asyncio.Task[None] | None) -> None:
    """Waits until the extents of the frame before have been passed on: extents are claimed in seal order."""
    if before is not None and not before.done():
        await asyncio.wait([before])
