"""One connection of a Kafka client: reads requests, and writes their responses in order.

Before: server.py, which accepts it.  After: dispatch.py, which serves a request; socket_writer.py, which writes the
response.

Requests of one connection are served concurrently and answered in the order in which they arrived. Everything is
bounded: bytes in flight per connection and in all, the size of a request, the time a frame may take to arrive, idle
time, and the time for which a client reads nothing. An error of one connection closes that connection, with one log
line.
"""

import asyncio
import contextlib
import ctypes
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeAlias, cast

from lakestream.model import KiB, MiB
from lakestream.protocol.kafka.network.limits import ConnectionLimits
from lakestream.protocol.kafka.network.socket_writer import SocketWriter
from lakestream.records.file_region import BufferOrFile

log = logging.getLogger(__name__)

SIZE_BYTES: Final = 4
CHUNK_BYTES: Final = 64 * KiB
BUFFER_BYTES_MIN: Final = 1 * MiB
BUFFER_GROWTH: Final = 4
"""The buffer of a large request grows as its bytes arrive, so that an announced size alone costs no memory."""

_new_bytearray: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)

ResponseBytes: TypeAlias = list[BufferOrFile] | None
"""A response with its size in front, or None if the client expects none (Produce with acks=0)."""


class CloseConnection(Exception):
    """The request cannot be answered in its protocol version: the broker closes the connection and logs the reason."""


PendingResponse: TypeAlias = "Coroutine[Any, Any, ResponseBytes] | asyncio.Future[ResponseBytes]"
Handle: TypeAlias = Callable[["Connection", bytes | memoryview], PendingResponse]


def refuse(connection: "Connection", frame: bytes | memoryview) -> PendingResponse:
    raise CloseConnection("the broker is not ready")


IDLE: Final = "idle"
EOF_TURNS: Final = 3
"""Iterations of the event loop until the transport reports an end of stream that arrived right behind a request."""


class _Slot:
    """The position of one response in the order of responses."""

    __slots__ = ("connection", "done", "outlives", "response", "size")

    def __init__(self, connection: "Connection", size: int, outlives: bool) -> None:
        self.connection = connection
        self.size = size
        self.outlives = outlives
        self.response: ResponseBytes = None
        self.done = False

    def complete(self, task: "asyncio.Future[ResponseBytes]") -> None:
        self.connection.complete(self, task)


