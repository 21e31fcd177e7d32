"""The metadata store on one machine: an SQLite file that several processes use at once.

Start with `store.py`. A call goes to a thread (`line.py`, `writer.py`, `reader.py`), which does it in SQL
(`transaction.py` for writes, `reads.py` for reads) on a database that `database.py` opened. `filelock.py` lets one
process write at a time, `wake.py` and `follower.py` tell watchers of other processes, `sessions.py` keeps ephemeral
records alive.
"""

from lakestream.metadata.sqlite.settings import SqliteSettings
from lakestream.metadata.sqlite.store import SqliteStore

__all__ = ["SqliteSettings", "SqliteStore"]
