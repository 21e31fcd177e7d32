"""Namespaces: a record each, with its properties. A namespace's parent must be there, and a full one cannot be dropped.

Nothing locks a namespace while tables are put into it. Whoever puts something in puts the namespace's own record anew
afterwards (`hold`): a drop that looked before that finds another version and looks again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.errors import NamespaceExists, NamespaceNotEmpty, NoSuchNamespace
from lakestream.catalog.names import Namespace, shown
from lakestream.errors import Conflict, Corrupt, Rejected, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one

TRIES_MAX: Final = 200
"""Each meets another change of the same namespace; many tables may be made in one at the same time."""
PROPERTIES_BYTES_MAX: Final = 256 * 1024


class _Namespace(msgspec.Struct, frozen=True):
    properties: dict[str, str] = {}


class Altered(NamedTuple):
    updated: list[str]
    removed: list[str]
    missing: list[str]
    """Were to be removed and were not there."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Namespace).decode


class Namespaces:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def create(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        key = keys.namespace_key(namespace)
        parent = namespace[:-1]
        if parent:
            await self._record(parent)
        try:
            stored = await put_one(self._store, key, _value(properties), ABSENT)
        except Conflict:
            raise NamespaceExists(f"namespace {shown(namespace)} exists already") from None
        if parent:
            try:
                await self.hold(parent)
            except NoSuchNamespace:
                # Dropped meanwhile. If somebody has put something into the new one it stays, with its version changed.
                await self._store.delete(key, stored.version)
                raise

    async def ensure(self, namespace: Namespace) -> None:
        """Have it, whoever makes it."""
        if await self._store.get(keys.namespace_key(namespace)) is None:
            try:
                await self.create(namespace, {})
            except NamespaceExists:
                return

    async def properties(self, namespace: Namespace) -> dict[str, str]:
        return _namespace(await self._record(namespace)).properties

    async def children(self, parent: Namespace = (), *, confirmed: bool = False) -> list[Namespace]:
        """The namespaces directly in one; of none: those of the top."""
        prefix = f"{keys.levels_name(parent)}." if parent else ""
        end = f"{prefix}{keys.BEHIND_NAMES}"
        records = (await self._store.scan(keys.NAMESPACES, prefix, end, confirmed=confirmed)).records
        return [keys.levels_of(record.name) for record in records if "." not in record.name.removeprefix(prefix)]

    async def alter(self, namespace: Namespace, updates: Mapping[str, str], removals: Sequence[str]) -> Altered:
        for _ in range(TRIES_MAX):
            record = await self._record(namespace)
            before = _namespace(record).properties
            after = {name: text for name, text in before.items() if name not in removals} | dict(updates)
            try:
                await put_one(self._store, keys.namespace_key(namespace), _value(after), record.version)
            except Conflict:
                continue
            gone = [name for name in removals if name in before]
            return Altered(list(updates), gone, [name for name in removals if name not in before])
        raise _busy(namespace)

    async def hold(self, namespace: Namespace) -> None:
        """Put it anew, so that a drop of it that has looked already looks again. NoSuchNamespace: it came too late."""
        for _ in range(TRIES_MAX):
            record = await self._record(namespace)
            try:
                await put_one(self._store, keys.namespace_key(namespace), record.value, record.version)
            except Conflict:
                continue
            return
        raise _busy(namespace)

    async def drop(self, namespace: Namespace, holds_no_table: Callable[[Namespace], Awaitable[bool]]) -> None:
        for _ in range(TRIES_MAX):
            record = await self._record(namespace)
            if await self.children(namespace, confirmed=True) or not await holds_no_table(namespace):
                raise NamespaceNotEmpty(f"namespace {shown(namespace)} is not empty: drop what is in it first")
            try:
                await self._store.delete(keys.namespace_key(namespace), record.version)
            except Conflict:
                continue
            return
        raise _busy(namespace)

    async def _record(self, namespace: Namespace) -> Record:
        key = keys.namespace_key(namespace)
        record = await self._store.get(key) or await self._store.get(key, confirmed=True)
        if record is None:
            raise NoSuchNamespace(f"there is no namespace {shown(namespace)}")
        return record


def _value(properties: Mapping[str, str]) -> bytes:
    value = _encode(_Namespace(dict(properties)))
    if len(value) > PROPERTIES_BYTES_MAX:
        raise Rejected(f"the properties of a namespace take at most {PROPERTIES_BYTES_MAX} bytes, not {len(value)}")
    return value


def _namespace(record: Record) -> _Namespace:
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is no namespace ({error}); restore it from a backup") from error


def _busy(namespace: Namespace) -> Unavailable:
    return Unavailable(f"namespace {shown(namespace)} changes all the time: try again")
