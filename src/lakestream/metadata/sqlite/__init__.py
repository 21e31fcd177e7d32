"""Metadata store for one machine: an SQLite file that several processes share.

Start with `store.py`. A call goes to a thread (`work_queue.py`, `writer.py`, `reads.py`), which executes it in SQL
(`transaction.py` for writes, `reads.py` for reads) on a database that `database.py` has opened. `file_lock.py` lets one
process write at a time, `notify_socket.py` and `change_feed.py` notify watchers in other processes, `sessions.py` keeps
ephemeral records alive.
"""

from lakestream.metadata.sqlite.database import SqliteSettings
from lakestream.metadata.sqlite.store import SqliteStore

__all__ = ["SqliteSettings", "SqliteStore"]
