"""Namespaces: one record each, with its properties. The parent must exist, and only an empty namespace can be dropped.

No lock protects a namespace while a table is added. After adding a table or a child namespace, the catalog writes the
namespace's own record again (`touch`). A concurrent drop then fails on the record's version and checks again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.errors import NamespaceExists, NamespaceNotEmpty, NoSuchNamespace
from lakestream.catalog.identifiers import Namespace, dotted
from lakestream.errors import Conflict, Corrupt, Rejected, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one

TRIES_MAX: Final = 200
"""Of a change that conflicts with others. Many tables may be created in one namespace at the same time."""
PROPERTIES_BYTES_MAX: Final = 256 * 1024


class _Namespace(msgspec.Struct, frozen=True):
    properties: dict[str, str] = {}


class Altered(NamedTuple):
    updated: list[str]
    removed: list[str]
    missing: list[str]
    """To be removed, but not set."""


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
            raise NamespaceExists(f"Namespace already exists: {dotted(namespace)}") from None
        if parent:
            try:
                await self.touch(parent)
            except NoSuchNamespace:
                # The parent was dropped meanwhile. If a table was added to the new namespace, its version has changed,
                # and the namespace stays.
                await self._store.delete(key, stored.version)
                raise

    async def ensure(self, namespace: Namespace) -> None:
        """Creates the namespace if it does not exist."""
        if await self._store.get(keys.namespace_key(namespace)) is None:
            try:
                await self.create(namespace, {})
            except NamespaceExists:
                return

    async def properties(self, namespace: Namespace) -> dict[str, str]:
        return _namespace(await self._record(namespace)).properties

    async def children(self, parent: Namespace = (), *, confirmed: bool = False) -> list[Namespace]:
        """Returns the direct children of a namespace; by default the top-level namespaces."""
        prefix = f"{keys.levels_name(parent)}." if parent else ""
        end = f"{prefix}{keys.AFTER_NAMES}"
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
            present = [name for name in removals if name in before]
            return Altered(list(updates), present, [name for name in removals if name not in before])
        raise _busy(namespace)

    async def touch(self, namespace: Namespace) -> None:
        """Writes the record again, so that a concurrent drop checks again. NoSuchNamespace: it was dropped before."""
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
                raise NamespaceNotEmpty(
                    f"Namespace {dotted(namespace)} is not empty: drop its tables and child namespaces first"
                )
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
            raise NoSuchNamespace(f"Namespace does not exist: {dotted(namespace)}")
        return record


def _value(properties: Mapping[str, str]) -> bytes:
    value = _encode(_Namespace(dict(properties)))
    if len(value) > PROPERTIES_BYTES_MAX:
        raise Rejected(f"namespace properties of {len(value)} bytes: use at most {PROPERTIES_BYTES_MAX}")
    return value


def _namespace(record: Record) -> _Namespace:
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(
            f"metadata record {record.path} is not a namespace ({error}): restore it from a backup"
        ) from error


def _busy(namespace: Namespace) -> Unavailable:
    return Unavailable(f"namespace {dotted(namespace)}: changed concurrently {TRIES_MAX} times: retry")
