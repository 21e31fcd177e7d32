"""The log of a Delta table in storage: read, followed, added to.

A commit is a file with the next number, created only if there is none: whoever comes second reads what the first has
done. That is all the agreement there is, so it holds on every storage that we have, between drivers and with others.
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.delta.actions import Action, decoded, encoded
from lakestream.catalog.delta.state import NOTHING, State
from lakestream.errors import Corrupt, Missing
from lakestream.storage.object_store import ObjectInfo, ObjectStore
from lakestream.storage.together import together

log = logging.getLogger(__name__)

CHECKPOINT_EVERY: Final = 20
LOG_KEPT_MS: Final = 24 * 60 * 60 * 1000
READS_AT_ONCE: Final = 8
_HINT: Final = "_last_checkpoint"
_NAME: Final = re.compile(r"(\d{20})\.(json|checkpoint\.parquet|checkpoint\.(\d{10})\.(\d{10})\.parquet)")


class _LastCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int = msgspec.field()
    size: int = 0
    parts: int | None = None


class _Found(NamedTuple):
    """What lies in the folder of the log."""

    commits: dict[int, str]
    checkpoints: dict[int, list[str]]
    """Those of which all parts are there."""


class DeltaLog:
    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects = objects
        self._folder = folder

    async def read(self) -> State:
        """As it is now; version NOTHING: there is none."""
        hint = await self._hint()
        found = await self._found(hint)
        if hint != NOTHING and hint not in found.checkpoints:
            found = await self._found(NOTHING)
        newest = max(found.checkpoints, default=NOTHING)
        if newest == NOTHING:
            return await self._followed(State(), found.commits)
        from lakestream.catalog.delta.checkpoint import state_at  # Arrow takes a second to load

        keys = found.checkpoints[newest]
        bodies = [bytes(body) for body in await together([self._objects.get(key) for key in keys], READS_AT_ONCE)]
        state = await asyncio.to_thread(state_at, newest, bodies, keys[0])
        return await self._followed(state, found.commits)

    async def catch_up(self, state: State) -> State:
        """With what was committed since. Corrupt: it is not the log it was."""
        if state.version == NOTHING:
            return await self.read()
        found = await self._found(state.version)
        if state.version not in found.commits:
            raise Corrupt(f"{self._folder} has no commit {state.version} any more: somebody removed or replaced it")
        return await self._followed(state, found.commits)

    async def commit(self, state: State, actions: Iterable[Action]) -> State:
        """The one behind `state`. Conflict: somebody else was first. Uncertain: it may be there."""
        listed = list(actions)
        version = state.version + 1
        await self._objects.create(self._key(f"{version:020d}.json"), [encoded(listed)])
        return state.after(version, listed)

    async def write_checkpoint(self, state: State) -> State:
        from lakestream.catalog.delta.checkpoint import checkpoint_of  # Arrow takes a second to load

        body, count = await asyncio.to_thread(checkpoint_of, state)
        await self._objects.put(self._key(f"{state.version:020d}.checkpoint.parquet"), [body])
        hint = msgspec.json.encode(_LastCheckpoint(state.version, count))
        await self._objects.put(self._key(_HINT), [hint])
        return replace(state, checkpoint=state.version)

    async def forget_old(self, now_ms: int) -> int:
        """Removes what lies before the newest checkpoint that is old enough; how many files that were."""
        listed = [info async for page in self._objects.walk(self._folder) for info in page]
        numbered = [(number, info) for info in listed if (number := _number(info)) is not None]
        before = max(
            (number for number, info in numbered if info.modified_ms < now_ms - LOG_KEPT_MS and _is_checkpoint(info)),
            default=NOTHING,
        )
        old = [info.key for number, info in numbered if number < before]
        if old:
            await self._objects.delete(old)
        return len(old)

    async def _followed(self, state: State, commits: dict[int, str]) -> State:
        """In order, and none is left out."""
        numbers = sorted(number for number in commits if number > state.version)
        if not numbers:
            return state
        if numbers != list(range(state.version + 1, numbers[-1] + 1)):
            raise Corrupt(f"{self._folder} lacks a commit between {state.version} and {numbers[-1]}")
        bodies = await together([self._objects.get(commits[number]) for number in numbers], READS_AT_ONCE)
        for number, body in zip(numbers, bodies, strict=True):
            state = state.after(number, decoded(bytes(body), commits[number]))
        return state

    async def _found(self, since: int) -> _Found:
        """From that version on, with it."""
        commits: dict[int, str] = {}
        parts: dict[int, dict[int, list[str]]] = {}
        after = self._key(f"{since:020d}") if since != NOTHING else ""
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
        return _Found(commits, whole)

    async def _hint(self) -> int:
        """Where readers are told to begin. One that nobody can read is none."""
        try:
            body = await self._objects.get(self._key(_HINT))
            return msgspec.json.decode(bytes(body), type=_LastCheckpoint).version
        except (Missing, msgspec.MsgspecError):
            return NOTHING

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _number(info: ObjectInfo) -> int | None:
    name = _NAME.fullmatch(info.key.rpartition("/")[2])
    return None if name is None else int(name.group(1))


def _is_checkpoint(info: ObjectInfo) -> bool:
    return info.key.endswith(".parquet")