class TrackedLock:
    """A fair lock that can be reserved by a request whose task has not started yet."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users = 0

    @property
    def taken(self) -> bool:
        """Returns whether a request has the lock, waits for it, or has reserved it."""
        return self._users > 0

    def reserve(self) -> None:
        """Makes `taken` true until the `async with reserved()` that must follow has ended."""
        self._users += 1

    @contextlib.asynccontextmanager
    async def reserved(self) -> AsyncIterator[None]:
        try:
            async with self._lock:
                yield
        finally:
            self._users -= 1

    async def __aenter__(self) -> None:
        self.reserve()
        try:
            await self._lock.acquire()
        except BaseException:
            self._users -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._users -= 1


class Connection(asyncio.BufferedProtocol):
    """One client. Small requests are copied out of one buffer; a large one is read directly into its own buffer."""

    def __init__(self, limits: "ConnectionLimits[Connection]", handle: Handle = refuse) -> None:
        self._limits = limits
        self._settings = limits.settings
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self.peer = ""
        self.state: dict[str, object] = {}
        """State that handlers keep for this client."""
        self.produce_lock = TrackedLock()
        """Produce requests submit their batches one request after another, and wait for the offsets concurrently."""
        self.transaction_lock = TrackedLock()
        """Requests of a producer to its transaction coordinator run in their order: some producers abort before they
        have the response to AddPartitionsToTxn."""
        self._chunk = bytearray(CHUNK_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None  # a large request that is arriving
        self._frame_size = 0  # 0: no large request is arriving
        self._frame_filled = 0
        self._frame_space = 0  # bytes of it that may be buffered, at first less than its size
        self._frame_since: float | None = None
        self._slots: deque[_Slot] = deque()
        self._bytes = 0
        self._tasks: dict[asyncio.Future[ResponseBytes], _Slot] = {}
        self._outlives = False
        self._closed_here = False
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._writer: SocketWriter | None = None
        self._paused = False
        self._stopping = False
        self._active_at = self._loop.time()
        self._unread_since: float | None = None

    # ── the transport calls ──────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("local", 0)
        self.address, self.peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        sock = transport.get_extra_info("socket")
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writer = SocketWriter(sock.fileno(), self._loop, self._sent, self._lost)
        if (reason := self._limits.register(self, self.address)) is not None:
            self._limits.refused += 1
            self.close(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.remove(self, self.address)
        self._transport = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None  # a reference cycle: the two would keep their buffers until the next garbage collection
        for task, slot in self._tasks.items():
            if slot.outlives and not self._closed_here:
                self._bytes -= slot.size  # released when the request is complete
                self._limits.outliving.add(task)
            else:
                task.cancel()
        self._limits.arriving_bytes -= self._frame_space
        self._limits.release(self._bytes)
        self._bytes = self._frame_space = self._frame_size = 0
        self._frame = None
        self._all_answered.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._frame_size:
            return memoryview(self._chunk)[self._filled :]
        return memoryview(self._frame_buffer())[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        if self._frame is None:
            self._filled += nbytes
            self._split_frames()
            return
        self._frame_filled += nbytes
        if self._frame_filled == self._frame_size:
            self._begin_large_request(self._frame)
        elif self._frame_filled == self._frame_space:
            self._acquire_space()

    def eof_received(self) -> bool:
        return False

    async def check_connected(self) -> None:
        """Returns if the client is still connected; otherwise the calling request is cancelled here.

        If this broker was paused, a request and the end of its connection arrive together, and the client may have sent
        the request to another broker in the meantime.
        """
        for _ in range(EOF_TURNS):
            await asyncio.sleep(0)

    def outlive(self) -> None:
        """Lets the request that is starting run to its end, even if the client closes the connection before."""
        self._outlives = True

    # ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _split_frames(self) -> None:
        """Starts every complete request in the chunk, and moves the incomplete rest to its front."""
        at, view = 0, memoryview(self._chunk)
        while self._filled - at >= SIZE_BYTES and self._transport is not None and not self._paused:
            size = int.from_bytes(view[at : at + SIZE_BYTES], "big", signed=True)
            if not 0 < size <= self._settings.request_bytes_max:
                self.close(f"sent a request of {size} bytes: 1 to {self._settings.request_bytes_max} are accepted")
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
            self._limits.arriving[self] = None
            self._acquire_space()

    def _acquire_space(self) -> None:
        """Reserves buffer space for more of a large request, or pauses until `resume_reading` finds some."""
        if self._limits.may_buffer(self):
            space = min(self._frame_size, max(BUFFER_BYTES_MIN, self._frame_space * BUFFER_GROWTH))
            self._limits.arriving_bytes += space - self._frame_space
            self._frame_space = space
        else:
            self._limits.waiting_for_space[self] = None
            self._pause()

    def _frame_buffer(self) -> bytearray:
        """Returns the buffer of the large request, with the bytes that have arrived, and space for more."""
        if self._frame is None or len(self._frame) < self._frame_space:
            arrived = self._chunk if self._frame is None else self._frame
            self._frame = _uninitialized(self._frame_space)
            self._frame[: self._frame_filled] = memoryview(arrived)[: self._frame_filled]
        return self._frame

    def _begin_large_request(self, frame: bytearray) -> None:
        self._frame = self._frame_since = None
        self._frame_size = 0
        del self._limits.arriving[self]
        self._limits.arriving_bytes -= self._frame_space  # from now on it counts as in flight
        self._frame_space = 0
        self._begin(memoryview(frame).toreadonly())
        self._limits.resume_waiting()

    def _begin(self, frame: bytes | memoryview) -> None:
        """Starts a request, and reserves the position of its response."""
        if self._stopping or self._transport is None:
            return
        self._outlives = False
        try:
            work = self._handle(self, frame)
        except Exception as error:
            self._fail(error)
            return
        slot = _Slot(self, len(frame), self._outlives)
        self._slots.append(slot)
        self._all_answered.clear()
        self._bytes += slot.size
        self._limits.acquire(slot.size)
        task = work if isinstance(work, asyncio.Future) else self._loop.create_task(work, name="kafka.request")
        self._tasks[task] = slot
        task.add_done_callback(slot.complete)
        if self._limits.is_full:
            self._limits.waiting[self] = None
            self._pause()
        elif self._is_full:
            self._pause()

    def complete(self, slot: "_Slot", task: asyncio.Future[ResponseBytes]) -> None:
        del self._tasks[task]
        if task in self._limits.outliving:
            self._limits.outliving.discard(task)
            self._limits.release(slot.size)
        if task.cancelled():
            # Usually the client has disconnected. Otherwise this and all later requests would never have a response.
            self.close("a request was cancelled")
            return
        error = task.exception()
        if error is None:
            slot.response = task.result()
            slot.done = True
            self._write_responses()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, CloseConnection):
            self.close(str(error))
        else:
            if self._may_log("kafka.request_failed"):
                log.error("kafka.request_failed client=%s", self.peer, exc_info=error)
            self.close("a request failed: see the error above", level=logging.DEBUG)

    # ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write_responses(self) -> None:
        """Writes the responses that are next in order."""
        ready: list[BufferOrFile] = []
        freed = 0
        while self._slots and self._slots[0].done:
            slot = self._slots.popleft()
            freed += slot.size
            if slot.response is not None:
                ready += slot.response
        if self._transport is None or self._writer is None:
            return  # connection_lost() has released all bytes
        if ready:
            self._active_at = self._loop.time()
            if self._unread_since is None:
                self._unread_since = self._active_at
            self._writer.send(ready)
        self._bytes -= freed
        self._limits.release(freed)
        self.resume_reading()
        self._signal_if_all_answered()

    def _sent(self) -> None:
        """Called when the client has read some or all of the unsent bytes."""
        self._active_at = self._loop.time()
        self._unread_since = self._active_at if self._unread_bytes else None
        self.resume_reading()
        self._signal_if_all_answered()

    def _lost(self, reason: str) -> None:
        self.close(f"write failed: {reason}", level=logging.DEBUG)

    @property
    def unanswered(self) -> int:
        return len(self._slots)

    def _signal_if_all_answered(self) -> None:
        if not self._slots and not self._unread_bytes:
            self._all_answered.set()

    @property
    def _unread_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.size

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

    def resume_reading(self) -> None:
        """Reads again if all limits allow it, else waits again."""
        if not self._paused or self._transport is None or self._stopping:
            return
        if self._is_full:
            return
        if self._frame_size:
            if not self._limits.may_buffer(self):
                self._limits.waiting_for_space[self] = None
                return
            if self._frame_filled >= self._frame_space:
                self._acquire_space()
        elif self._limits.is_full:
            self._limits.waiting[self] = None
            return
        self._paused = False
        self._active_at = self._loop.time()
        self._transport.resume_reading()
        if self._filled:
            self._split_frames()  # requests that arrived before the pause

    def stop_reading(self) -> None:
        self._stopping = True
        self._pause()

    def overdue(self, now: float) -> str | None:
        silent_ms = (now - self._active_at) * 1000
        if self._unread_since is not None and (now - self._unread_since) * 1000 > self._settings.unread_ms_max:
            return f"read nothing for {self._settings.unread_ms_max / 1000:g} s"
        if self._paused:
            return None  # the broker itself makes the client wait
        if self._frame_size and not self._limits.has_space and silent_ms > self._settings.stalled_ms_max:
            return "stopped within a request, while other connections waited for buffer space"
        if self._frame_since is not None and (now - self._frame_since) * 1000 > self._settings.frame_ms_max:
            return f"sent no complete request within {self._settings.frame_ms_max / 1000:g} s of its first byte"
        if not self._slots and silent_ms > self._settings.idle_ms_max:
            return IDLE
        return None

    def close(self, reason: str, level: int = logging.WARNING) -> None:
        if self._transport is None:
            return
        self._closed_here = True
        if level < logging.WARNING or self._may_log("kafka.closed"):
            log.log(level, "kafka.closed client=%s reason=%s", self.peer, reason)
        if reason == IDLE or self._stopping:
            self._transport.close()
        else:
            self._transport.abort()

    def _may_log(self, kind: str) -> bool:
        return self._limits.log_limiter.allow(kind, self.address, self._loop.time())


def _uninitialized(size: int) -> bytearray:
    """Returns a buffer with arbitrary content: `bytearray(size)` would fill it with zeros first, which costs more CPU
    than the checksum of the records that it receives."""
    buffer: bytearray = _new_bytearray(None, size)
    return buffer
