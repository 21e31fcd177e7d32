"""A client's connection to one broker: requests in flight, answers in order, and a limit to its patience."""

import asyncio
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.kafka import frames
from tests.simulation.kafka.wire import Wire

from lakestream.testing.faults import spread

if TYPE_CHECKING:
    from tests.simulation.kafka.host import KafkaHost

REQUEST_S = 40.0
"""Longer than a broker may take for an append; then a client thinks that it is gone."""


class Silence(Enum):
    LOST = "the connection was lost before the answer came: nobody knows what became of the request"


LOST = Silence.LOST


class _Asked(NamedTuple):
    correlation_id: int
    key: int
    version: int
    answer: "asyncio.Future[Any]"
    patience: asyncio.TimerHandle


class Link:
    def __init__(self, host: "KafkaHost", client_id: str) -> None:
        self.host = host
        self._world = host.world
        self._client_id = client_id
        self._asked: deque[_Asked] = deque()
        self._bytes = bytearray()
        self._correlation_id = self._world.luck.randint(-100, 2**31 - 1_000_000)
        self._wire = Wire(host, self._receive, self._lost)
        self.versions = {key: self._world.luck.choice(versions) for key, versions in frames.VERSIONS.items()}

    @property
    def open(self) -> bool:
        return self._wire.open

    async def ask(self, key: int, values: Mapping[str, Any], patience_s: float = REQUEST_S) -> Any:
        return await self.begin(key, values, patience_s)

    def begin(self, key: int, values: Mapping[str, Any], patience_s: float = REQUEST_S) -> "asyncio.Future[Any]":
        """Send a request; its answer, or LOST, comes when it comes. Whoever waits for it is not disturbed by others."""
        loop, world = self._world.loop, self._world
        answer: asyncio.Future[Any] = loop.create_future()
        if not self._wire.open:
            loop.after(0.01, _settle, answer, LOST)
            return answer
        self.send(key, values)
        patience = loop.after(patience_s, self._lose_patience)
        self._asked.append(_Asked(self._correlation_id, key, self.versions[key], answer, patience))
        world.tally["kafka requests"] += 1
        if world.luck.random() < (0.0 if world.healed else world.mood.cuts):
            loop.after(spread(world.luck, 0.0005, 2.0), self._wire.cut)
        return answer

    def send(self, key: int, values: Mapping[str, Any]) -> None:
        """Without waiting for an answer: for requests that have none."""
        self._correlation_id += 1
        frame = frames.request(key, self.versions[key], self._correlation_id, self._client_id, values)
        self._world.loop.trace.note(self._world.loop.now, self._client_id, "asks", self.host.name, key)
        self._wire.send(frame)

    def close(self) -> None:
        self._wire.close()
        self._lost()

    def _lose_patience(self) -> None:
        self._world.tally["kafka requests without an answer"] += 1
        self.close()

    def _lost(self) -> None:
        asked, self._asked = self._asked, deque()
        for one in asked:
            one.patience.cancel()
            _settle(one.answer, LOST)

    def _receive(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= 4:
            end = 4 + int.from_bytes(self._bytes[:4], "big")
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[4:end])
            del self._bytes[:end]
            self._hear(frame)

    def _hear(self, frame: bytes) -> None:
        if not self._asked:
            return  # it hung up meanwhile
        one = self._asked.popleft()
        one.patience.cancel()
        if frames.correlation_of(frame) != one.correlation_id:
            self._world.witness.accuse(
                "answers in order",
                f"{self.host.name} answered {frames.correlation_of(frame)} where {one.correlation_id} was asked",
            )
            self.close()
            _settle(one.answer, LOST)
            return
        _settle(one.answer, frames.answer(one.key, one.version, frame))


def _settle(answer: "asyncio.Future[Any]", said: Any) -> None:
    if not answer.done():
        answer.set_result(said)
