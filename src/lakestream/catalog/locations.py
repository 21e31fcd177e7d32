"""Converts the URLs of tables and their files to object keys and back. Pure.

Engines write one location in several ways (`file:/x`, `file:///x`, `/x`; `s3a://`; `abfss://`). All of them are read.
Lakestream writes the one spelling that Spark, DuckDB, pyiceberg and polars all accept. Paths are never
percent-encoded, because engines do not decode them.

`client_settings` returns the storage settings for engines that read tables: endpoints and regions, never credentials.
Every engine has its own.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from lakestream.errors import Corrupt, Misconfigured, Rejected
from lakestream.storage.aws_profile import profile_settings
from lakestream.storage.object_keys import KEY_BYTES_MAX, check_key

TABLES_FOLDER: Final = "tables"
"""The tables' root. New tables are below it, and files of tables are deleted only below it."""
LOG_FOLDER: Final = "_delta_log"
"""Of the log of a Delta table. It is in the folder of the Iceberg table."""
FILE_NAME_BYTES: Final = 128
"""Reserved in object keys for the file names of metadata files, manifests and manifest lists."""
RESERVED: Final = frozenset({"wal", "probe"})
"""Top-level folders that tables cannot use. Compared case-insensitively: on some disks `WAL` is `wal`."""

_SCHEMES: Final = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
}


class Locations:
    """Locations under one storage root. `account`: the Azure account, which engines need in every URL."""

    def __init__(self, storage_url: str, account: str = "") -> None:
        self._scheme, authority, self._prefix = _parts(storage_url, decode=True)
        if self._scheme == "az" and not account:
            raise Misconfigured("tables on Azure need the account name: set AZURE_STORAGE_ACCOUNT_NAME")
        self._authority = authority.partition("@")[0] if self._scheme == "az" else authority
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
                return f"abfss://{self._authority}@{self._account}.dfs.core.windows.net/{path}"
            case _:
                return f"{self._scheme}://{self._authority}/{path}"

    def key_of(self, url: str) -> str:
        """Returns the object key of a file or folder. Rejected: it is not under the storage root.

        For files that a table names use `table(…).key_of`.
        """
        scheme, authority, path = _parts(url, decode=False)
        inside = self._inside(path)
        if scheme != self._scheme or not self._is_storage_authority(authority) or not inside:
            raise Rejected(f"{url[:200]} is not under the storage root {self.root}: choose a location under it")
        return check_key(inside)

    def table(self, location: str) -> "TableFolder":
        """Returns the folder of an existing table. Rejected: it is outside of the storage root, or reserved."""
        return TableFolder(self, location)

    def check_table_location(self, url: str) -> str:
        """Returns the normalized location of a new table. Rejected: it is not below the tables' root."""
        folder = self.table(url)
        if not folder.is_removable:
            raise Rejected(
                f"table location {url[:200]}: it is not below {self.url_of(TABLES_FOLDER)}: choose a folder below that"
            )
        return folder.location

    def new_table(self, namespace: tuple[str, ...], name: str, folder_id: str) -> str:
        """Returns a location that no other table has or had, because it contains the unique `folder_id`."""
        readable = [_readable(text) for text in (*namespace, name)]
        return self.url_of("/".join([TABLES_FOLDER, *readable[:-1], f"{readable[-1]}-{folder_id}"]))

    def _is_storage_authority(self, authority: str) -> bool:
        if self._scheme != "az":
            return authority == self._authority
        container, _, host = authority.partition("@")
        return container == self._authority and (not host or host.partition(".")[0].lower() == self._account.lower())

    def _inside(self, path: str) -> str:
        if not self._prefix:
            return path
        inside = path.removeprefix(f"{self._prefix}/")
        return inside if inside != path else ""


