"""A client's connection to one broker: requests in flight, responses in order, and a request timeout."""

import asyncio
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.kafka import frames
from tests.simulation.kafka.wire import Wire

from lakestream.testing.fault_injection import log_uniform

if TYPE_CHECKING:
    from tests.simulation.kafka.host import KafkaHost

REQUEST_S = 40.0
"""Request timeout of clients, longer than a broker may take for an append."""


class NoResponse(Enum):
    LOST = "connection lost before the response: the result of the request is unknown"


LOST = NoResponse.LOST


class _PendingRequest(NamedTuple):
    correlation_id: int
    key: int
    version: int
    response: "asyncio.Future[Any]"
    timeout: asyncio.TimerHandle


class Link:
    def __init__(self, host: "KafkaHost", client_id: str) -> None:
        self.host = host
        self._world = host.world
        self._client_id = client_id
        self._pending: deque[_PendingRequest] = deque()
        self._bytes = bytearray()
        self._correlation_id = self._world.rng.randint(-100, 2**31 - 1_000_000)
        self._wire = Wire(host, self._receive, self._connection_lost)
        self.versions = {key: self._world.rng.choice(versions) for key, versions in frames.VERSIONS.items()}

    @property
    def open(self) -> bool:
        return self._wire.open

    async def request(self, key: int, values: Mapping[str, Any], timeout_s: float = REQUEST_S) -> Any:
        return await self.begin(key, values, timeout_s)

    def begin(self, key: int, values: Mapping[str, Any], timeout_s: float = REQUEST_S) -> "asyncio.Future[Any]":
        """Sends a request. The future returns its response or LOST."""
        loop, world = self._world.loop, self._world
        response: asyncio.Future[Any] = loop.create_future()
        if not self._wire.open:
            loop.after(0.01, _resolve, response, LOST)
            return response
        self.send(key, values)
        timeout = loop.after(timeout_s, self._time_out)
        self._pending.append(_PendingRequest(self._correlation_id, key, self.versions[key], response, timeout))
        world.tally["kafka requests"] += 1
        if world.rng.random() < (0.0 if world.healed else world.scenario.cuts):
            loop.after(log_uniform(world.rng, 0.0005, 2.0), self._wire.cut)
        return response

    def send(self, key: int, values: Mapping[str, Any]) -> None:
        """Sends a request without waiting for a response."""
        self._correlation_id += 1
        frame = frames.request(key, self.versions[key], self._correlation_id, self._client_id, values)
        self._world.loop.trace.note(self._world.loop.now, self._client_id, "requests", self.host.name, key)
        self._wire.send(frame)

    def close(self) -> None:
        self._wire.close()
        self._connection_lost()

    def _time_out(self) -> None:
        self._world.tally["kafka requests without a response"] += 1
        self.close()

    def _connection_lost(self) -> None:
        pending, self._pending = self._pending, deque()
        for request in pending:
            request.timeout.cancel()
            _resolve(request.response, LOST)

    def _receive(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= 4:
            end = 4 + int.from_bytes(self._bytes[:4], "big")
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[4:end])
            del self._bytes[:end]
            self._receive_frame(frame)

    def _receive_frame(self, frame: bytes) -> None:
        if not self._pending:
            return  # the client has closed the connection
        request = self._pending.popleft()
        request.timeout.cancel()
        if frames.correlation_of(frame) != request.correlation_id:
            self._world.oracle.report(
                "responses are in order",
                f"{self.host.name} answered {frames.correlation_of(frame)}, not {request.correlation_id}",
            )
            self.close()
            _resolve(request.response, LOST)
            return
        _resolve(request.response, frames.response(request.key, request.version, frame))


def _resolve(response: "asyncio.Future[Any]", result: Any) -> None:
    if not response.done():
        response.set_result(result)
