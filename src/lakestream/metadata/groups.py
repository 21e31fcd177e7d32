"""Records of groups and their committed offsets in the metadata store.

Below: store.py, keys.py.  Above: coordination/groups, which decides the state transitions. Nothing is decided here.

**Ownership.** A group is written by its coordinator, and two brokers may believe to be the coordinator. So each group
has an `owner` record. Every write puts it last, at the version that the coordinator has read: offsets first, then the
group, then the owner. If that last put conflicts, another broker has taken over, and nothing of this write is
acknowledged. A new coordinator puts the owner first and reads the other records after it, so it reads everything that
its predecessor has acknowledged. It also puts the group again, so that its predecessor can no longer write it. The put
of offsets expects a version, so that a late write never replaces a newer one.

**Offsets.** The coordinator puts the offsets of up to 32 neighbouring partitions of a topic as one record, a block: a
request with ten offsets costs two puts instead of eleven. Transactions are completed by any broker, which puts the
offset of each partition as its own record; so did earlier versions of Lakestream for all offsets. If a partition has an
offset in both, the one with the later sequence is its committed offset.

The times of the members' last heartbeats are put without a version: a late write of a former coordinator may replace
newer times, and the next coordinator limits what wrong times can cause (coordination/groups/member_sessions.py).
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple

from lakestream.errors import Conflict, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.group_records import AnyGroupRecord as AnyGroupRecord
from lakestream.metadata.group_records import (
    BlockId,
    block_of,
    group_of,
    heartbeats_of,
    offset_of,
    packed_block,
    packed_group,
    packed_heartbeats,
    packed_offset,
)
from lakestream.metadata.group_records import Committed as Committed
from lakestream.metadata.group_records import ConsumerGroupRecord as ConsumerGroupRecord
from lakestream.metadata.group_records import GroupRecord as GroupRecord
from lakestream.metadata.group_records import GroupState as GroupState
from lakestream.metadata.group_records import Member as Member
from lakestream.metadata.group_records import MemberProtocol as MemberProtocol
from lakestream.metadata.store import ABSENT, ANY, Key, MetadataStore, Put, Record, Scanned, Stored, put_one
from lakestream.model import PartitionId

CLAIMS_MAX: Final = 5
"""Attempts to take over a group while other brokers do the same."""
NAMES_PER_PAGE: Final = 1_000


class StoredOffset(NamedTuple):
    committed: Committed
    version: int
    """Version of the partition's own record, ABSENT if it has none."""


class OffsetBlock(NamedTuple):
    """Committed offsets of a block, by partition number, and the version of its record."""

    offsets: dict[int, Committed]
    version: int


class StoredOffsets(NamedTuple):
    """The committed offsets of a group as they are stored."""

    single: dict[PartitionId, StoredOffset]
    blocks: dict[BlockId, OffsetBlock]

    def latest(self) -> dict[PartitionId, StoredOffset]:
        """Returns the committed offset of each partition."""
        latest = dict(self.single)
        for block_id, block in self.blocks.items():
            for number, committed in block.offsets.items():
                partition = PartitionId(block_id.topic_id, number)
                single = self.single.get(partition)
                if single is None:
                    latest[partition] = StoredOffset(committed, ABSENT)
                elif single.committed.sequence <= committed.sequence:
                    latest[partition] = StoredOffset(committed, single.version)
        return latest


class StoredGroup(NamedTuple):
    record: AnyGroupRecord
    version: int


class ClaimedGroup(NamedTuple):
    """A group after a takeover. Without a record and an owner, the group does not exist yet."""

    group: StoredGroup | None
    blocks: dict[BlockId, OffsetBlock]
    owner: int
    """Version of the owner record, or ABSENT."""
    heard_ms: Mapping[str, int] = MappingProxyType({})
    """When its members were heard last, by the store's clock, as far as it is stored."""


class GroupWriteResult(NamedTuple):
    """Result of a write. `lost` blocks had other versions than expected; everything else was written."""

    group: int | None
    versions: dict[BlockId, int]
    owner: int
    lost: frozenset[BlockId]


class OffsetUpdate(NamedTuple):
    committed: Committed
    base: int
    """Version of the stored offset when this one was received."""


class NamedGroup(NamedTuple):
    name: str
    created_ms: int


