"""Connections of Kafka clients: bytes in, requests out; answers in, bytes out.

Before: a socket.  After: dispatch.py, which works on one request and gives its answer; outlet.py takes it out.

Requests of one connection are worked on in parallel and answered in the order in which they came. Everything is
bounded: bytes in flight per connection and in all, connections per address and in all, the size of a request, the time
a frame may take to arrive, idle time, and the patience with a client that does not read. What goes wrong with one
connection closes that one, with one log line.
"""

import asyncio
import contextlib
import ctypes
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from lakestream.filed import Piece
from lakestream.model import KiB, MiB
from lakestream.protocol.kafka.complaints import Complaints
from lakestream.protocol.kafka.outlet import Outlet

log = logging.getLogger(__name__)

SIZE_BYTES: Final = 4
CHUNK_BYTES: Final = 64 * KiB
ROOM_BYTES_MIN: Final = 1 * MiB
ROOM_GROWTH: Final = 4
"""A large request gets room as its bytes arrive: what a client only announces costs nothing, and most never grow."""

_new_bytearray: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)

Answer: TypeAlias = list[Piece] | None
"""The response's bytes, its size in front; None: nothing is said (produce without acks)."""


class CloseConnection(Exception):
    """The request cannot be answered in its own words: close, saying why in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    request_bytes_max: int = 100 * MiB
    connection_bytes_max: int = 64 * MiB  # requests under way and answers not yet taken, of one connection
    broker_bytes_max: int = 512 * MiB  # the same, of all; large requests only arrive while they fit in here too
    requests_max: int = 2_000  # under way on one connection: a flush to a bucket answers very many small ones together
    connections_max: int = 10_000
    connections_per_address_max: int = 2_000
    idle_ms_max: int = 10 * 60 * 1000
    frame_ms_max: int = 60 * 1000  # from the first byte of a request to its last
    stalled_ms_max: int = 5 * 1000  # without a byte of a large request, while others wait for room
    unread_ms_max: int = 60 * 1000  # a client that takes nothing for so long is gone
    stop_ms_max: int = 30 * 1000


Work: TypeAlias = "Coroutine[Any, Any, Answer] | asyncio.Future[Answer]"
Handle: TypeAlias = Callable[["Connection", bytes | memoryview], Work]


class KafkaServer:
    """Listens, and knows its connections."""

    def __init__(self, settings: ServerSettings) -> None:
        self.handle: Handle = _refuse
        self.settings = settings
        self.bytes_in_flight = 0
        self.connections: dict[Connection, None] = {}
        self.per_address: Counter[str] = Counter()
        self.refused = 0
        self.complaints = Complaints()
        self.waiting: dict[Connection, None] = {}  # paused because the broker as a whole is full
        self.arriving: dict[Connection, None] = {}  # amid a large request, oldest first
        self.arriving_bytes = 0
        self.waiting_for_room: dict[Connection, None] = {}  # those of them that are paused
        self._server: asyncio.Server | None = None
        self._patrol: asyncio.Task[None] | None = None

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the port, and let nobody in yet; returns which, since port 0 lets the system choose."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024, start_serving=False)
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def serve(self, handle: Handle) -> None:
        assert self._server is not None, "bind first"
        self.handle = handle
        await self._server.start_serving()
        self._patrol = asyncio.get_running_loop().create_task(self._look_after(), name="kafka.patrol")

    async def stop(self) -> None:
        """Take nothing more, answer what was taken, close."""
        if self._server is not None:
            self._server.close()
        if self._patrol is not None:
            self._patrol.cancel()
        for connection in self.connections:
            connection.take_no_more()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_ms_max / 1000):
                for connection in list(self.connections):
                    await connection.wait_answered()
        for connection in list(self.connections):
            connection.close("the broker stops", level=logging.DEBUG)

    def unanswered(self) -> list[tuple[str, int]]:
        """Clients that wait, and how many requests of each have no answer yet."""
        return [(one.peer, one.unanswered) for one in self.connections if one.unanswered]

    def let_in(self, connection: "Connection", address: str) -> str | None:
        """Why it may not come in, if so."""
        if len(self.connections) >= self.settings.connections_max:
            return f"{self.settings.connections_max} connections are open, which is the most"
        if self.per_address[address] >= self.settings.connections_per_address_max:
            return f"{self.settings.connections_per_address_max} connections from {address} are open, which is the most"
        self.connections[connection] = None
        self.per_address[address] += 1
        return None

    def forget(self, connection: "Connection", address: str) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.per_address[address] -= 1
            if not self.per_address[address]:
                del self.per_address[address]
        for kept in (self.waiting, self.waiting_for_room, self.arriving):
            kept.pop(connection, None)

    def take(self, size: int) -> None:
        self.bytes_in_flight += size

    def give_back(self, size: int) -> None:
        self.bytes_in_flight -= size
        self.let_read_on()

    @property
    def is_full(self) -> bool:
        return self.bytes_in_flight >= self.settings.broker_bytes_max

    @property
    def has_room(self) -> bool:
        """For more of large requests. Small ones do not wait for it, so nobody can stop them with half a large one."""
        return self.bytes_in_flight + self.arriving_bytes < self.settings.broker_bytes_max

    def gets_room(self, connection: "Connection") -> bool:
        """Without room, the oldest large request still goes on arriving: when it ends, there is some."""
        return self.has_room or next(iter(self.arriving)) is connection

    def let_read_on(self) -> None:
        while self.waiting and not self.is_full:
            _first_of(self.waiting).read_on()
        while self.waiting_for_room and self.has_room:
            _first_of(self.waiting_for_room).read_on()
        if self.waiting_for_room and self.arriving:
            next(iter(self.arriving)).read_on()

    async def _look_after(self) -> None:
        """Close what was idle, half-sent or unread for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self.settings.idle_ms_max / 4000))
            now = loop.time()
            self.complaints.tell(now)
            for connection in list(self.connections):
                if (reason := connection.overdue(now)) is not None:
                    connection.close(reason, level=logging.DEBUG if reason == IDLE else logging.WARNING)


