"""Base class of clients of coordinators: finds the coordinator, and finds it again after an error or a timeout."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.host import KafkaHost
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.kafka.response_checker import ResponseChecker
from tests.simulation.world import World

LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TIMED_OUT = 14, 15, 16, 7
COORDINATOR_RETRIED = (LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TIMED_OUT)


class Kind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class TopicPartition(NamedTuple):
    """A partition by topic name."""

    topic: str
    number: int
    topic_id: str | None = None
    """None: the topic that has the name now."""


class CoordinatorClient(Client):
    def __init__(self, world: World, checker: ResponseChecker, name: str) -> None:
        super().__init__(world, checker, name)
        self._coordinators: dict[tuple[Kind, str], Link] = {}
        self.versions: dict[int, int] = {}
        """Request key → version, for requests that this client sends in one version only."""

    def link(self) -> Link:
        link = super().link()
        link.versions.update(self.versions)
        return link

    async def request_coordinator(self, kind: Kind, of: str, key: int, values: Mapping[str, Any]) -> Any:
        """Sends one request to the coordinator. Returns its response or LOST."""
        link = await self._coordinator(kind, of)
        response = LOST if link is None else await link.request(key, values)
        if response is LOST:
            self.drop_link(kind, of)
            await self.back_off()
        return response

    async def backed_off(self, kind: Kind, of: str, code: int) -> bool:
        """Backs off if the error concerns only the coordinator's location or state. Returns whether it does."""
        if code not in COORDINATOR_RETRIED:
            return False
        if code != LOADING:
            self.drop_link(kind, of)
        await self.back_off()
        return True

    async def _coordinator(self, kind: Kind, of: str) -> Link | None:
        link = self._coordinators.get((kind, of))
        if link is not None and link.open:
            return link
        response = await self.request(frames.FIND_COORDINATOR, {"key": of, "key_type": kind, "coordinator_keys": (of,)})
        if response is LOST:
            return None
        (coordinator,) = getattr(response, "coordinators", [response])
        host = next((broker for broker in self.world.brokers if broker.name == coordinator.host), None)
        if coordinator.error_code != 0 or host is None:
            return None
        assert isinstance(host, KafkaHost)
        link = Link(host, self._client_id)
        link.versions.update(self.versions)
        self._coordinators[kind, of] = link
        return link

    def drop_link(self, kind: Kind, of: str) -> None:
        if (link := self._coordinators.pop((kind, of), None)) is not None:
            link.close()

    def disconnect(self) -> None:
        super().disconnect()
        for kind, of in list(self._coordinators):
            self.drop_link(kind, of)


def by_topic(tps: Mapping[TopicPartition, Mapping[str, Any]], index: str = "partition_index") -> list[dict[str, Any]]:
    """Groups values of partitions by topic, as most requests have them."""
    topics: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for tp, values in tps.items():
        topics.setdefault((tp.topic, tp.topic_id), []).append({index: tp.number, **values})
    return [
        {"name": name, "topic_id": None if topic_id is None else UUID(hex=topic_id), "partitions": partitions}
        for (name, topic_id), partitions in topics.items()
    ]
