"""The metadata store's contract. Order is decided here and only here.

Two real backends (`sqlite.py`, `oxia.py`) and the in-memory one of the simulation pass one contract suite,
`tests/contract/test_metadata_store.py`. Nothing relies on several keys changing together, and nothing is decided by a
read alone: an Oxia leader that was just deposed may still answer reads, so a decision is always a conditional put.

Seams speak in lists: lists in, lists out, same order, and one item's failure is a value in its place.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

from lakestream.errors import Conflict, Missing, Unavailable

ANY: Final[None] = None
"""`expected` of a put that does not care what was there."""

ABSENT: Final = -1
"""`expected` of a put that must create the key."""


class Key(NamedTuple):
    """A record's address: `path` names it, `home` decides which shard keeps it.

    Paths look like `/folder/deeper/name`. Records that are read together share a home.
    """

    path: str
    home: str


class Folder(NamedTuple):
    """The keys `path/<name>` of one home, ordered by name as plain strings. Names hold no slash."""

    path: str
    home: str

    def key(self, name: str) -> Key:
        return Key(f"{self.path}/{name}", self.home)


class Record(NamedTuple):
    path: str
    value: bytes
    version: int
    """Grows with every put of this key, also over a delete: none is ever given again."""
    created_ms: int
    """When the key was created, by the store's own clock. Later puts do not change it."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Stored(NamedTuple):
    """A put took effect."""

    version: int
    created_ms: int


class Put(NamedTuple):
    key: Key
    value: bytes
    expected: int | None = ANY
    session: "Session | None" = None
    """Where given, the record is ephemeral: it goes when the session ends."""


class Create(NamedTuple):
    """Create `key` only if absent, then read `guard` on the node that answered."""

    key: Key
    value: bytes
    guard: Key


class Created(NamedTuple):
    version: int
    created_ms: int
    guard: Record | None
    repeated: bool = False
    """An earlier try of it got no clear answer: it may have taken effect, and been deleted again, before this one."""


class Scanned(NamedTuple):
    records: list[Record]
    guard: Record | None
    """The guard as it was in the scan, or after it on the same node; None where none was asked for or it is absent."""


class Changes(NamedTuple):
    """A hint to look, never the truth: events may be lost or doubled and no harm is done."""

    paths: frozenset[str]
    everything: bool
    """Events may have been missed: look at all that you watch."""


class Session(Protocol):
    """Ephemeral records live as long as their session, which ends with its process or when `timeout_ms` passes without
    a sign of life."""

    @property
    def lost(self) -> bool:
        """The store may have ended it: its records may be gone. A lost session is never found again; open another."""
        ...

    async def wait_lost(self) -> None: ...

    async def close(self) -> None:
        """End it now, its records with it."""
        ...


class MetadataStore(Protocol):
    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        """`confirmed`: answered by a node that has acknowledged a write since this call began, so the answer is not
        that of a deposed leader. It costs a write where there was none."""
        ...

    async def floor(self, folder: Folder, name: str) -> Record | None:
        """The record with the greatest name <= `name` in the folder."""
        ...

    async def ceiling(self, folder: Folder, name: str) -> Record | None:
        """The record with the least name >= `name` in the folder."""
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
        """The records of a folder with `start <= name < end`, in order of name, at most `limit` of them."""
        ...

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        """One answer per put, in order; a refused one does not hold back the others. Not atomic across keys.

        Conflict: `expected` did not hold. Missing: the session is gone. Uncertain: it may have taken effect; look.
        Puts of one home take effect in their order: whoever sees one sees those before it, and two of one key see one
        another.
        """
        ...

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        """One answer per create, in order. All guards of one home may be read in one go, after all its creates.

        If the create took effect but the guard could not be read on the node that answered, the answer is Uncertain.
        """
        ...

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        """True if it was there. Raises Conflict if it is there with another version than `expected`."""
        ...

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        """Delete the records of a folder with `start <= name < end`."""
        ...

    async def session(self, timeout_ms: int) -> Session: ...

    def watch(self, prefix: str) -> AsyncIterator[Changes]:
        """Changes of paths that start with `prefix`, from the moment that the iterator is first awaited until it is
        closed.

        The first item comes at once and says `everything`. What a slow consumer has not taken yet is merged.
        """
        ...

    async def now_ms(self) -> int:
        """The store's clock."""
        ...

    async def close(self) -> None: ...


async def put_one(store: MetadataStore, key: Key, value: bytes, expected: int | None = ANY) -> Stored:
    """One put, its failure raised."""
    (answer,) = await store.put([Put(key, value, expected)])
    if isinstance(answer, Stored):
        return answer
    raise answer
