"""Mutants of the rules of groups and transactions (see mutants.py)."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from tests.simulation.mutant import Mutant

from lakestream.coordination.groups import classic_group, offset_rules
from lakestream.coordination.groups.coordinator import GroupCoordinator
from lakestream.coordination.groups.group_runtime import GroupRuntime
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.coordination.transactions import state_machine
from lakestream.coordination.transactions.completion import TransactionCompleter
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.coordination.transactions.expiration import TransactionExpirer
from lakestream.coordination.transactions.record_cache import TransactionRecordCache
from lakestream.data.log import claim_retry, log, partition_state
from lakestream.errors import Conflict, Fenced, LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import NO_TRANSACTION, BatchInfo
from lakestream.metadata.group_records import BlockId, packed_offset
from lakestream.metadata.groups import Groups as GroupRecords
from lakestream.metadata.groups import GroupWriteResult, OffsetBlock, StoredOffset, stored_offsets_of
from lakestream.metadata.store import ANY, Put
from lakestream.metadata.transactions import (
    NO_IDENTITY,
    Identity,
    StoredTransaction,
    Transaction,
    Transactions,
    TransactionState,
    _encode,
)
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch, control_batch

ANYWHERE = ("groups calm", "groups lossy", "groups zombies", "groups crashes")
STORMY = ("groups zombies", "groups storm", "groups crashes")
TWO_COORDINATORS = ("groups two coordinators", "groups storm")
ROUGH = ("groups lossy", "groups late", "groups storm")

# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_write = GroupRecords.write
Blocks = Mapping[BlockId, OffsetBlock]


async def _write_unconditionally(
    self: GroupRecords, name: str, owner_id: str, owner: int, blocks: Blocks, group: Any, heard_ms: Any = None
) -> GroupWriteResult:
    """Writes group and offsets whatever the stored versions are."""
    any_version: Any = ANY
    put_group = None if group is None else (group[0], any_version)
    puts = {one: block._replace(version=any_version) for one, block in blocks.items()}
    return await _write(self, name, owner_id, any_version, puts, put_group, heard_ms)


async def _ignore_conflict(
    self: GroupRecords, name: str, owner_id: str, owner: int, blocks: Blocks, group: Any, heard_ms: Any = None
) -> GroupWriteResult:
    """Continues with the cached group after a conflict."""
    try:
        return await _write(self, name, owner_id, owner, blocks, group, heard_ms)
    except Conflict:
        return GroupWriteResult(None, {}, owner, frozenset())


_commit_error = offset_rules.commit_error


def _any_generation(group: Any, identity: Committer) -> Any:
    return _commit_error(group, identity._replace(generation=getattr(group, "generation", identity.generation)))


def _any_committer(group: Any, identity: Committer) -> None:
    return None


_unknown_member_error = classic_group.unknown_member_error


def _accept_instance(members: Mapping[str, Any], member_id: str, instance_id: str | None) -> Any:
    """Accepts any member with the instance id as its newest member."""
    if instance_id is not None and classic_group.static_member(members, instance_id) is not None:
        return None
    return _unknown_member_error(members, member_id, instance_id)


async def _offsets_unconfirmed(self: GroupRecords, name: str) -> dict[PartitionId, StoredOffset]:
    return stored_offsets_of((await self._store.scan(keys.offsets_folder(name), "", keys.OWNER_NAME)).records).latest()


_end_joining = classic_group._GroupBuilder.end_joining


def _same_generation(self: Any, some_rules: Any) -> None:
    before = self.generation
    _end_joining(self, some_rules)
    self.generation = max(before, 1)


_check_commit = GroupCoordinator.check_commit


async def _skip_confirmed_check(self: GroupCoordinator, name: str, identity: Committer, *, confirmed: bool) -> Any:
    return None if confirmed else await _check_commit(self, name, identity, confirmed=False)


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _save_unconditionally(
    self: Transactions, transactional_id: str, record: Transaction, stored: StoredTransaction | None
) -> StoredTransaction:
    (result,) = await self._store.put([Put(keys.transaction_key(transactional_id), _encode(record), ANY)])
    if isinstance(result, Exception):
        raise result
    return StoredTransaction(record, result.version)


_end = TransactionCoordinator.end


async def _write_markers_first(
    self: TransactionCoordinator, transactional_id: str, identity: Identity, **options: Any
) -> Identity:
    record = self._cache.current(transactional_id)
    if record is not None and record.is_open and record.producer == identity:
        state = TransactionState.COMMITTING if options["commit"] else TransactionState.ABORTING
        for partition in record.partitions:
            await self.completer._write_marker(partition, replace(record, state=state, marking=identity), True)
    return await _end(self, transactional_id, identity, **options)


async def _mark_without_number(
    self: TransactionCompleter, partition: PartitionId, record: Transaction, decided: bool
) -> None:
    await _append_marker(self, partition, record, record.commits, NO_TRANSACTION)


_write_marker = TransactionCompleter._write_marker


async def _resume_as_abort(
    self: TransactionCompleter, partition: PartitionId, record: Transaction, decided: bool
) -> None:
    if decided:
        await _write_marker(self, partition, record, decided)
    else:
        await _append_marker(self, partition, record, False, record.number)


async def _append_marker(
    self: TransactionCompleter, partition: PartitionId, record: Transaction, commits: bool, number: int
) -> None:
    body = control_batch(*record.marking, commits, self._clock.now_ms(), 0)
    try:
        await self._log.append(partition, RecordBatch.parse(body), number)
    except (Missing, Fenced):
        return


async def _always_match(self: Any, draft: Any) -> bool:
    return True


async def _from_request(
    self: TransactionCoordinator, partition: PartitionId, batch: BatchInfo
) -> int | LakestreamError:
    return batch.transaction


_put_offsets = TransactionCoordinator.put_offsets


async def _commit_offsets_early(
    self: TransactionCoordinator, transactional_id: str, identity: Identity, group: str, offsets: Any, protocol: int
) -> None:
    await _put_offsets(self, transactional_id, identity, group, offsets, protocol)
    record = self._cache.current(transactional_id)
    if record is not None:
        await self._records.commit_offsets(record)


_ended = state_machine.completed


async def _commit_offsets_always(
    self: TransactionRecordCache, transactional_id: str, record: Transaction, stored: StoredTransaction | None
) -> StoredTransaction:
    """Commits the offsets of aborted transactions, too."""
    if stored is not None and stored.record.is_ending and stored.record.offsets:
        await self._records.commit_offsets(stored.record)
    return await _save(self, transactional_id, record, stored)


_save = TransactionRecordCache.save


async def _commit_offsets_unconditionally(self: Transactions, record: Transaction) -> None:
    puts = [
        Put(keys.offset_key(group, offset.partition), packed_offset(offset.committed), ANY)
        for group, offsets in record.offsets.items()
        for offset in offsets
    ]
    for result in await self._store.put(puts):
        if isinstance(result, Exception):
            raise result


async def _keep_stored_offset(self: GroupRecords, name: str, offsets: Mapping[PartitionId, Any]) -> None:
    """Keeps the stored offset on a conflict, even if it was requested earlier."""
    puts = {partition: (offset.committed, offset.base) for partition, offset in offsets.items()}
    await self._put_offsets(name, puts, {})


async def _register_once(self: TransactionCoordinator, group: str, transactional_id: str, transaction: Any) -> None:
    """Registers an id with a group once, although the entry is deleted when a transaction completes."""
    await _register_group(self, group, transactional_id, transaction._replace(number=0))


_register_group = TransactionCoordinator._register_group


async def _nothing_pending(self: TransactionCoordinator, group: str) -> set[PartitionId]:
    return set()


async def _no_check(self: TransactionCoordinator, *_: Any) -> None:
    return None


def _same_identity(producer: Identity, fresh_id: int) -> Identity:
    return producer


_timed_out = TransactionExpirer._timed_out


def _abort_decided(self: TransactionExpirer, record: Transaction | None) -> Transaction:
    if record is not None and record.state is TransactionState.COMMITTING:
        return replace(record, state=TransactionState.ABORTING)
    return _timed_out(self, record)


_validated = state_machine._validated


def _accept_any_epoch(record: Transaction | None, identity: Identity) -> Transaction:
    is_own_id = record is not None and record.producer.producer_id == identity.producer_id
    return _validated(record, record.producer if is_own_id and record is not None else identity)


def _forget_open(record: Transaction, now_ms: int, last: Identity = NO_IDENTITY) -> Transaction:
    """Marks an open transaction as completed without markers."""
    above = Identity(record.producer.producer_id, record.producer.epoch + 1)
    return replace(_ended(replace(record, state=TransactionState.ABORTING), now_ms), producer=above, last=last)


def _open_during_end(record: Transaction | None, identity: Identity, protocol: int, now_ms: int) -> Transaction:
    """Begins the next transaction while the previous one is ending."""
    if record is not None and record.is_ending:
        record = _ended(record, now_ms)
    return _opened(record, identity, protocol, now_ms)


_opened = state_machine._opened


async def _change_from_cache(self: TransactionRecordCache, transactional_id: str, decide: Any) -> StoredTransaction:
    """Decides and rejects by the cached record."""
    stored = self._cached.get(transactional_id) or await self.load(transactional_id)
    while True:
        effective = self._effective(transactional_id, stored)
        record = decide(effective)
        if record is effective and stored is not None and record is not None:
            return StoredTransaction(record, stored.version)
        try:
            return await self.save(transactional_id, record, stored)
        except Conflict:
            stored = await self.load(transactional_id)


def _end_as_stable(self: partition_state.PartitionState) -> int:
    return self.offset_end


def _none_aborted(self: log.Log, *_: Any) -> list[Any]:
    return []


COORDINATION_MUTANTS = (
    Mutant(
        "a group is written by compare-and-set",
        "every write of a group succeeds",
        [(GroupRecords, "write", _write_unconditionally)],
        STORMY,
    ),
    Mutant(
        "a broker drops a group after a conflict",
        "the group in memory stays after a conflict",
        [(GroupRecords, "write", _ignore_conflict)],
        TWO_COORDINATORS,
    ),
    Mutant(
        "no response is sent before its state change is stored",
        "responses are sent immediately",
        [(GroupRuntime, "_unstored", property(lambda self: None))],
        STORMY,
    ),
    Mutant(
        "each rebalance increments the generation",
        "the generation stays",
        [(classic_group._GroupBuilder, "end_joining", _same_generation)],
        ANYWHERE,
    ),
    Mutant(
        "commits need the newest generation",
        "any generation may commit",
        [(offset_rules, "commit_error", _any_generation)],
        ANYWHERE,
    ),
    Mutant(
        "commits need a member", "any client may commit", [(offset_rules, "commit_error", _any_committer)], ANYWHERE
    ),
    Mutant(
        "an instance id belongs to its newest member",
        "the previous member of an instance id stays valid",
        [
            (classic_group, "unknown_member_error", _accept_instance),
            (offset_rules, "unknown_member_error", _accept_instance),
        ],
        ANYWHERE,
    ),
    Mutant(
        "committed offsets are read with confirmation",
        "committed offsets are read from an old leader",
        [(GroupRecords, "offsets", _offsets_unconfirmed)],
        ("groups deposed",),
    ),
    Mutant(
        "a member is checked again with confirmation",
        "offsets are added to a transaction after a check of the cached group",
        [(GroupCoordinator, "check_commit", _skip_confirmed_check)],
        TWO_COORDINATORS,
    ),
    Mutant(
        "a transaction is changed by compare-and-set",
        "every change of a transaction succeeds",
        [(Transactions, "save", _save_unconditionally)],
        STORMY,
    ),
    Mutant(
        "a decision is stored before markers are written",
        "markers are written first",
        [(TransactionCoordinator, "end", _write_markers_first)],
        ANYWHERE,
    ),
    Mutant(
        "a marker has a transaction number",
        "markers have no transaction number",
        [(TransactionCompleter, "_write_marker", _mark_without_number)],
        ANYWHERE,
    ),
    Mutant(
        "an end is resumed with its stored decision",
        "an end that another broker began is aborted",
        [(TransactionCompleter, "_write_marker", _resume_as_abort)],
        STORMY,
    ),
    Mutant(
        "the transaction of a batch is checked before its claim",
        "the check when the batch arrived is sufficient",
        [(claim_retry._RetryLoop, "_transactions_match", _always_match)],
        STORMY,
    ),
    Mutant(
        "the transaction of a batch is read from the store",
        "the cached transaction is used",
        [(TransactionCoordinator, "transaction_of", _from_request)],
        STORMY,
    ),
    Mutant(
        "offsets wait for the decision",
        "offsets are committed immediately",
        [(TransactionCoordinator, "put_offsets", _commit_offsets_early)],
        ANYWHERE,
    ),
    Mutant(
        "offsets of an aborted transaction are dropped",
        "offsets of an aborted transaction are committed",
        [(TransactionRecordCache, "save", _commit_offsets_always)],
        ANYWHERE,
    ),
    Mutant(
        "an offset replaces only its base version",
        "a late end overwrites newer offsets",
        [(Transactions, "commit_offsets", _commit_offsets_unconditionally)],
        ("groups late", "groups storm"),
    ),
    Mutant(
        "of two offsets the later request wins",
        "the stored offset wins",
        [(GroupRecords, "commit_transaction_offsets", _keep_stored_offset)],
        ("groups calm",),
    ),
    Mutant(
        "pending offsets are not returned",
        "a fetch of stable offsets returns the old ones",
        [(TransactionCoordinator, "pending", _nothing_pending)],
        ROUGH,
    ),
    Mutant(
        "each transaction is registered with its groups",
        "only the first one is pending",
        [(TransactionCoordinator, "_register_group", _register_once)],
        ROUGH,
    ),
    Mutant(
        "a group is locked before its versions are read",
        "versions are read while the previous transaction is ending",
        [(TransactionCoordinator, "ensure_group", _no_check)],
        ROUGH,
    ),
    Mutant(
        "a new producer has a new epoch",
        "all producers have the same epoch",
        [(state_machine, "_next_identity", _same_identity)],
        ANYWHERE,
    ),
    Mutant(
        "an old epoch is fenced",
        "any epoch is accepted",
        [(state_machine, "_validated", _accept_any_epoch)],
        ANYWHERE,
    ),
    Mutant(
        "a timeout aborts only open transactions",
        "a committed transaction is aborted",
        [(TransactionExpirer, "_timed_out", _abort_decided)],
        ROUGH,
    ),
    Mutant(
        "an open transaction gets abort markers",
        "an open transaction is forgotten",
        [(state_machine, "fenced", _forget_open)],
        ANYWHERE,
    ),
    Mutant(
        "a transaction begins when the previous one has ended",
        "a transaction begins immediately",
        [(state_machine, "_opened", _open_during_end)],
        ANYWHERE,
    ),
    Mutant(
        "a request is rejected only after a confirmed read",
        "a request is rejected by the cached record",
        [(TransactionRecordCache, "change", _change_from_cache)],
        STORMY,
    ),
    Mutant(
        "readers of committed records stop at the last stable offset",
        "readers of committed records get all records",
        [(partition_state.PartitionState, "last_stable_offset", property(_end_as_stable))],
        ("groups calm", "groups zombies"),
    ),
    Mutant(
        "fetch responses list aborted transactions",
        "fetch responses list no aborted transactions",
        [(log.Log, "aborted", _none_aborted)],
        ("groups calm",),
    ),
)
