"""Limits the number of transactional ids: in the store, and of one client address.

Before: coordinator.py, when it creates an id; expiration.py, which counts the ids in the store once a minute.

Until an id expires, its name is read by every broker and its record by its coordinator once a minute. Between two
counts a broker adds the ids that are created through it. So several brokers together may exceed the limit of the store
by what they create in a minute. A client address is counted by each broker for the ids that it coordinates.
"""

import logging
from collections import Counter
from collections.abc import Collection
from typing import Final

from lakestream.aio.log_limiter import LogRateLimiter
from lakestream.clock import Clock
from lakestream.errors import Rejected

log = logging.getLogger(__name__)

STORE_MAX: Final = 100_000
CLIENT_MAX: Final = 10_000


class TooManyTransactionalIds(Rejected):
    """The store or the client address has as many transactional ids as are allowed."""


class TransactionalIdLimits:
    def __init__(self, clock: Clock, store_max: int = STORE_MAX, client_max: int = CLIENT_MAX) -> None:
        self._log_limiter = LogRateLimiter(clock)
        self.store_max = store_max
        self.client_max = client_max
        self._total = 0
        self._clients: dict[str, str] = {}  # of the ids that this broker coordinates
        self._counts: Counter[str] = Counter()

    def create(self, transactional_id: str, client: str) -> None:
        """Counts a new id of a client address. Raises TooManyTransactionalIds if it exceeds a limit."""
        if self._total >= self.store_max:
            raise self._rejection(transactional_id, client, "the cluster", self.store_max)
        if self._counts[client] >= self.client_max:
            raise self._rejection(transactional_id, client, f"client address {client}", self.client_max)
        self._total += 1
        self.note(transactional_id, client)

    def note(self, transactional_id: str, client: str) -> None:
        """Notes which client address created an id. Records of older brokers do not contain it."""
        if self._clients.get(transactional_id, "") != client:
            self.forget(transactional_id)
            if client:
                self._clients[transactional_id] = client
                self._counts[client] += 1

    def forget(self, transactional_id: str) -> None:
        client = self._clients.pop(transactional_id, None)
        if client is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    def counted(self, total: int, mine: Collection[str]) -> None:
        """Notes the number of ids in the store, and those of them that this broker coordinates."""
        self._total = total
        for transactional_id in [one for one in self._clients if one not in mine]:
            self.forget(transactional_id)

    def _rejection(self, transactional_id: str, client: str, owner: str, limit: int) -> TooManyTransactionalIds:
        text = (
            f"Transactional id '{transactional_id}' is rejected: {owner} has {limit:,} transactional ids, which is the"
            " limit. Use ids again; unused ones expire after seven days."
        )
        if self._log_limiter.should_log(owner):
            log.warning("transactions.id_rejected client=%s limit=%d error=%s", client, limit, text)
        return TooManyTransactionalIds(text)
