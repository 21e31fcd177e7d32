"""Groups and their committed offsets, as typed records over the metadata store.

Below: store.py, keys.py.  Above: coordination/groups, which decides what a group does.  Nothing is decided here.

**Whose turn it is.** A group is written by the broker that coordinates it, and two may believe that they do. So each
group has a record `owner`, which whoever writes puts last, at the version that it knows: offsets first, then the group,
then the owner. If that last put is refused, somebody else has taken the group over meanwhile, and nothing of this write
is called done. Who takes over puts the owner first and reads the rest after it: what the one before it has called done
is there then. It puts the group again, too, so that the one before cannot. The put of an offset expects a version, so
that what comes too late never covers what is newer.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from lakestream.errors import Conflict, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.group_records import AnyGroup as AnyGroup
from lakestream.metadata.group_records import Asked as Asked
from lakestream.metadata.group_records import Committed as Committed
from lakestream.metadata.group_records import ConsumerGroupRecord as ConsumerGroupRecord
from lakestream.metadata.group_records import GroupRecord as GroupRecord
from lakestream.metadata.group_records import Member as Member
from lakestream.metadata.group_records import Protocol as Protocol
from lakestream.metadata.group_records import State as State
from lakestream.metadata.group_records import group_of, offset_of, packed_group, packed_offset
from lakestream.metadata.store import ABSENT, ANY, MetadataStore, Put, Stored, put_one
from lakestream.model import PartitionId

CLAIMS_MAX: Final = 5
"""Tries to take a group over, while others do the same."""
NAMES_AT_ONCE: Final = 1_000


class StoredOffset(NamedTuple):
    committed: Committed
    version: int


class StoredGroup(NamedTuple):
    record: AnyGroup
    version: int


class Claimed(NamedTuple):
    """A group that was taken over. Without a record and an owner it is nobody's: there is no such group yet."""

    group: StoredGroup | None
    versions: dict[PartitionId, int]
    """Of its offsets."""
    owner: int


class Written(NamedTuple):
    """What became of a write. `lost`: some offsets are at other versions than expected, and all else is done."""

    group: int | None
    versions: dict[PartitionId, int]
    owner: int
    lost: frozenset[PartitionId]


class Replacing(NamedTuple):
    committed: Committed
    base: int
    """Version of the offset that was there when this one was asked for."""


class NamedGroup(NamedTuple):
    name: str
    created_ms: int


