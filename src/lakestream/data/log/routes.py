"""Which writer a partition's batches go to. A topic may change its profile at any time, and a producer's batches keep
their order all the same: the new writer gets nothing before the old one has settled everything."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakestream.batch import RecordBatch
from lakestream.data.wal.buffer import Appended
from lakestream.data.wal.writer import Writer
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.model import PartitionId
from lakestream.settings import Profile

Answer = asyncio.Future[Appended]


class Numbers:
    """Numbers batches in the order of their arrival."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last

    def given(self) -> int:
        return self._last


class _Held(NamedTuple):
    batch: RecordBatch
    transaction: int
    number: int
    """Of its arrival, not of its sending on: what failed before it came takes it along."""
    answer: Answer


class _Route:
    __slots__ = ("held", "profile", "unsettled")

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.unsettled = 0
        self.held: deque[_Held] = deque()  # arrived since the profile changed


class Routes:
    def __init__(self, writers: Mapping[Profile, Writer], profile_of: Callable[[PartitionId], Profile]) -> None:
        self._writers = writers
        self._profile_of = profile_of
        self._routes: dict[PartitionId, _Route] = {}  # of partitions with unsettled batches
        for writer in writers.values():
            writer.on_settled = self._settled

    def place(self, partition: PartitionId, batch: RecordBatch, transaction: int) -> Answer:
        profile = self._profile_of(partition)
        route = self._routes.get(partition)
        if route is None:
            route = self._routes[partition] = _Route(profile)
        if route.profile is profile and not route.held:
            return self._send(partition, route, batch, transaction)
        writer = self._writer(route.profile)
        held = _Held(batch, transaction, writer.next_number(), asyncio.get_running_loop().create_future())
        route.held.append(held)
        writer.flush()
        return held.answer

    def _send(
        self, partition: PartitionId, route: _Route, batch: RecordBatch, transaction: int, number: int | None = None
    ) -> Answer:
        try:
            answer = self._writer(route.profile).place(partition, batch, transaction, number)
        except LakestreamError:
            self._end_if_idle(partition, route)
            raise
        route.unsettled += 1
        return answer

    def _writer(self, profile: Profile) -> Writer:
        writer = self._writers.get(profile)
        if writer is None:
            raise Misconfigured(
                f"profile {profile.value} needs a folder for segments, and this broker has none: set --wal-dir"
            )
        return writer

    def _settled(self, partition: PartitionId, batch_count: int) -> None:
        """Told once for all batches of an extent: a callback on every batch's answer costs a turn of the loop each."""
        route = self._routes[partition]
        route.unsettled -= batch_count
        if route.unsettled or self._end_if_idle(partition, route):
            return
        route.profile = self._profile_of(partition)
        while route.held:
            held = route.held.popleft()
            try:
                _pass_on(self._send(partition, route, held.batch, held.transaction, held.number), held.answer)
            except LakestreamError as error:
                if not held.answer.done():
                    held.answer.set_exception(error)

    def _end_if_idle(self, partition: PartitionId, route: _Route) -> bool:
        if route.unsettled or route.held:
            return False
        self._routes.pop(partition, None)
        return True


def _pass_on(source: Answer, target: Answer) -> None:
    def done(answer: Answer) -> None:
        if answer.cancelled():
            return
        error = answer.exception()  # fetched in any case: its producer may have left
        if target.done():
            return
        if error is None:
            target.set_result(answer.result())
        else:
            target.set_exception(error)

    source.add_done_callback(done)
