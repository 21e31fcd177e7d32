"""This broker's ephemeral record: how the others know that it lives, under which id, and where.

A killed broker is named to clients until its session is over. A session that was lost although we live costs little: no
broker owns anything, and the next registration takes the same id where it is still free, or still ours. Where it is
not, as when the answer to an attempt was lost, it takes another one that is this address's for good (node_ids.py):
clients that are connected to us by an id would go on asking us for what is now another broker's.
"""

import asyncio
import contextlib
import logging
from typing import Final

from msgspec.structs import replace

from lakestream.errors import Conflict, LakestreamError, Unavailable
from lakestream.metadata.brokers import Broker, Brokers, Registered
from lakestream.metadata.node_ids import NodeIds
from lakestream.metadata.store import MetadataStore, Session

log = logging.getLogger(__name__)

SESSION_MS: Final = 3_000
"""Signs of life go out every third of it, so two in a row may be lost. Oxia takes no less than two seconds."""
RETRY_MS: Final = 1_000
IDS_MAX: Final = 10
"""Tried in one go. Only our own former lives could have taken one after it was found free."""


class Registration:
    """Renewed under a new session if the old one was lost."""

    def __init__(self, metadata: MetadataStore, broker: Broker) -> None:
        self._metadata = metadata
        self._brokers = Brokers(metadata)
        self._ids = NodeIds(metadata)
        self._now = Registered(broker, None)
        self._session: Session | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def broker(self) -> Broker:
        """As the others see it. Its node id may change when it registers anew."""
        return self._now.broker

    @property
    def holds(self) -> bool:
        """Others can see this broker."""
        return self._session is not None and not self._session.lost

    async def start(self) -> Broker:
        await self._register()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="broker.registration")
        return self.broker

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._session is not None:
            await _end(self._session)

    async def _register(self) -> None:
        session = await self._metadata.session(SESSION_MS)
        try:
            self._now = await self._registered(session)
        except BaseException:
            await _end(session)  # what it may have written goes with it, or there would be two of us
            raise
        self._session = session

    async def _registered(self, session: Session) -> Registered:
        wanted = self._now
        for _ in range(IDS_MAX):
            try:
                return await self._brokers.register(wanted, session)
            except Conflict:
                node_id = await self._ids.of(self.broker.address)
                wanted = Registered(replace(self.broker, node_id=node_id), None)
        raise Unavailable(f"others live under every node id that {self.broker.address} could have")

    async def _keep(self) -> None:
        while True:
            assert self._session is not None
            await self._session.wait_lost()
            log.warning("broker.session_lost node=%d", self.broker.node_id)
            while not self.holds:
                try:
                    await self._register()
                except LakestreamError as error:
                    log.warning("broker.not_registered error=%s", error)
                except Exception:
                    log.exception("broker.not_registered")  # a bug must not make a living broker unknown for ever
                if not self.holds:
                    await asyncio.sleep(RETRY_MS / 1000)


async def _end(session: Session) -> None:
    with contextlib.suppress(LakestreamError):  # it expires by itself then
        await session.close()