class Groups:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    # ── reads, and transactional offsets: by any broker ──────────────────────────────────────────────────────────────

    async def names(self) -> list[NamedGroup]:
        names: list[NamedGroup] = []
        start = ""
        while True:
            page = (await self._store.scan(keys.GROUP_NAMES, start, limit=NAMES_PER_PAGE)).records
            names += [NamedGroup(keys.group_text(record.name), record.created_ms) for record in page]
            if len(page) < NAMES_PER_PAGE:
                return names
            start = f"{page[-1].name}{keys.NEXT_NAME}"

    async def get(self, name: str) -> StoredGroup | None:
        record = await self._store.get(keys.group_key(name), confirmed=True)
        return None if record is None else StoredGroup(group_of(record), record.version)

    async def offsets(self, name: str, *, confirmed: bool = True) -> dict[PartitionId, StoredOffset]:
        """Returns the committed offsets; if confirmed, with all that were acknowledged before this call."""
        return (await self.stored_offsets(name, confirmed=confirmed)).latest()

    async def stored_offsets(self, name: str, *, confirmed: bool = True) -> StoredOffsets:
        return stored_offsets_of((await self._scan_offsets(name, confirmed=confirmed)).records)

    async def _scan_offsets(self, name: str, guard: Key | None = None, *, confirmed: bool = True) -> Scanned:
        folder = keys.offsets_folder(name)
        return await self._store.scan(folder, "", keys.OWNER_NAME, guard=guard, confirmed=confirmed)

    async def commit_transaction_offsets(self, name: str, updates: Mapping[PartitionId, OffsetUpdate]) -> None:
        """Commits the offsets of a transaction. Idempotent, for any broker that completes the transaction.

        Does not replace an offset with a later sequence, and does not restore offsets of a deleted group. Raises
        Unavailable if the offsets are changed concurrently all the time, or if the store does not respond.
        """
        pending = {partition: (update.committed, update.base) for partition, update in updates.items()}
        created: dict[PartitionId, int] = {}
        for _ in range(CLAIMS_MAX):
            lost = await self._put_offsets(name, pending, created)
            if not lost or not await self._exists(name):
                break
            stored = await self.offsets(name)
            pending = {
                partition: (updates[partition].committed, stored[partition].version if partition in stored else ABSENT)
                for partition in lost
                if partition not in stored
                or stored[partition].committed.sequence < updates[partition].committed.sequence
            }
        else:
            raise Unavailable(f"group {name}: its offsets changed during {CLAIMS_MAX} attempts: retry")
        if created and not await self._exists(name):
            await self._delete_offsets(name, created)

    async def _put_offsets(
        self, name: str, offsets: Mapping[PartitionId, tuple[Committed, int]], created: dict[PartitionId, int]
    ) -> list[PartitionId]:
        """Returns the partitions with another version. Adds the versions of offsets that did not exist to `created`."""
        puts = [Put(keys.offset_key(name, one), packed_offset(value), base) for one, (value, base) in offsets.items()]
        lost = []
        for (partition, (_, base)), result in zip(offsets.items(), await self._store.put(puts), strict=True):
            if isinstance(result, Conflict):
                lost.append(partition)
            elif not isinstance(result, Stored):
                raise result
            elif base == ABSENT:
                created[partition] = result.version
        return lost

    async def _delete_offsets(self, name: str, versions: Mapping[PartitionId, int]) -> None:
        for partition, version in versions.items():
            with suppress(Conflict):
                await self._store.delete(keys.offset_key(name, partition), version)

    async def _exists(self, name: str) -> bool:
        group = await self.get(name)
        return group is not None and not group.record.is_dead

    # ── writes: by the coordinator ───────────────────────────────────────────────────────────────────────────────────

    async def claim(self, name: str, owner_name: str) -> ClaimedGroup:
        """Takes over a group and reads it. Its previous coordinator can no longer write it."""
        for _ in range(CLAIMS_MAX):
            record = await self._store.get(keys.owner_key(name), confirmed=True)
            if record is None:
                return ClaimedGroup(None, {}, ABSENT)
            try:
                owner = await put_one(self._store, keys.owner_key(name), owner_name.encode(), record.version)
            except Conflict:
                continue
            group = await self._rewrite_group(name)
            scanned = await self._scan_offsets(name, keys.heartbeats_key(name))
            heard_ms = {} if scanned.guard is None else heartbeats_of(scanned.guard)
            return ClaimedGroup(group, stored_offsets_of(scanned.records).blocks, owner.version, heard_ms)
        raise Unavailable(f"group {name}: other brokers took it over during {CLAIMS_MAX} attempts: retry")

    async def _rewrite_group(self, name: str) -> StoredGroup | None:
        """Puts the group unchanged, with a new version, so that its previous coordinator cannot change it."""
        for _ in range(CLAIMS_MAX):
            record = await self._store.get(keys.group_key(name), confirmed=True)
            if record is None:
                return None
            try:
                stored = await put_one(self._store, keys.group_key(name), record.value, record.version)
            except Conflict:
                continue
            return StoredGroup(group_of(record), stored.version)
        raise Unavailable(f"group {name}: another broker changed it during {CLAIMS_MAX} attempts: retry")

    async def write(
        self,
        name: str,
        owner_name: str,
        owner: int,
        blocks: Mapping[BlockId, OffsetBlock],
        group: tuple[AnyGroupRecord, int] | None,
        heard_ms: Mapping[str, int] | None = None,
    ) -> GroupWriteResult:
        """Writes blocks of offsets, each with its expected version, the times of the last heartbeats if given, the
        group if it changed, and the owner.

        Raises Conflict if another broker has taken over, Unavailable or Uncertain if the outcome is unknown.
        """
        if owner == ABSENT:
            await put_one(self._store, keys.group_name_key(name), b"", ANY)
        puts = [
            Put(keys.offset_block_key(name, *one), packed_block(block.offsets), block.version)
            for one, block in blocks.items()
        ]
        if heard_ms is not None:
            puts.append(_put_of_heartbeats(name, heard_ms))
        if group is not None:
            puts.append(Put(keys.group_key(name), packed_group(group[0]), group[1]))
        puts.append(Put(keys.owner_key(name), owner_name.encode(), owner))
        *results, owner_result = await self._store.put(puts)
        group_result = results.pop() if group is not None else None
        heartbeats_result = results.pop() if heard_ms is not None else None
        for result in (
            owner_result,
            group_result,
            heartbeats_result,
            *results,
        ):  # the owner first: without it, nothing is acknowledged
            if result is not None and not isinstance(result, Stored | Conflict):
                raise result
        if not isinstance(owner_result, Stored):
            raise owner_result
        if isinstance(group_result, Conflict):
            raise group_result
        stored = {
            one: result.version for one, result in zip(blocks, results, strict=True) if isinstance(result, Stored)
        }
        lost = frozenset(one for one in blocks if one not in stored)
        group_version = group_result.version if isinstance(group_result, Stored) else None
        return GroupWriteResult(group_version, stored, owner_result.version, lost)

    async def put_heartbeats(self, name: str, heard_ms: Mapping[str, int]) -> None:
        put = _put_of_heartbeats(name, heard_ms)
        await put_one(self._store, put.key, put.value)

    async def remove_offsets(self, name: str, versions: Mapping[PartitionId, int]) -> None:
        """Deletes partitions' own records of offsets. Raises Conflict if one was committed concurrently."""
        for partition, version in versions.items():
            await self._store.delete(keys.offset_key(name, partition), version)

    async def remove_blocks(self, name: str, versions: Mapping[BlockId, int]) -> None:
        """Deletes blocks. Raises Conflict if one was put concurrently."""
        for block_id, version in versions.items():
            await self._store.delete(keys.offset_block_key(name, *block_id), version)

    async def remove(self, name: str, group: int, owner: int) -> None:
        """Deletes a group whose stored state is dead, its name last. Any broker may finish it after a failure."""
        await self._store.delete_range(keys.offsets_folder(name), "", keys.OWNER_NAME)
        await self._store.delete(keys.heartbeats_key(name))
        await self._store.delete(keys.group_key(name), group)
        if owner != ABSENT:
            await self._store.delete(keys.owner_key(name), owner)
        await self.remove_name(name)

    async def remove_name(self, name: str) -> None:
        await self._store.delete(keys.group_name_key(name))


def stored_offsets_of(records: Iterable[Record]) -> StoredOffsets:
    stored = StoredOffsets({}, {})
    for record in records:
        if (block := keys.offset_block(record.name)) is not None:
            stored.blocks[BlockId(*block)] = OffsetBlock(block_of(record), record.version)
        else:
            stored.single[keys.offset_partition(record.name)] = StoredOffset(offset_of(record), record.version)
    return stored


def _put_of_heartbeats(name: str, heard_ms: Mapping[str, int]) -> Put:
    return Put(keys.heartbeats_key(name), packed_heartbeats(heard_ms))
