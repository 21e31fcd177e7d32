"""Second step of the write path: sealed buffers in, stored extents out.

Before: buffer.py.  After: data/log/claimer.py.  Frames are stored in parallel; their extents are handed on in seal
order, so that a producer's batches keep theirs. What is placed and not yet answered is bounded in bytes: beyond that,
batches wait outside in the order in which they came, which a producer feels as a slower answer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from lakestream.batch import RecordBatch
from lakestream.data.wal.buffer import Appended, Extent, OpenBuffer, Placed, SealedBuffer
from lakestream.data.wal.media import FrameStore
from lakestream.errors import LakestreamError, Unavailable
from lakestream.model import KiB, PartitionId

log = logging.getLogger(__name__)

GATHER_BYTES_MAX: Final = 256 * KiB
"""A frame of this size costs what its bytes cost, and waits for no company."""


class Claimer(Protocol):
    """Gives stored extents their offsets and answers their producers, in the order handed over."""

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
    """A frame ends for the next one when its claims are made, or so long after it was stored: what arrives meanwhile
    shares one flush. Each costs a sync and several hand-overs between threads, however small it is."""
    gather_ms: int = 0
    """How long the next frame waits after that for those who were just answered, who mostly come again at once. When
    all are there, or a frame is large enough to be worth its cost, it begins."""


class _Frame:
    """One that is being stored and claimed, until the next one may start."""

    __slots__ = ("batch_count", "timer", "unsettled")

    def __init__(self, extents: list[Extent]) -> None:
        self.batch_count = sum(extent.batch_count for extent in extents)
        self.unsettled = len(extents)
        self.timer: asyncio.TimerHandle | None = None


class Writer:
    """Joins the batches of all partitions and writes them frame by frame."""

    def __init__(
        self,
        writer_id: str,
        frames: FrameStore,
        claimer: Claimer,
        settings: WriterSettings,
        next_number: Callable[[], int],
    ) -> None:
        self.writer_id = writer_id
        self._frames = frames
        self._claimer = claimer
        self._settings = settings
        self.next_number = next_number
        """Numbers batches in the order of their arrival in this broker."""
        self._room = settings.buffer_bytes_max
        self._flush_bytes_max = settings.flush_bytes_max
        self._free_slots = settings.writes_max
        self._outside: deque[tuple[PartitionId, Placed]] = deque()  # wait for room
        self._bytes = 0  # in the open buffer, sealed, stored, being claimed
        self._open = OpenBuffer()
        self._due = False  # the open buffer's time has come
        self._expected = 0  # the next frame waits for so many batches; 0: for none
        self._timer: asyncio.TimerHandle | None = None
        self._sealed: deque[SealedBuffer] = deque()  # wait for a slot
        self._sequence = 0
        self._newest: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.on_settled: Callable[[PartitionId, int], None] = _nothing
        """Told when so many batches of a partition, placed here, have been answered."""

    @property
    def bytes_held(self) -> int:
        return self._bytes

    def place(
        self, partition: PartitionId, batch: RecordBatch, transaction: int, number: int | None = None
    ) -> "asyncio.Future[Appended]":
        """Join the open buffer, or wait outside while the writer is full. The future is the producer's answer.

        `number`: of a batch that arrived before and was held back."""
        if self._closed:
            raise Unavailable("this broker is stopping: send the batch to another one")
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        item = Placed(batch, transaction, self.next_number() if number is None else number, answer)
        if self._outside or not self._has_room(batch.size):
            self._outside.append((partition, item))
        else:
            self._add(partition, item)
        return answer

    def flush(self) -> None:
        """What was placed so far need not wait any longer."""
        self._expected = 0
        self._due = bool(self._open)
        if not self._due:
            self._disarm()
        self._write_on()

    async def store_again(self, extent: Extent) -> None:
        """Store an extent anew, alone: its claim came too late, or counted for nothing."""
        self._sequence += 1
        extent.renew(f"{self.writer_id}.{self._sequence}.0")
        await self._frames.store([extent], self._sequence)

    async def drain(self) -> None:
        """Take nothing more; hand on what was taken."""
        self._closed = True
        while self._open or self._tasks or self._outside:
            self.flush()
            await asyncio.wait(self._tasks) if self._tasks else await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self._frames.close()

    def kill(self) -> None:
        """Stop at once, answering nobody."""
        self._closed = True
        self._disarm()
        self._outside.clear()
        self._sealed.clear()
        self._open = OpenBuffer()
        for task in self._tasks:
            task.cancel()

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._room

    def _add(self, partition: PartitionId, item: Placed) -> None:
        self._bytes += item.batch.size
        self._open.add(partition, item)
        if self._open.bytes >= self._flush_bytes_max:
            self._seal()
            self._write_on()
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

    def _write_on(self) -> None:
        """Start writing what is due, while a slot is free."""
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
        extents = sealed.extents(f"{self.writer_id}.{sequence}", self.writer_id, self._settings.claim_batches_max)
        failed = await self._store(extents, sequence)
        if failed is None and self._settings.claim_wait_ms:
            self._free_when_claimed(extents)
        else:
            self._free_slot()
        await _turn_after(before)
        if failed is None:
            self._claimer.claim(extents)
        else:
            self._claimer.fail(extents, failed)

    def _free_when_claimed(self, extents: list[Extent]) -> None:
        frame = _Frame(extents)
        for extent in extents:
            extent.on_settled = partial(self._settled, frame)
        delay_s = self._settings.claim_wait_ms / 1000
        frame.timer = asyncio.get_running_loop().call_later(delay_s, self._end, frame)

    def _settled(self, frame: _Frame, extent: Extent) -> None:
        self._release(extent)
        frame.unsettled -= 1
        if not frame.unsettled and frame.timer is not None:
            self._gather(frame.batch_count)
            self._end(frame)

    def _gather(self, answered: int) -> None:
        """Those who were just answered may come again before the next frame begins."""
        if self._settings.gather_ms and not self._closed and not self._sealed:
            self._expected = answered + self._open.count
            self._due = False
            self._arm(self._settings.gather_ms)

    def _end(self, frame: _Frame) -> None:
        if frame.timer is not None:
            frame.timer.cancel()
            frame.timer = None
            self._free_slot()

    def _free_slot(self) -> None:
        self._free_slots += 1
        if not self._closed or self._open or self._sealed:
            self._write_on()

    async def _store(self, extents: list[Extent], sequence: int) -> LakestreamError | None:
        for extent in extents:
            extent.on_settled = self._release
        try:
            await self._frames.store(extents, sequence)
        except LakestreamError as error:
            return _not_stored(error)
        except Exception as error:
            log.exception("wal.write_failed writer=%s sequence=%d", self.writer_id, sequence)
            return Unavailable(f"the WAL could not be written ({error!r}); see this broker's log")
        return None

    def _release(self, extent: Extent) -> None:
        """Its producers have been answered: let in those who wait, in order."""
        self._bytes -= extent.size
        while self._outside and self._has_room(self._outside[0][1].batch.size):
            self._add(*self._outside.popleft())
        self.on_settled(extent.partition, extent.batch_count)


def _not_stored(error: LakestreamError) -> Unavailable:
    """Whatever is wrong with the store: without a claim nothing was appended, and the batches are not to blame."""
    return error if type(error) is Unavailable else Unavailable(f"the batch is not stored: {error}")


def _nothing(partition: PartitionId, batch_count: int) -> None:
    return None


async def _turn_after(before: asyncio.Task[None] | None) -> None:
    """Extents are handed on in seal order, whichever frame was stored first."""
    if before is not None and not before.done():
        await asyncio.wait([before])
