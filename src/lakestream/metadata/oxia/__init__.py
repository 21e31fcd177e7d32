"""Metadata store on an Oxia cluster, with its own asyncio client.

Modules of a call, from top to bottom:

    store.py          the interface: keys in, records out
    writes.py         batches the writes of a shard, retries them, resolves unknown outcomes
    reads.py          the same for reads, and reads that a deposed leader cannot serve
    shards.py         the shard of a home, and the current leader of a shard
    connection.py     a server: its channel and its calls, each with a deadline
    errors.py         effect of a failed call

Also: sessions.py (ephemeral records), notifications.py (watches), key_ranges.py (key order and ranges), batching.py
(batches calls while a request is in flight).
"""

from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.store import OxiaStore

__all__ = ["OxiaSettings", "OxiaStore"]
