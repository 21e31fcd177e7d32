"""WAL writers of a broker, and which of them gets a partition's batches.

The profile of a topic may change at any time. A producer's batches keep their order all the same: the new writer gets
nothing before the old one has finished everything.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from lakestream.clock import Clock, Ids
from lakestream.config.settings import Profile, WalSettings
from lakestream.data.log import rules
from lakestream.data.wal.buffer import Appended
from lakestream.data.wal.frame_store import FrameStore, ObjectFrames, SegmentFrames
from lakestream.data.wal.segments import SegmentFiles
from lakestream.data.wal.writer import ExtentClaimer, WalWriter, WriterSettings
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch
from lakestream.storage.object_store import ObjectStore

CLAIM_WAIT_MS: Final = 3
GATHER_MS: Final = 12
"""Measured with a producer that pipelines 1,200 requests a second (`make bench-kafka`, 5,000 records/s): with 4 its
responses come 5 ms sooner, and the broker takes three quarters more CPU. Producers that wait for each response are not
delayed."""

AppendFuture: TypeAlias = "asyncio.Future[Appended]"


class ArrivalSequence:
    """Numbers batches in the order of their arrival."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last

    def last(self) -> int:
        return self._last


class _QueuedBatch(NamedTuple):
    batch: RecordBatch
    transaction: int
    number: int
    """Of its arrival, not of its submission: a failure of an earlier batch of its producer fails it too."""
    future: AppendFuture


class _Route:
    __slots__ = ("profile", "queued", "unfinished")

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.unfinished = 0
        self.queued: deque[_QueuedBatch] = deque()  # arrived since the profile changed


class WriterRouter:
    def __init__(
        self,
        frames: dict[Profile, tuple[str, FrameStore]],
        settings: WalSettings,
        claimer: ExtentClaimer,
        numbers: ArrivalSequence,
        profile_of: Callable[[PartitionId], Profile],
    ) -> None:
        self._profile_of = profile_of
        self._routes: dict[PartitionId, _Route] = {}  # of partitions with unfinished batches
        self.writers = {
            profile: WalWriter(
                writer_id, store, claimer, _writer_settings(profile, settings), numbers.next, self._finished
            )
            for profile, (writer_id, store) in frames.items()
        }

    def submit(self, partition: PartitionId, batch: RecordBatch, transaction: int) -> AppendFuture:
        profile = self._profile_of(partition)
        route = self._routes.get(partition)
        if route is None:
            route = self._routes[partition] = _Route(profile)
        if route.profile is profile and not route.queued:
            return self._send(partition, route, batch, transaction)
        writer = self._writer(route.profile)
        queued = _QueuedBatch(batch, transaction, writer.next_number(), asyncio.get_running_loop().create_future())
        route.queued.append(queued)
        writer.flush()
        return queued.future

    def _send(
        self, partition: PartitionId, route: _Route, batch: RecordBatch, transaction: int, number: int | None = None
    ) -> AppendFuture:
        try:
            future = self._writer(route.profile).submit(partition, batch, transaction, number)
        except LakestreamError:
            self._end_if_idle(partition, route)
            raise
        route.unfinished += 1
        return future

    def _writer(self, profile: Profile) -> WalWriter:
        writer = self.writers.get(profile)
        if writer is None:
            raise Misconfigured(
                f"profile {profile.value} needs a folder for segments, and this broker has none: set --wal-dir"
            )
        return writer

    def _finished(self, partition: PartitionId, batch_count: int) -> None:
        route = self._routes[partition]
        route.unfinished -= batch_count
        if route.unfinished or self._end_if_idle(partition, route):
            return
        route.profile = self._profile_of(partition)
        while route.queued:
            queued = route.queued.popleft()
            try:
                _copy_result(
                    self._send(partition, route, queued.batch, queued.transaction, queued.number), queued.future
                )
            except LakestreamError as error:
                if not queued.future.done():
                    queued.future.set_exception(error)

    def _end_if_idle(self, partition: PartitionId, route: _Route) -> bool:
        if route.unfinished or route.queued:
            return False
        self._routes.pop(partition, None)
        return True


def open_frames(
    store: ObjectStore, segments: SegmentFiles | None, settings: WalSettings, clock: Clock, ids: Ids
) -> dict[Profile, tuple[str, FrameStore]]:
    """Returns the frame store of each profile that this broker can serve, and the writer id of its frames."""
    writer_id = _short(ids)
    frames: dict[Profile, tuple[str, FrameStore]] = {Profile.COST: (writer_id, ObjectFrames(store, writer_id, clock))}
    if segments is not None:
        writer_id = _short(ids)
        frames[Profile.LATENCY] = (writer_id, SegmentFrames(segments, writer_id, settings, clock))
    return frames


def _short(ids: Ids) -> str:
    return ids.new()[:16]


def _writer_settings(profile: Profile, wal: WalSettings) -> WriterSettings:
    cost = WriterSettings(
        wal.flush_interval_ms, wal.flush_bytes_max, wal.buffer_bytes_max, rules.CLAIM_BATCHES_MAX, wal.uploads_max
    )
    if profile is Profile.COST:
        return cost
    # Group commit: what waits when the last flush ends is the next one, however much it is.
    return cost._replace(
        flush_interval_ms=0,
        flush_bytes_max=wal.buffer_bytes_max // 2,
        writes_max=1,
        claim_wait_ms=CLAIM_WAIT_MS,
        gather_ms=GATHER_MS,
    )


def _copy_result(source: AppendFuture, target: AppendFuture) -> None:
    def done(future: AppendFuture) -> None:
        if future.cancelled():
            return
        error = future.exception()  # retrieved in any case: the request may have been cancelled
        if target.done():
            return
        if error is None:
            target.set_result(future.result())
        else:
            target.set_exception(error)

    source.add_done_callback(done)
