"""The network between clients, which live in the world, and brokers on their machines: one `Wire` per connection.

The broker's end stands in for `server.Connection`: it cuts out frames, has the dispatcher work on them in parallel, and
answers in order. Bytes keep their order and take their time; a wire can be cut at any moment, and what was under way
then is lost. A machine that is paused takes nothing until it goes on, and then everything that has piled up, also from
clients that left long ago.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.filed import as_bytes
from lakestream.protocol.kafka.server import Answer, CloseConnection, Connection
from lakestream.testing.faults import spread
from lakestream.testing.simulation import SimLoop

if TYPE_CHECKING:
    from tests.simulation.kafka.host import KafkaHost

DELAY_S = (0.0002, 0.005)
SLOW_S_MAX = 3.0
SIZE_BYTES = 4
WORK_S_MAX = 120.0
"""No request takes a broker longer, by its own clock. None asks to wait so long."""


class Wire:
    def __init__(self, host: "KafkaHost", on_bytes: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self.open = True
        """As the client sees it."""
        self._host = host
        self._loop = host.world.loop
        self._luck = host.world.luck
        self._on_bytes = on_bytes
        self._on_lost = on_lost
        self._cut = False
        self._to_broker, self._to_client = _Direction(self._loop), _Direction(self._loop)
        self._end_there: BrokersEnd | None = None
        host.wires[self] = None
        self._there(host.machine.soon, self._accept)

    # ── the client's end ─────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes) -> None:
        if self.open:
            self._there(self._arrive, data)

    def close(self) -> None:
        """The client hangs up. What it sent before still arrives."""
        if self.open:
            self._end()
            self._there(self._host.machine.soon, self._hang_up)

    def cut(self) -> None:
        """The network loses the connection, and all that is under way on it. Both ends hear of it, each in its time."""
        if self.open:
            self._end()
            self._cut = True
            self._loop.after(self._delay(), self._on_lost)
            self._loop.after(self._delay(), self._host.machine.soon, self._hang_up)

    def broken_off(self) -> None:
        """The broker is gone. What it sent before still arrives."""
        if self.open:
            self._end()
            self._back(self._on_lost)

    def _end(self) -> None:
        self.open = False
        self._host.wires.pop(self, None)

    # ── the broker's end: on its machine ─────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        if self._host.serves:
            self._end_there = BrokersEnd(self, self._host)
        else:
            self.broken_off()

    def _arrive(self, data: bytes) -> None:
        if not self._cut:
            self._host.machine.soon(self._feed, data)

    def _feed(self, data: bytes) -> None:
        if self._end_there is not None and self._host.machine.alive:
            self._end_there.feed(data)

    def _hang_up(self) -> None:
        if self._end_there is not None and self._host.machine.alive:
            self._end_there.close()

    def answered(self, data: bytes) -> None:
        self._back(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if not self._cut:
            self._on_bytes(data)

    # ── the way ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _there(self, do: Callable[..., object], *args: object) -> None:
        self._to_broker.send(self._delay(), do, *args)

    def _back(self, do: Callable[..., object], *args: object) -> None:
        self._to_client.send(self._delay(), do, *args)

    def _delay(self) -> float:
        slow = self._luck.random() < self._host.world.weather.slow / 4
        return spread(self._luck, DELAY_S[0], SLOW_S_MAX if slow else DELAY_S[1])


class _Direction:
    """One way of a wire: nothing overtakes what was sent before it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._arrives_s = 0.0
        self._under_way: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def send(self, delay_s: float, do: Callable[..., object], *args: object) -> None:
        self._arrives_s = max(self._arrives_s, self._loop.now + delay_s)
        self._under_way.append((do, args))
        self._loop.after(self._arrives_s - self._loop.now, self._arrive)  # whose timer it is does not matter

    def _arrive(self) -> None:
        do, args = self._under_way.popleft()
        do(*args)


class _Slot:
    """The place of one answer in the order of answers."""

    def __init__(self, began_s: float, stalled_s: float) -> None:
        self.began_s = began_s
        self.stalled_s = stalled_s
        self.answer: bytes | None = None
        self.done = False


class BrokersEnd:
    """One connection as its broker sees it."""

    def __init__(self, wire: Wire, host: "KafkaHost") -> None:
        self._wire = wire
        self._host = host
        self._identity = Connection(host.server)
        """What handlers know a client by. No bytes go through it."""
        self._unread = bytearray()
        self._slots: deque[_Slot] = deque()
        self.tasks: dict[asyncio.Future[Answer], None] = {}
        self._closed = False
        host.connected[self] = None

    def feed(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._unread[:SIZE_BYTES], "big")
            if len(self._unread) < end or self._closed or not self._host.started:
                return
            frame = bytes(self._unread[SIZE_BYTES:end])
            del self._unread[:end]
            self._begin(frame)

    def close(self) -> None:
        """Nobody is there to hear an answer: what is under way is cancelled."""
        if self._closed:
            return
        self._closed = True
        self._host.connected.pop(self, None)
        self._wire.broken_off()
        for task in self.tasks:
            task.cancel()

    def _begin(self, frame: bytes) -> None:
        """In the order of their frames; some are done without a task."""
        loop = asyncio.get_running_loop()
        slot = _Slot(loop.time(), self._host.machine.stalled_s)
        try:
            work = self._host.dispatcher.handle(self._identity, frame)
        except CloseConnection:
            self.close()
            return
        self._slots.append(slot)
        task = work if isinstance(work, asyncio.Future) else loop.create_task(work, name="kafka.request")
        self.tasks[task] = None
        task.add_done_callback(lambda done: self._settle(slot, done))

    def _settle(self, slot: _Slot, task: "asyncio.Future[Answer]") -> None:
        del self.tasks[task]
        self._check_time(slot)
        if task.cancelled():
            return  # the client has left
        if isinstance(task.exception(), CloseConnection):
            self._host.world.tally["kafka connections closed by a broker"] += 1
            self.close()
            return
        answer = task.result()
        slot.answer = None if answer is None else as_bytes(answer)
        slot.done = True
        while self._slots and self._slots[0].done:
            first = self._slots.popleft()
            if first.answer is not None and not self._closed:
                self._wire.answered(first.answer)

    def _check_time(self, slot: _Slot) -> None:
        """Every request ends in time, apart from the time in which the machine stood still."""
        machine, world = self._host.machine, self._host.world
        took_s = asyncio.get_running_loop().time() - slot.began_s - (machine.stalled_s - slot.stalled_s)
        if machine.alive and took_s > WORK_S_MAX:
            world.witness.accuse("every wait ends", f"a request to {self._host.name} took {took_s:.0f} s")
