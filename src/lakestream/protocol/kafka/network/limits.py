"""Limits of a broker over all of its Kafka connections: their number, and the bytes of their requests.

After: connection.py, which reads only while these limits allow it.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from lakestream.aio.log_limiter import ClientLogLimiter
from lakestream.model import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    request_bytes_max: int = 100 * MiB
    connection_bytes_max: int = 64 * MiB  # requests in flight and unsent responses, of one connection
    broker_bytes_max: int = 512 * MiB  # the same, of all; large requests only arrive while they fit in here too
    requests_max: int = 2_000  # in flight on one connection: one flush to a bucket completes very many small ones
    connections_max: int = 10_000
    connections_per_address_max: int = 2_000
    idle_ms_max: int = 10 * 60 * 1000
    frame_ms_max: int = 60 * 1000  # from the first byte of a request to its last
    stalled_ms_max: int = 5 * 1000  # without a byte of a large request, while other connections wait for buffer space
    unread_ms_max: int = 60 * 1000  # a client that reads nothing for this time is disconnected
    stop_ms_max: int = 30 * 1000


class PausedConnection(Protocol):
    def resume_reading(self) -> None:
        """Reads again if all limits allow it, else waits again."""


ConnectionT = TypeVar("ConnectionT", bound=PausedConnection)


class ConnectionLimits(Generic[ConnectionT]):
    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.bytes_in_flight = 0
        self.connections: dict[ConnectionT, None] = {}
        self.per_address: Counter[str] = Counter()
        self.refused = 0
        self.log_limiter = ClientLogLimiter()
        self.waiting: dict[ConnectionT, None] = {}  # paused because the broker as a whole is full
        self.arriving: dict[ConnectionT, None] = {}  # within a large request, oldest first
        self.arriving_bytes = 0
        self.waiting_for_space: dict[ConnectionT, None] = {}  # the connections in `arriving` that are paused
        self.outliving: set[asyncio.Future[Any]] = set()  # requests whose connection the client has closed

    def register(self, connection: ConnectionT, address: str) -> str | None:
        """Adds a connection. Returns the reason if it must be refused."""
        if len(self.connections) >= self.settings.connections_max:
            return f"{self.settings.connections_max} connections are open, which is the limit"
        if self.per_address[address] >= self.settings.connections_per_address_max:
            return f"{self.settings.connections_per_address_max} connections from {address} are open: limit reached"
        self.connections[connection] = None
        self.per_address[address] += 1
        return None

    def remove(self, connection: ConnectionT, address: str) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.per_address[address] -= 1
            if not self.per_address[address]:
                del self.per_address[address]
        for connections in (self.waiting, self.waiting_for_space, self.arriving):
            connections.pop(connection, None)

    def acquire(self, size: int) -> None:
        self.bytes_in_flight += size

    def release(self, size: int) -> None:
        self.bytes_in_flight -= size
        self.resume_waiting()

    @property
    def is_full(self) -> bool:
        return self.bytes_in_flight >= self.settings.broker_bytes_max

    @property
    def has_space(self) -> bool:
        """Returns whether more bytes of large requests may arrive.

        Small requests do not count arriving bytes: a client could block them with an incomplete large request.
        """
        return self.bytes_in_flight + self.arriving_bytes < self.settings.broker_bytes_max

    def may_buffer(self, connection: ConnectionT) -> bool:
        """Returns whether a large request may buffer more bytes.

        Without space, only the oldest large request may: its completion frees space.
        """
        return self.has_space or next(iter(self.arriving)) is connection

    def resume_waiting(self) -> None:
        while self.waiting and not self.is_full:
            _pop_first(self.waiting).resume_reading()
        while self.waiting_for_space and self.has_space:
            _pop_first(self.waiting_for_space).resume_reading()
        if self.waiting_for_space and self.arriving:
            next(iter(self.arriving)).resume_reading()


def _pop_first(connections: dict[ConnectionT, None]) -> ConnectionT:
    connection = next(iter(connections))
    del connections[connection]
    return connection