class TableFolder:
    """Decides which files a table may name: those under its own location.

    Paths in metadata and manifests are written by clients. So this is called where a commit is checked, and before a
    file that a table names is read, rewritten, added to a Delta log or deleted (docs/adr/0024-files-of-a-table.md).
    """

    def __init__(self, locations: Locations, location: str) -> None:
        self._locations = locations
        self.key = locations.key_of(location.rstrip("/"))
        if self.key.partition("/")[0].casefold() in RESERVED:
            raise Rejected(f"{location[:200]} is a folder that Lakestream uses for other data: choose another location")
        self.location = locations.url_of(self.key)

    @property
    def is_removable(self) -> bool:
        """Whether maintenance may delete files in this folder.

        Older versions accepted any folder under the storage root, where other programs may have files.
        """
        return self.key.startswith(f"{TABLES_FOLDER}/")

    def key_of(self, url: str) -> str:
        """Returns the object key of a file that the table names. Rejected: the table may not name it."""
        return self._inside(url, url)

    def named_key(self, url: str) -> str:
        """Returns the key of a file that committed metadata names. Corrupt: the table may not name it."""
        try:
            return self.key_of(url)
        except Rejected as error:
            raise Corrupt(f"a file of the table cannot be read: {error}") from error

    def own_keys(self, urls: Iterable[str]) -> list[str]:
        """Returns the keys of the files that the table may name. Other files are left out."""
        keys = []
        for url in urls:
            with suppress(Rejected):
                keys.append(self.key_of(url))
        return keys

    def check_folder(self, url: str) -> str:
        """Returns the normalized URL of a folder for the table's files. Rejected: it is not in the table's folder."""
        folder = url.rstrip("/")
        if self._key(folder) == self.key:
            return self.location
        return self._locations.url_of(self._inside(folder, url))

    def check_new_folder(self, url: str) -> None:
        """Rejected: the folder is not in the table's folder, or keys of files in it would be too long."""
        size, size_max = len(self._key(self.check_folder(url)).encode()), KEY_BYTES_MAX - FILE_NAME_BYTES
        if size > size_max:
            raise Rejected(
                f"{url[:200]}… has {size} bytes below the storage root, more than {size_max}: choose a shorter path,"
                " which leaves room for file names"
            )

    def _inside(self, url: str, shown: str) -> str:
        key = self._key(url)
        if not key.startswith(f"{self.key}/"):
            raise Rejected(
                f"{shown[:500]}: it is not under {self.location}, the location of its table:"
                " a table may name only files under its own location"
            )
        if LOG_FOLDER in key[len(self.key) :].casefold().split("/"):
            raise Rejected(
                f"{shown[:500]}: {LOG_FOLDER} in {self.location} is reserved for the log of a Delta table:"
                " a table may not name files in it"
            )
        return key

    def _key(self, url: str) -> str:
        try:
            return self._locations.key_of(url)
        except Rejected:
            return ""  # not under the storage root, so not in the folder


def overlap(one: str, other: str) -> bool:
    """Whether two folders are the same or one contains the other. Case-insensitive, as file names on some disks."""
    first, second = f"{one}/".casefold(), f"{other}/".casefold()
    return first.startswith(second) or second.startswith(first)


def _readable(text: str) -> str:
    """Returns text for a folder name without characters that engines may not handle. Only for people to read."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:80]


def _parts(url: str, *, decode: bool) -> tuple[str, str, str]:
    """Returns scheme, authority, and path without leading and trailing slashes."""
    if url.startswith("/"):
        return "file", "", url.strip("/")
    if "://" not in url and not url.startswith("file:/"):
        raise Rejected(f"{url[:200]!r} is not a URL of a file or folder")
    scheme, _, rest = url.partition(":")
    scheme = _SCHEMES.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        path = urlsplit(url).path if decode else rest
        return "file", "", (unquote(path) if decode else path).strip("/")
    authority, _, path = rest.removeprefix("//").partition("/")
    return scheme, authority, path.strip("/")


def azure_account(environ: Mapping[str, str]) -> str:
    return environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")


def client_settings(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the storage settings for engines, by the property names of Iceberg's FileIO (Java and pyiceberg)."""
    match scheme:
        case "s3":
            return _s3(environ)
        case "gs":
            return _named("gcs.service.host", environ.get("GOOGLE_BASE_URL", ""))
        case "az":
            return _named("adls.account-name", azure_account(environ))
        case _:
            return {}


def _s3(environ: Mapping[str, str]) -> dict[str, str]:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next((value for name in names if (value := environ.get(name))), "")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or profile_settings(environ).get("region")
    settings = _named("s3.region", region or "") | _named("client.region", region or "")
    if not endpoint:
        return settings
    by_host = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
    settings |= {"s3.endpoint": endpoint, "s3.path-style-access": "false" if by_host else "true"}
    if urlsplit(endpoint).scheme == "http":
        settings["s3.ssl.enabled"] = "false"
    return settings


def _named(name: str, value: str) -> dict[str, str]:
    return {name: value} if value else {}
