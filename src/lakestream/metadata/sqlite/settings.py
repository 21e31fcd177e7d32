"""The numbers of the SQLite store."""

from dataclasses import dataclass

from lakestream.model import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings:
    lock_wait_ms: int = 5_000
    """How long a write waits for other processes before it is Unavailable."""
    answer_wait_ms: int = 30_000
    """How long a caller waits for a disk that does not answer before it hears Uncertain."""
    jobs_max: int = 4_096
    """Calls that wait for a thread; more wait outside, at the caller."""
    group_max: int = 1_000
    """Calls that share one transaction and one fsync."""
    readers: int = 2
    """Reading threads: a long scan does not hold up every get."""
    patrol_ms: int = 250
    """How often a watching process looks for changes that nobody told it of, and for expired sessions."""
    rest_ms: int = 0
    """How long it looks at nothing after it found something, for those who need not know at once: each commit of a busy
    broker pokes."""
    checkpoint_pages: int = 4_096
    """SQLite moves its write-ahead file (16 MiB by then) into the database this often."""
    wal_bytes_max: int = 64 * MiB
    """A write-ahead file that grew beyond this, because readers were always in the way, is cut by force."""
