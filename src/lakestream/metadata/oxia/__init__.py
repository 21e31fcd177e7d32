"""The metadata store over an Oxia cluster: an asyncio client of our own.

A call's way down, file by file:

    store.py          the contract: keys in, records out
    writes.py         waiting writes of a shard joined into one request, retried, doubts resolved
    reads.py          the same for reads, and reads that a deposed leader cannot answer
    shards.py         which shard a home belongs to, and which node leads it now
    node.py           one server: its channel and its calls, each with a deadline
    errors.py         what a failed call means for the one who made it

Beside it: sessions.py (ephemeral records), notifications.py (the change feed), paths.py (key order and ranges),
grouping.py (join what waits while a request is on its way).
"""

from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.store import OxiaStore

__all__ = ["OxiaSettings", "OxiaStore"]
