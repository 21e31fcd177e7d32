"""Reads and appends to the log of a Delta table in storage.

A commit is a file with the next version, created only if it does not exist: the second writer reads the other
commit first. This conditional create is the only coordination, on every store, between drivers and with other engines.
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from lakestream.aio.gather import gather_limited
from lakestream.catalog.delta.actions import Action, decoded, encoded
from lakestream.catalog.delta.state import NO_VERSION, DeltaState
from lakestream.errors import Corrupt, Missing
from lakestream.storage.object_store import ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

CHECKPOINT_EVERY: Final = 20
LOG_RETENTION_MS: Final = 24 * 60 * 60 * 1000
READS_AT_ONCE: Final = 8
_HINT: Final = "_last_checkpoint"
_NAME: Final = re.compile(r"(\d{20})\.(json|checkpoint\.parquet|checkpoint\.(\d{10})\.(\d{10})\.parquet)")


class _LastCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int = msgspec.field()
    size: int = 0
    parts: int | None = None


class _LogFiles(NamedTuple):
    """The files in the folder of the log."""

    commits: dict[int, str]
    checkpoints: dict[int, list[str]]
    """Without incomplete multi-part checkpoints."""


class DeltaLog:
    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects = objects
        self._folder = folder

    async def read(self) -> DeltaState:
        """Returns the current state; with version NO_VERSION if there is no Delta table."""
        hint = await self._hint()
        found = await self._list(hint)
        if hint != NO_VERSION and hint not in found.checkpoints:
            found = await self._list(NO_VERSION)
        newest = max(found.checkpoints, default=NO_VERSION)
        if newest == NO_VERSION:
            return await self._replay(DeltaState(), found.commits)
        from lakestream.catalog.delta.checkpoint import read_checkpoint_file  # Arrow takes a second to load

        keys = found.checkpoints[newest]
        bodies = [bytes(body) for body in await gather_limited([self._objects.get(key) for key in keys], READS_AT_ONCE)]
        state = await asyncio.to_thread(read_checkpoint_file, newest, bodies, keys[0])
        return await self._replay(state, found.commits)

    async def catch_up(self, state: DeltaState) -> DeltaState:
        """Returns the state with later commits. Corrupt: the log was removed or replaced."""
        if state.version == NO_VERSION:
            return await self.read()
        found = await self._list(state.version)
        if state.version not in found.commits:
            raise Corrupt(f"{self._folder} no longer has commit {state.version}: the log was removed or replaced")
        return await self._replay(state, found.commits)

    async def commit(self, state: DeltaState, actions: Iterable[Action]) -> DeltaState:
        """Writes the commit after `state`. Conflict: another writer was first. Uncertain: it may have been written."""
        listed = list(actions)
        version = state.version + 1
        await self._objects.create(self._key(f"{version:020d}.json"), [encoded(listed)])
        return state.after(version, listed)

    async def write_checkpoint(self, state: DeltaState) -> DeltaState:
        from lakestream.catalog.delta.checkpoint import write_checkpoint_file  # Arrow takes a second to load

        body, count = await asyncio.to_thread(write_checkpoint_file, state)
        await self._objects.put(self._key(f"{state.version:020d}.checkpoint.parquet"), [body])
        hint = msgspec.json.encode(_LastCheckpoint(state.version, count))
        await self._objects.put(self._key(_HINT), [hint])
        return replace(state, checkpoint=state.version)

    async def remove_old(self, now_ms: int) -> int:
        """Deletes files before the newest checkpoint older than LOG_RETENTION_MS. Returns their number."""
        listed = [info async for page in self._objects.walk(self._folder) for info in page]
        numbered = [(number, info) for info in listed if (number := _number(info)) is not None]
        before = max(
            (
                number
                for number, info in numbered
                if info.modified_ms < now_ms - LOG_RETENTION_MS and _is_checkpoint(info)
            ),
            default=NO_VERSION,
        )
        old = [info.key for number, info in numbered if number < before]
        if old:
            await self._objects.delete(old)
        return len(old)

    async def _replay(self, state: DeltaState, commits: dict[int, str]) -> DeltaState:
        """Applies the commits in order. Corrupt: one is missing."""
        numbers = sorted(number for number in commits if number > state.version)
        if not numbers:
            return state
        if numbers != list(range(state.version + 1, numbers[-1] + 1)):
            raise Corrupt(f"{self._folder} has no commit for a version between {state.version} and {numbers[-1]}")
        bodies = await gather_limited([self._objects.get(commits[number]) for number in numbers], READS_AT_ONCE)
        for number, body in zip(numbers, bodies, strict=True):
            state = state.after(number, decoded(bytes(body), commits[number]))
        return state

    async def _list(self, since: int) -> _LogFiles:
        """Lists the files from a version on, inclusive."""
        commits: dict[int, str] = {}
        parts: dict[int, dict[int, list[str]]] = {}
        after = self._key(f"{since:020d}") if since != NO_VERSION else ""
        async for page in self._objects.walk(self._folder, after):
            for info in page:
                name = _NAME.fullmatch(info.key.removeprefix(f"{self._folder}/"))
                if name is None:
                    continue
                number, kind, _, count = name.groups()
                if kind == "json":
                    commits[int(number)] = info.key
                else:
                    parts.setdefault(int(number), {}).setdefault(int(count or 1), []).append(info.key)
        whole = {
            number: keys for number, by_count in parts.items() for count, keys in by_count.items() if len(keys) == count
        }
        return _LogFiles(commits, whole)

    async def _hint(self) -> int:
        """Returns the version of the `_last_checkpoint` file. An invalid file is ignored."""
        try:
            body = await self._objects.get(self._key(_HINT))
            return msgspec.json.decode(bytes(body), type=_LastCheckpoint).version
        except (Missing, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return NO_VERSION

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _number(info: ObjectInfo) -> int | None:
    name = _NAME.fullmatch(info.key.rpartition("/")[2])
    return None if name is None else int(name.group(1))


def _is_checkpoint(info: ObjectInfo) -> bool:
    return info.key.endswith(".parquet")
