"""This broker's ephemeral record: it shows the other brokers that it is alive, its node id and its address.

Metadata responses contain a killed broker until its session expires. A session lost while the broker lives costs
little: no broker owns anything exclusively, and the next registration takes the same node id if it is free or still
belongs to this broker. If it is not, for instance after the response to an attempt was lost, the broker takes another
id that belongs to this address permanently (metadata/cluster.py): clients connected to this broker under an id would
otherwise send it requests for the other broker that has the id now.
"""

import asyncio
import contextlib
import logging
from typing import Final

from msgspec.structs import replace

from lakestream.errors import Conflict, LakestreamError, Unavailable
from lakestream.metadata.brokers import Broker, Brokers, RegisteredBroker
from lakestream.metadata.cluster import NodeIds
from lakestream.metadata.store import MetadataStore, Session

log = logging.getLogger(__name__)

SESSION_MS: Final = 3_000
"""The session is renewed every third of it, so two renewals in a row may be lost. Oxia's minimum is two seconds."""
RETRY_MS: Final = 1_000
IDS_MAX: Final = 10
"""Node ids tried in one registration. Only former registrations of this address can have used one in between."""


class BrokerRegistration:
    """Registers the broker, and registers it again under a new session when the session is lost."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._brokers = Brokers(metadata)
        self._ids = NodeIds(metadata)
        self._registered: RegisteredBroker
        self._session: Session | None = None
        self._renewal: asyncio.Task[None] | None = None

    @property
    def broker(self) -> Broker:
        """The broker as it is registered. Its node id may change when it registers again."""
        return self._registered.broker

    @property
    def is_registered(self) -> bool:
        """Returns whether the broker's record is visible to other brokers."""
        return self._session is not None and not self._session.lost

    async def start(self, broker: Broker) -> Broker:
        self._registered = RegisteredBroker(broker, None)
        await self._register()
        self._renewal = asyncio.get_running_loop().create_task(self._renew(), name="broker.registration")
        return self.broker

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        if self._session is not None:
            await _close(self._session)

    async def _register(self) -> None:
        session = await self._metadata.session(SESSION_MS)
        try:
            self._registered = await self._register_under(session)
        except BaseException:
            await _close(session)  # removes a record it may have written, or this broker would be registered twice
            raise
        self._session = session

    async def _register_under(self, session: Session) -> RegisteredBroker:
        candidate = self._registered
        for _ in range(IDS_MAX):
            try:
                return await self._brokers.register(candidate, session)
            except Conflict:
                node_id = await self._ids.of(self.broker.address)
                candidate = RegisteredBroker(replace(self.broker, node_id=node_id), None)
        raise Unavailable(f"broker {self.broker.address}: {IDS_MAX} node ids are used by other brokers: retry")

    async def _renew(self) -> None:
        while True:
            assert self._session is not None
            await self._session.wait_lost()
            log.warning("broker.session_lost node=%d", self.broker.node_id)
            while not self.is_registered:
                try:
                    await self._register()
                except LakestreamError as error:
                    log.warning("broker.registration_failed error=%s", error)
                except Exception:
                    log.exception("broker.registration_failed")  # a bug must not leave a live broker unregistered
                if not self.is_registered:
                    await asyncio.sleep(RETRY_MS / 1000)


async def _close(session: Session) -> None:
    with contextlib.suppress(LakestreamError):  # then it expires by itself
        await session.close()
