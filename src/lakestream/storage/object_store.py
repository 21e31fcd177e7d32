"""The object store's contract. Bytes are kept here and only here.

One contract suite, `tests/contract/test_object_store.py`, runs on every backend. Behaviour (retry, metering, faults) is
added by wrapping.
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
    """Errors: Missing (no such object), Conflict (create of an existing key), Unavailable (try again), Uncertain (a
    write that may have taken effect), Misconfigured (bucket or rights are wrong), Rejected (no legal key, names.py)."""

    async def put(self, key: str, body: Body) -> None:
        """Write the whole object, replacing any that was there. Durable when it returns; buffers are not joined."""
        ...

    async def create(self, key: str, body: Body) -> None:
        """Write the object only if the key is free, else Conflict."""
        ...

    async def get(self, key: str) -> Buffer:
        """The whole object."""
        ...

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        """One buffer per span, in order. A span that reaches beyond the object is OutOfRange, never a short answer."""
        ...

    async def head(self, key: str) -> ObjectInfo: ...

    def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Pages of the objects under `prefix` (whole path segments) with keys greater than `after`, in order of key."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete them all; one that is missing is no error."""
        ...

    async def close(self) -> None: ...
