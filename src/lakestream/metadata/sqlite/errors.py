"""Translates SQLite's errors to Lakestream's error classes, with one line: object, problem, action."""

import sqlite3
from pathlib import Path

from lakestream.errors import Corrupt, LakestreamError, Misconfigured, Unavailable, Uncertain

NOTHING_WRITTEN = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_BUSY}
"""Errors after which a commit certainly had no effect: the frame that marks a commit is written last."""


def explain(error: sqlite3.Error, path: Path) -> LakestreamError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return Corrupt(
                f"{path}: {error}. The file is damaged or belongs to another program: stop all brokers,"
                " then restore it from a backup or give another path"
            )
        case sqlite3.SQLITE_CORRUPT:
            return Corrupt(
                f"{path}: {error}. Stop all brokers, keep a copy of it and its -wal file,"
                " then restore a backup or recover it with `sqlite3 FILE .recover`"
            )
        case sqlite3.SQLITE_FULL:
            return Unavailable(f"{path}: the disk is full, nothing was written: free space; no restart is needed")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(f"{path}: another program has locked the database: find it with `fuser {path}`")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_AUTH:
            return Unavailable(f"{path}: {error}: check that this user may write the file and its folder")
    return Unavailable(f"{path}: {error}: check the disk and the kernel log, then retry")


def explain_open(error: sqlite3.Error | OSError, path: Path) -> LakestreamError:
    """Like `explain`, at startup, when a file that cannot be opened is a wrong setting."""
    if isinstance(error, OSError):
        return Misconfigured(
            f"{path}: cannot open the metadata database: {error.strerror}: check the path and its owner"
        )
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}:
        return Misconfigured(f"{path}: cannot open the metadata database: {error}: check the path and its owner")
    return explain(error, path)


def explain_commit(error: sqlite3.Error, path: Path) -> LakestreamError:
    """Like `explain`, for a commit, which may have reached the disk although it failed."""
    explained = explain(error, path)
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if isinstance(explained, Unavailable) and not {code, code & 0xFF} & NOTHING_WRITTEN:
        return Uncertain(f"{explained} (the write may have taken effect)")
    return explained
