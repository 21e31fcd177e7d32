"""The network between clients, which run outside of machines, and brokers: one `Wire` per connection.

The broker's side replaces `connection.Connection`: it splits the bytes into frames, lets the dispatcher handle them
concurrently, and sends responses in order. Bytes keep their order and have a latency. A wire can be cut at any moment;
bytes in flight are lost. A paused machine receives nothing until it resumes, and then all queued bytes, also from
clients that have disconnected.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.protocol.kafka.network.connection import CloseConnection, Connection, ResponseBytes
from lakestream.records.file_region import as_bytes
from lakestream.testing.fault_injection import log_uniform
from lakestream.testing.simulation import SimLoop

if TYPE_CHECKING:
    from tests.simulation.kafka.host import KafkaHost

DELAY_S = (0.0002, 0.005)
SLOW_S_MAX = 3.0
SIZE_BYTES = 4
WORK_S_MAX = 120.0
"""No request may take a broker longer than this, by the broker's clock. Requests have shorter timeouts."""


class Wire:
    def __init__(self, host: "KafkaHost", on_bytes: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self.open = True
        """Whether it is open for the client."""
        self._host = host
        self._loop = host.world.loop
        self._rng = host.world.rng
        self._on_bytes = on_bytes
        self._on_lost = on_lost
        self._cut = False
        self._to_broker, self._to_client = _Direction(self._loop), _Direction(self._loop)
        self._server: ServerConnection | None = None
        host.wires[self] = None
        self._to_server(host.machine.soon, self._accept)

    # ── the client's side ────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes) -> None:
        if self.open:
            self._to_server(self._arrive, data)

    def close(self) -> None:
        """Closes the connection for the client. Bytes that it sent before still arrive."""
        if self.open:
            self._end()
            self._to_server(self._host.machine.soon, self._client_closed)

    def cut(self) -> None:
        """Cuts the connection and drops all bytes in flight. Each side is notified after its own delay."""
        if self.open:
            self._end()
            self._cut = True
            self._loop.after(self._delay(), self._on_lost)
            self._loop.after(self._delay(), self._host.machine.soon, self._client_closed)

    def disconnected(self) -> None:
        """Closes the connection for the broker. Bytes that it sent before still arrive."""
        if self.open:
            self._end()
            self._to_client_side(self._on_lost)

    def _end(self) -> None:
        self.open = False
        self._host.wires.pop(self, None)

    # ── the broker's side, on its machine ────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        if self._host.serves:
            self._server = ServerConnection(self, self._host)
        else:
            self.disconnected()

    def _arrive(self, data: bytes) -> None:
        if not self._cut:
            self._host.machine.soon(self._feed, data)

    def _feed(self, data: bytes) -> None:
        if self._server is not None and self._host.machine.alive:
            self._server.feed(data)

    def _client_closed(self) -> None:
        if self._server is not None and self._host.machine.alive:
            self._server.close()

    def send_back(self, data: bytes) -> None:
        self._to_client_side(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if not self._cut:
            self._on_bytes(data)

    # ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _to_server(self, do: Callable[..., object], *args: object) -> None:
        self._to_broker.send(self._delay(), do, *args)

    def _to_client_side(self, do: Callable[..., object], *args: object) -> None:
        self._to_client.send(self._delay(), do, *args)

    def _delay(self) -> float:
        slow = self._rng.random() < self._host.world.faults.slow / 4
        return log_uniform(self._rng, DELAY_S[0], SLOW_S_MAX if slow else DELAY_S[1])


class _Direction:
    """One direction of a wire: keeps the order of bytes."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._arrives_s = 0.0
        self._in_flight: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def send(self, delay_s: float, do: Callable[..., object], *args: object) -> None:
        self._arrives_s = max(self._arrives_s, self._loop.now + delay_s)
        self._in_flight.append((do, args))
        self._loop.after(self._arrives_s - self._loop.now, self._arrive)  # each timer delivers the oldest entry

    def _arrive(self) -> None:
        do, args = self._in_flight.popleft()
        do(*args)


class _Slot:
    """Position of a response in the order of responses."""

    def __init__(self, began_s: float, stalled_s: float) -> None:
        self.began_s = began_s
        self.stalled_s = stalled_s
        self.response: bytes | None = None
        self.done = False


class ServerConnection:
    """The broker's side of a connection."""

    def __init__(self, wire: Wire, host: "KafkaHost") -> None:
        self._wire = wire
        self._host = host
        self._identity = Connection(host.server)
        """The connection object that handlers use to identify the client. No bytes pass through it."""
        self._unread = bytearray()
        self._slots: deque[_Slot] = deque()
        self.tasks: dict[asyncio.Future[ResponseBytes], None] = {}
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
        """Closes the connection and cancels pending requests, because no client can receive their responses."""
        if self._closed:
            return
        self._closed = True
        self._host.connected.pop(self, None)
        self._wire.disconnected()
        for task in self.tasks:
            task.cancel()

    def _begin(self, frame: bytes) -> None:
        """Begins to handle a request, in the order of frames. Some requests complete without a task."""
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
        task.add_done_callback(lambda done: self._complete(slot, done))

    def _complete(self, slot: _Slot, task: "asyncio.Future[ResponseBytes]") -> None:
        del self.tasks[task]
        self._check_time(slot)
        if task.cancelled():
            return  # the client has disconnected
        if isinstance(task.exception(), CloseConnection):
            self._host.world.tally["kafka connections closed by a broker"] += 1
            self.close()
            return
        response = task.result()
        slot.response = None if response is None else as_bytes(response)
        slot.done = True
        while self._slots and self._slots[0].done:
            first = self._slots.popleft()
            if first.response is not None and not self._closed:
                self._wire.send_back(first.response)

    def _check_time(self, slot: _Slot) -> None:
        """Checks that a request ended in time. Pauses of the machine do not count."""
        machine, world = self._host.machine, self._host.world
        took_s = asyncio.get_running_loop().time() - slot.began_s - (machine.stalled_s - slot.stalled_s)
        if machine.alive and took_s > WORK_S_MAX:
            world.oracle.report("requests end in time", f"a request to {self._host.name} took {took_s:.0f} s")