def _first_of(waiting: "dict[Connection, None]") -> "Connection":
    """Taken out; it comes in again if it still has to wait."""
    connection = next(iter(waiting))
    del waiting[connection]
    return connection


def _refuse(connection: "Connection", frame: bytes | memoryview) -> Work:
    raise CloseConnection("the broker is not ready")


IDLE: Final = "idle"
EOF_TURNS: Final = 3
"""Of the loop, until the end of a connection is heard that came right behind a request."""


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("answer", "connection", "done", "size")

    def __init__(self, connection: "Connection", size: int) -> None:
        self.connection = connection
        self.size = size
        self.answer: Answer = None
        self.done = False

    def settle(self, work: "asyncio.Future[Answer]") -> None:
        self.connection.settle(self, work)


class Turn:
    """A lock that tells whether anybody has it or waits for it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users = 0

    @property
    def taken(self) -> bool:
        return self._users > 0

    async def __aenter__(self) -> None:
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._users -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._users -= 1


class Connection(asyncio.BufferedProtocol):
    """One client. Small requests are cut out of one buffer; a large one is read straight into a buffer of its own."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._settings = server.settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self.peer = ""
        self.state: dict[str, object] = {}
        """What handlers remember of this client."""
        self.produce_turn = Turn()
        """Produce requests place their batches one after another; then they wait together."""
        self.transaction_turn = Turn()
        """What a producer asks of its transactions' coordinator is done in the order in which it was asked: some abort
        while they still wait to hear that partitions were added."""
        self._chunk = bytearray(CHUNK_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None  # a large request that is arriving
        self._frame_size = 0  # 0: there is none
        self._frame_filled = 0
        self._room = 0  # how much of it may be held, which is less than its size at first
        self._frame_since: float | None = None
        self._slots: deque[_Slot] = deque()
        self._bytes = 0
        self._tasks: set[asyncio.Future[Answer]] = set()
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._outlet: Outlet | None = None
        self._paused = False
        self._stopping = False
        self._active_at = self._loop.time()
        self._unread_since: float | None = None

    # ── the transport calls ──────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass of it
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("local", 0)
        self.address, self.peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        sock = transport.get_extra_info("socket")
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outlet = Outlet(sock.fileno(), self._loop, self._sent, self._lost)
        if (reason := self._server.let_in(self, self.address)) is not None:
            self._server.refused += 1
            self.close(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self, self.address)
        self._transport = None
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None  # each holds the other: the two would wait for the collector, with all that they hold
        for task in self._tasks:
            task.cancel()
        self._server.arriving_bytes -= self._room
        self._server.give_back(self._bytes)
        self._bytes = self._room = self._frame_size = 0
        self._frame = None
        self._all_answered.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._frame_size:
            return memoryview(self._chunk)[self._filled :]
        return memoryview(self._frame_with_room())[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        if self._frame is None:
            self._filled += nbytes
            self._cut_out()
            return
        self._frame_filled += nbytes
        if self._frame_filled == self._frame_size:
            self._begin_arrived(self._frame)
        elif self._frame_filled == self._room:
            self._ask_for_room()

    def eof_received(self) -> bool:
        return False

    async def still_there(self) -> None:
        """For what only a client that still waits for its answer may be served. When this broker was away, a request
        and the end of its connection arrive together, and the client has asked another one in the meantime: what
        belongs to a lost connection is cancelled here."""
        for _ in range(EOF_TURNS):
            await asyncio.sleep(0)

    # ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_out(self) -> None:
        """Begin every whole request in the chunk; what is left of it waits at its front for the rest."""
        at, view = 0, memoryview(self._chunk)
        while self._filled - at >= SIZE_BYTES and self._transport is not None and not self._paused:
            size = int.from_bytes(view[at : at + SIZE_BYTES], "big", signed=True)
            if not 0 < size <= self._settings.request_bytes_max:
                self.close(f"sent a request of {size} bytes; 1 to {self._settings.request_bytes_max} are taken")
                return
            start, end = at + SIZE_BYTES, at + SIZE_BYTES + size
            if end > self._filled:
                if size > CHUNK_BYTES - SIZE_BYTES:
                    self._frame_size, at = size, start
                break
            self._begin(bytes(view[start:end]))
            at = end
        rest = self._filled - at
        view[:rest] = view[at : self._filled]
        self._filled = rest
        if rest == 0 and not self._frame_size:
            self._frame_since = None
        elif at > 0 or self._frame_since is None:
            self._frame_since = self._active_at
        if self._frame_size:
            self._frame_filled, self._filled = rest, 0
            self._server.arriving[self] = None
            self._ask_for_room()

    def _ask_for_room(self) -> None:
        """For more of a large request. If there is none, `read_on` asks again."""
        if self._server.gets_room(self):
            room = min(self._frame_size, max(ROOM_BYTES_MIN, self._room * ROOM_GROWTH))
            self._server.arriving_bytes += room - self._room
            self._room = room
        else:
            self._server.waiting_for_room[self] = None
            self._pause()

    def _frame_with_room(self) -> bytearray:
        """A large request is read where it will stay, from what the chunk had of it on."""
        if self._frame is None or len(self._frame) < self._room:
            arrived = self._chunk if self._frame is None else self._frame
            self._frame = _unfilled(self._room)
            self._frame[: self._frame_filled] = memoryview(arrived)[: self._frame_filled]
        return self._frame

    def _begin_arrived(self, frame: bytearray) -> None:
        self._frame = self._frame_since = None
        self._frame_size = 0
        del self._server.arriving[self]
        self._server.arriving_bytes -= self._room  # it counts as under way from now on
        self._room = 0
        self._begin(memoryview(frame).toreadonly())
        self._server.let_read_on()

    def _begin(self, frame: bytes | memoryview) -> None:
        """Work on a request; its answer has its place from now on."""
        if self._stopping or self._transport is None:
            return
        try:
            work = self._server.handle(self, frame)
        except Exception as error:
            self._fail(error)
            return
        slot = _Slot(self, len(frame))
        self._slots.append(slot)
        self._all_answered.clear()
        self._bytes += slot.size
        self._server.take(slot.size)
        task = work if isinstance(work, asyncio.Future) else self._loop.create_task(work, name="kafka.request")
        self._tasks.add(task)
        task.add_done_callback(slot.settle)
        if self._server.is_full:
            self._server.waiting[self] = None
            self._pause()
        elif self._is_full:
            self._pause()

    def settle(self, slot: "_Slot", task: asyncio.Future[Answer]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return  # the client has left
        error = task.exception()
        if error is None:
            slot.answer = task.result()
            slot.done = True
            self._answer()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, CloseConnection):
            self.close(str(error))
        else:
            if self._may_say("kafka.request_failed"):
                log.error("kafka.request_failed client=%s", self.peer, exc_info=error)
            self.close("a request failed; see above", level=logging.DEBUG)

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self) -> None:
        """Write what is next in order."""
        ready: list[Piece] = []
        freed = 0
        while self._slots and self._slots[0].done:
            slot = self._slots.popleft()
            freed += slot.size
            if slot.answer is not None:
                ready += slot.answer
        if self._transport is None or self._outlet is None:
            return  # all was given back when the connection was lost
        if ready:
            self._active_at = self._loop.time()
            if self._unread_since is None:
                self._unread_since = self._active_at
            self._outlet.send(ready)
        self._bytes -= freed
        self._server.give_back(freed)
        self.read_on()
        self._note_if_all_answered()

    def _sent(self) -> None:
        """The client took some of what waits for it, or all."""
        self._active_at = self._loop.time()
        self._unread_since = self._active_at if self._unread_bytes else None
        self.read_on()
        self._note_if_all_answered()

    def _lost(self, why: str) -> None:
        self.close(f"cannot be written to: {why}", level=logging.DEBUG)

    @property
    def unanswered(self) -> int:
        return len(self._slots)

    def _note_if_all_answered(self) -> None:
        if not self._slots and not self._unread_bytes:
            self._all_answered.set()

    @property
    def _unread_bytes(self) -> int:
        return 0 if self._outlet is None else self._outlet.size

    # ── back-pressure and the end ────────────────────────────────────────────────────────────────────────────────────

    async def wait_answered(self) -> None:
        await self._all_answered.wait()

    @property
    def _is_full(self) -> bool:
        bytes_max = self._settings.connection_bytes_max
        return (
            self._bytes >= bytes_max
            or self._unread_bytes >= bytes_max // 4
            or len(self._slots) >= self._settings.requests_max
        )

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Read again, if nothing else stands against it."""
        if not self._paused or self._transport is None or self._stopping:
            return
        if self._is_full:
            return
        if self._frame_size:
            if not self._server.gets_room(self):
                self._server.waiting_for_room[self] = None
                return
            if self._frame_filled >= self._room:
                self._ask_for_room()
        elif self._server.is_full:
            self._server.waiting[self] = None
            return
        self._paused = False
        self._active_at = self._loop.time()
        self._transport.resume_reading()
        if self._filled:
            self._cut_out()  # what had arrived before it paused

    def take_no_more(self) -> None:
        self._stopping = True
        self._pause()

    def overdue(self, now: float) -> str | None:
        silent_ms = (now - self._active_at) * 1000
        if self._unread_since is not None and (now - self._unread_since) * 1000 > self._settings.unread_ms_max:
            return f"read nothing for {self._settings.unread_ms_max / 1000:g} s"
        if self._paused:
            return None  # it is we who make it wait
        if self._frame_size and not self._server.has_room and silent_ms > self._settings.stalled_ms_max:
            return "sent half a request, and no more, while others waited for room"
        if self._frame_since is not None and (now - self._frame_since) * 1000 > self._settings.frame_ms_max:
            return f"sent half a request {self._settings.frame_ms_max / 1000:g} s ago, and no more"
        if not self._slots and silent_ms > self._settings.idle_ms_max:
            return IDLE
        return None

    def close(self, reason: str, level: int = logging.WARNING) -> None:
        if self._transport is None:
            return
        if level < logging.WARNING or self._may_say("kafka.closed"):
            log.log(level, "kafka.closed client=%s reason=%s", self.peer, reason)
        if reason == IDLE or self._stopping:
            self._transport.close()
        else:
            self._transport.abort()

    def _may_say(self, kind: str) -> bool:
        return self._server.complaints.allow(kind, self.address, self._loop.time())


def _unfilled(size: int) -> bytearray:
    """Room for what comes, with anything in it: `bytearray(size)` would fill it with zeros first, which costs more than
    to check the checksum of what comes."""
    room: bytearray = _new_bytearray(None, size)
    return room
