"""Interface of an object store, which holds all stored bytes.

One contract suite, `tests/contract/test_object_store.py`, runs on every backend. Retries, metrics and faults are added
by wrappers.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from lakestream.model import Buffer, Span

Body: TypeAlias = Sequence[Buffer]


class ObjectInfo(NamedTuple):
    key: str
    size: int
    modified_ms: int
    """By the store's own clock."""


class ObjectStore(Protocol):
    """Object store.

    Errors: Missing (no such object), Conflict (create of an existing key), Unavailable (retry), Uncertain (the write
    may have taken effect), Misconfigured (wrong bucket or permissions), Rejected (invalid key, object_keys.py).
    """

    async def put(self, key: str, body: Body) -> None:
        """Writes or replaces the whole object. It is durable when this returns; buffers are not joined."""
        ...

    async def create(self, key: str, body: Body) -> None:
        """Writes the object. Raises Conflict if the key exists."""
        ...

    async def get(self, key: str) -> Buffer:
        """Returns the whole object."""
        ...

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        """Returns one buffer per span, in order. Raises OutOfRange if a span ends beyond the object."""
        ...

    async def head(self, key: str) -> ObjectInfo: ...

    def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Yields pages of the objects under `prefix` (whole path segments) with keys > `after`, in order of key."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes the objects. A missing object is not an error."""
        ...

    async def close(self) -> None: ...
