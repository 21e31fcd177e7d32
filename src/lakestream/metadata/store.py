"""Interface of the metadata store. It alone decides the order of writes.

Two backends (`sqlite/`, `oxia/`) and the in-memory one of the simulation pass one contract suite,
`tests/contract/test_metadata_store.py`. No caller relies on several keys changing together, and no decision relies on a
read alone: a deposed Oxia leader may still serve reads, so a decision is always a conditional put.

Batch calls take a list and return a list in the same order. The failure of an item is a value in its place.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from lakestream.errors import Conflict, Missing, Unavailable

ANY: Final[None] = None
"""`expected` of an unconditional put."""

ABSENT: Final = -1
"""`expected` of a put that must create the key."""


class Key(NamedTuple):
    """Address of a record: `path` names it, `home` determines its shard.

    Paths look like `/folder/deeper/name`. Records that are read together share a home.
    """

    path: str
    home: str


class Folder(NamedTuple):
    """The keys `path/<name>` of one home, ordered by name as plain strings. Names contain no slash."""

    path: str
    home: str

    def key(self, name: str) -> Key:
        return Key(f"{self.path}/{name}", self.home)


class Record(NamedTuple):
    path: str
    value: bytes
    version: int
    """Grows with every put of this key, also across a delete. A version is never reused."""
    created_ms: int
    """When the key was created, by the store's clock. Later puts do not change it."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Stored(NamedTuple):
    """Result of a put that took effect."""

    version: int
    created_ms: int


class Put(NamedTuple):
    key: Key
    value: bytes
    expected: int | None = ANY
    session: "Session | None" = None
    """If set, the record is ephemeral: it is deleted when the session ends."""


class Create(NamedTuple):
    """Creates `key` only if it is absent, then reads `guard` on the node that responded."""

    key: Key
    value: bytes
    guard: Key


class Created(NamedTuple):
    version: int
    created_ms: int
    guard: Record | None
    repeated: bool = False
    """The outcome of an earlier attempt is unknown: it may have taken effect and been deleted before this one."""


class Scanned(NamedTuple):
    records: list[Record]
    guard: Record | None
    """The guard as read in the scan, or after it on the same node. None if not requested or absent."""


class Changes(NamedTuple):
    """A hint to read again. Events may be lost or repeated, so callers must not rely on them."""

    paths: frozenset[str]
    everything: bool
    """Events may have been missed: all watched records must be read."""


class Session(Protocol):
    """Lifetime of ephemeral records. It ends with its process, or after `timeout_ms` without a heartbeat."""

    @property
    def lost(self) -> bool:
        """The store may have ended the session and deleted its records. It cannot be resumed; open another."""
        ...

    async def wait_lost(self) -> None: ...

    async def close(self) -> None:
        """Ends the session now and deletes its records."""
        ...


class MetadataStore(Protocol):
    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        """Returns the record, or None if it does not exist.

        `confirmed`: read from a node that has acknowledged a write since this call began, so not from a deposed leader.
        It costs a write if there was none.
        """
        ...

    async def floor(self, folder: Folder, name: str) -> Record | None:
        """Returns the record with the greatest name <= `name` in the folder."""
        ...

    async def ceiling(self, folder: Folder, name: str) -> Record | None:
        """Returns the record with the least name >= `name` in the folder."""
        ...

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        """Returns the records of a folder with `start <= name < end`, in order of name, at most `limit` of them."""
        ...

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        """Returns a result per put, in order. A failed put does not affect the others. Not atomic across keys.

        Conflict: `expected` did not match. Missing: the session has ended. Uncertain: it may have taken effect.
        Puts of one home take effect in order: a reader that sees one also sees those before it, and of two puts of one
        key, the second sees the first.
        """
        ...

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        """Returns a result per create, in order. All guards of one home may be read together, after all its creates.

        If a create took effect but its guard could not be read on the node that responded, its result is Uncertain.
        """
        ...

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        """Returns whether the record existed. Raises Conflict if it exists with another version than `expected`."""
        ...

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        """Deletes the records of a folder with `start <= name < end`."""
        ...

    async def session(self, timeout_ms: int) -> Session: ...

    def watch(self, prefix: str) -> AsyncIterator[Changes]:
        """Yields changes of paths that start with `prefix`, from the first await of the iterator until it is closed.

        The first item is yielded immediately, with `everything`. Changes that a slow consumer has not received are
        merged.
        """
        ...

    async def now_ms(self) -> int:
        """Returns the time of the store's clock."""
        ...

    async def close(self) -> None: ...


async def put_one(store: MetadataStore, key: Key, value: bytes, expected: int | None = ANY) -> Stored:
    """Puts one record, and raises its failure."""
    (result,) = await store.put([Put(key, value, expected)])
    if isinstance(result, Stored):
        return result
    raise result


async def update(
    store: MetadataStore, key: Key, decide: Callable[[Record | None], bytes], *, confirmed: bool = False
) -> bytes:
    """Replaces the value of a record, and retries while other writers change it. Returns the value.

    `decide` returns the new value for the current record. If it returns `record.value` itself, nothing is written.
    """
    while True:
        record = await store.get(key, confirmed=confirmed)
        value = decide(record)
        if record is not None and value is record.value:
            return value
        with suppress(Conflict):
            await put_one(store, key, value, ABSENT if record is None else record.version)
            return value
