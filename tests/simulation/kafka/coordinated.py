"""What clients of coordinators do: find out who coordinates, ask there, find out again when it is another one."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.host import KafkaHost
from tests.simulation.kafka.judge import Judge
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.world import World

LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TIMED_OUT = 14, 15, 16, 7
COORDINATOR_RETRIED = (LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TIMED_OUT)


class Kind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Place(NamedTuple):
    """A partition as clients name it."""

    topic: str
    number: int
    topic_id: str | None = None
    """None: of whatever topic has the name."""


class Coordinated(Client):
    def __init__(self, world: World, judge: Judge, name: str) -> None:
        super().__init__(world, judge, name)
        self._coordinators: dict[tuple[Kind, str], Link] = {}
        self.versions: dict[int, int] = {}
        """Of requests of which it speaks one version only."""

    def link(self) -> Link:
        link = super().link()
        link.versions.update(self.versions)
        return link

    async def ask_coordinator(self, kind: Kind, of: str, key: int, values: Mapping[str, Any]) -> Any:
        """One try: its answer, or LOST."""
        link = await self._coordinator(kind, of)
        answer = LOST if link is None else await link.ask(key, values)
        if answer is LOST:
            self.forget(kind, of)
            await self.back_off()
        return answer

    async def is_passing(self, kind: Kind, of: str, code: int) -> bool:
        """Whether this is only about who coordinates; then it was waited for."""
        if code not in COORDINATOR_RETRIED:
            return False
        if code != LOADING:
            self.forget(kind, of)
        await self.back_off()
        return True

    async def _coordinator(self, kind: Kind, of: str) -> Link | None:
        link = self._coordinators.get((kind, of))
        if link is not None and link.open:
            return link
        answer = await self.ask(frames.FIND_COORDINATOR, {"key": of, "key_type": kind, "coordinator_keys": (of,)})
        if answer is LOST:
            return None
        (said,) = getattr(answer, "coordinators", [answer])
        host = next((one for one in self.world.brokers if one.name == said.host), None)
        if said.error_code != 0 or host is None:
            return None
        assert isinstance(host, KafkaHost)
        link = Link(host, self._client_id)
        link.versions.update(self.versions)
        self._coordinators[kind, of] = link
        return link

    def forget(self, kind: Kind, of: str) -> None:
        if (link := self._coordinators.pop((kind, of), None)) is not None:
            link.close()

    def leave(self) -> None:
        super().leave()
        for kind, of in list(self._coordinators):
            self.forget(kind, of)


def by_topic(places: Mapping[Place, Mapping[str, Any]], index: str = "partition_index") -> list[dict[str, Any]]:
    """As most requests have it: topics, and in each its partitions."""
    topics: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for place, values in places.items():
        topics.setdefault((place.topic, place.topic_id), []).append({index: place.number, **values})
    return [
        {"name": name, "topic_id": None if topic_id is None else UUID(hex=topic_id), "partitions": partitions}
        for (name, topic_id), partitions in topics.items()
    ]
