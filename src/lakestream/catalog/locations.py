"""Where a table's files are, in the words of engines, and where that is in our storage: URL ⇄ object key. Pure.

Engines write one place in several ways (`file:/x`, `file:///x`, `/x`; `s3a://`; `abfss://`), and all of them must be
understood; what we write ourselves is the one spelling that Spark, DuckDB, pyiceberg and polars all take. Paths are
written as they are, never percent-encoded: engines do not decode them.
"""

import re
from typing import Final
from urllib.parse import unquote, urlsplit

from lakestream.errors import Misconfigured, Rejected
from lakestream.storage.names import check_key

TABLES_FOLDER: Final = "tables"
RESERVED: Final = frozenset({"wal", "probe"})
"""Folders of the storage that are not for tables. A purge must never come near them."""

_SAME: Final = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
}


class Locations:
    """Of one storage root. `account`: the Azure account, which its engines want in every URL."""

    def __init__(self, storage_url: str, account: str = "") -> None:
        self._scheme, self._place, self._prefix = _parts(storage_url, decode=True)
        if self._scheme == "az" and not account:
            raise Misconfigured("tables on Azure need the account's name: set AZURE_STORAGE_ACCOUNT_NAME")
        self._account = account

    @property
    def root(self) -> str:
        return self.url_of("").rstrip("/") or "/"

    @property
    def scheme(self) -> str:
        return self._scheme

    def url_of(self, key: str) -> str:
        path = "/".join(part for part in (self._prefix, key) if part)
        match self._scheme:
            case "file":
                return f"file:///{path}"
            case "az":
                return f"abfss://{self._place}@{self._account}.dfs.core.windows.net/{path}"
            case _:
                return f"{self._scheme}://{self._place}/{path}"

    def key_of(self, url: str) -> str:
        """The object key of a file or folder of ours. Rejected: it is not under our storage root."""
        scheme, place, path = _parts(url, decode=False)
        inside = self._inside(path)
        if scheme != self._scheme or place != self._place or not inside:
            raise Rejected(f"{url[:200]} is not under the storage root {self.root}: tables here keep their files there")
        return check_key(inside)

    def check_table_location(self, url: str) -> str:
        """The location of a table as we write it. Rejected: it is outside the root, or where other things are."""
        key = self.key_of(url.rstrip("/"))
        if key.partition("/")[0] in RESERVED:
            raise Rejected(f"{url[:200]} is a folder that Lakestream keeps other things in: choose another location")
        return self.url_of(key)

    def new_table(self, namespace: tuple[str, ...], name: str, folder_id: str) -> str:
        """A folder that no other table has or had: names come and go, the id stays."""
        readable = [_readable(text) for text in (*namespace, name)]
        return self.url_of("/".join([TABLES_FOLDER, *readable[:-1], f"{readable[-1]}-{folder_id}"]))

    def _inside(self, path: str) -> str:
        if not self._prefix:
            return path
        inside = path.removeprefix(f"{self._prefix}/")
        return inside if inside != path else ""


def overlap(one: str, other: str) -> bool:
    """Whether one of two folders lies in the other, or they are the same."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _readable(text: str) -> str:
    """Only a help for people who look into the bucket, so what some engine might trip over is left out."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:80]


def _parts(url: str, *, decode: bool) -> tuple[str, str, str]:
    """Scheme, bucket or container, path without slashes at its ends."""
    if url.startswith("/"):
        return "file", "", url.strip("/")
    if "://" not in url and not url.startswith("file:/"):
        raise Rejected(f"{url[:200]!r} is no URL of a file or folder")
    scheme, _, rest = url.partition(":")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        path = urlsplit(url).path if decode else rest
        return "file", "", (unquote(path) if decode else path).strip("/")
    place, _, path = rest.removeprefix("//").partition("/")
    return scheme, place.partition("@")[0], path.strip("/")
