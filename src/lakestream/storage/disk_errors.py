"""What the disk says, in our words: one line with what failed, where, and what to do about it (pure)."""

import errno

from lakestream.errors import LakestreamError, Misconfigured, Missing, Rejected, Unavailable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY}
_NO_LINKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def translate(error: OSError, doing: str, *, writing: bool) -> LakestreamError:
    """Nothing was shown under the object's name when this is raised by a write, so no write is ever Uncertain here."""
    code, reason = error.errno, error.strerror or type(error).__name__
    if code in _FULL:
        return Unavailable(f"disk full: cannot {doing}: {reason}. Free space on that disk; nothing stored is lost")
    if code in _NOT_ALLOWED:
        return Misconfigured(f"cannot {doing}: {reason}. Give this user the right to read and write there")
    if writing and code in _NO_LINKS:
        return Misconfigured(f"cannot {doing}: {reason}. The storage folder must be on a file system with hard links")
    if writing and code in _IN_THE_WAY:
        return Rejected(f"cannot {doing}: {reason}. A key cannot be the folder of another key")
    if not writing and (code == errno.ENOENT or code in _IN_THE_WAY):
        return Missing(f"cannot {doing}: no such object")
    return Unavailable(f"cannot {doing}: {reason}")