class Groups:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    # ── looks, by anybody ────────────────────────────────────────────────────────────────────────────────────────────

    async def names(self) -> list[NamedGroup]:
        found: list[NamedGroup] = []
        start = ""
        while True:
            page = (await self._store.scan(keys.GROUP_NAMES, start, limit=NAMES_AT_ONCE)).records
            found += [NamedGroup(keys.group_text(record.name), record.created_ms) for record in page]
            if len(page) < NAMES_AT_ONCE:
                return found
            start = f"{page[-1].name}{keys.NEXT_NAME}"

    async def get(self, name: str) -> StoredGroup | None:
        record = await self._store.get(keys.group_key(name), confirmed=True)
        return None if record is None else StoredGroup(group_of(record), record.version)

    async def offsets(self, name: str) -> dict[PartitionId, StoredOffset]:
        """All that was called done before this call is in it."""
        folder = keys.offsets_folder(name)
        found = (await self._store.scan(folder, "", keys.OWNER_NAME, confirmed=True)).records
        return {keys.offset_partition(one.name): StoredOffset(offset_of(one), one.version) for one in found}

    async def commit_asked(self, name: str, wanted: Mapping[PartitionId, "Replacing"]) -> None:
        """What a transaction held until now, by whoever ends it, however often. An offset that was asked for later
        stays, and so do those of a group that was deleted meanwhile: away.

        Unavailable: others write all the time, or the store does not answer."""
        left = {one: (wish.committed, wish.base) for one, wish in wanted.items()}
        made: dict[PartitionId, int] = {}
        for _ in range(CLAIMS_MAX):
            lost = await self._put_offsets(name, left, made)
            if not lost or not await self._is_alive(name):
                break
            there = await self.offsets(name)
            left = {
                one: (wanted[one].committed, there[one].version if one in there else ABSENT)
                for one in lost
                if one not in there or there[one].committed.asked < wanted[one].committed.asked
            }
        else:
            raise Unavailable(f"the offsets of group {name} change all the time; try again")
        if made and not await self._is_alive(name):
            await self._remove_made(name, made)

    async def _put_offsets(
        self, name: str, wanted: Mapping[PartitionId, tuple[Committed, int]], made: dict[PartitionId, int]
    ) -> list[PartitionId]:
        """Those that were at another version. `made`: takes the versions of those that were not there before."""
        puts = [Put(keys.offset_key(name, one), packed_offset(value), base) for one, (value, base) in wanted.items()]
        lost = []
        for (partition, (_, base)), answer in zip(wanted.items(), await self._store.put(puts), strict=True):
            if isinstance(answer, Conflict):
                lost.append(partition)
            elif not isinstance(answer, Stored):
                raise answer
            elif base == ABSENT:
                made[partition] = answer.version
        return lost

    async def _remove_made(self, name: str, made: Mapping[PartitionId, int]) -> None:
        for partition, version in made.items():
            with suppress(Conflict):
                await self._store.delete(keys.offset_key(name, partition), version)

    async def _is_alive(self, name: str) -> bool:
        group = await self.get(name)
        return group is not None and not group.record.is_dead

    # ── what a coordinator does ──────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, name: str, who: str) -> Claimed:
        """Take a group over, and read it. Whoever had it before can write it no longer."""
        for _ in range(CLAIMS_MAX):
            there = await self._store.get(keys.owner_key(name), confirmed=True)
            if there is None:
                return Claimed(None, {}, ABSENT)
            try:
                owner = await put_one(self._store, keys.owner_key(name), who.encode(), there.version)
            except Conflict:
                continue
            group = await self._put_again(name)
            offsets = await self.offsets(name)
            return Claimed(group, {one: stored.version for one, stored in offsets.items()}, owner.version)
        raise Unavailable(f"group {name}: brokers take it from one another; try again")

    async def _put_again(self, name: str) -> StoredGroup | None:
        """As it is, at another version: the one before cannot change it any more."""
        for _ in range(CLAIMS_MAX):
            there = await self._store.get(keys.group_key(name), confirmed=True)
            if there is None:
                return None
            try:
                stored = await put_one(self._store, keys.group_key(name), there.value, there.version)
            except Conflict:
                continue
            return StoredGroup(group_of(there), stored.version)
        raise Unavailable(f"group {name}: another broker writes it all the time; try again")

    async def write(
        self,
        name: str,
        who: str,
        owner: int,
        offsets: Sequence[tuple[PartitionId, Committed, int]],
        group: tuple[AnyGroup, int] | None,
    ) -> Written:
        """Offsets, each with the version that is expected, the group if it changed, and whose turn it is.

        Conflict: somebody else has the group by now. Unavailable, Uncertain: it is not known what was done."""
        if owner == ABSENT:
            await put_one(self._store, keys.group_name_key(name), b"", ANY)
        puts = [Put(keys.offset_key(name, one), packed_offset(value), version) for one, value, version in offsets]
        if group is not None:
            puts.append(Put(keys.group_key(name), packed_group(group[0]), group[1]))
        puts.append(Put(keys.owner_key(name), who.encode(), owner))
        *answers, own = await self._store.put(puts)
        told = answers.pop() if group is not None else None
        for answer in (own, told, *answers):  # the last put first: only with it do the others count
            if answer is not None and not isinstance(answer, Stored | Conflict):
                raise answer
        if not isinstance(own, Stored):
            raise own
        if isinstance(told, Conflict):
            raise told
        stored = {
            one[0]: answer.version for one, answer in zip(offsets, answers, strict=True) if isinstance(answer, Stored)
        }
        lost = frozenset(one[0] for one in offsets if one[0] not in stored)
        return Written(told.version if isinstance(told, Stored) else None, stored, own.version, lost)

    async def remove_offsets(self, name: str, versions: Mapping[PartitionId, int]) -> None:
        """Conflict: one was committed to meanwhile."""
        for partition, version in versions.items():
            await self._store.delete(keys.offset_key(name, partition), version)

    async def remove(self, name: str, group: int, owner: int) -> None:
        """A group that is dead in the store: whoever finds it so goes on with this. Its name goes last."""
        await self._store.delete_range(keys.offsets_folder(name), "", keys.OWNER_NAME)
        await self._store.delete(keys.group_key(name), group)
        if owner != ABSENT:
            await self._store.delete(keys.owner_key(name), owner)
        await self.remove_name(name)

    async def remove_name(self, name: str) -> None:
        await self._store.delete(keys.group_name_key(name))
