"""The rules of groups and transactions, each of which can be switched off: see mutants.py."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from tests.simulation.mutant import Mutant

from lakestream.batch import RecordBatch, control_batch
from lakestream.coordination.groups import classic, offsets
from lakestream.coordination.groups.coordinator import Groups
from lakestream.coordination.groups.held import Held
from lakestream.coordination.groups.offsets import Committer
from lakestream.coordination.transactions import machine
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.coordination.transactions.ending import Endings
from lakestream.coordination.transactions.patrol import Patrol
from lakestream.coordination.transactions.shelf import Shelf
from lakestream.data.log import fold, log, struggle
from lakestream.errors import Conflict, Fenced, LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import NO_TRANSACTION, BatchInfo
from lakestream.metadata.group_records import offset_of, packed_offset
from lakestream.metadata.groups import Groups as GroupRecords
from lakestream.metadata.groups import StoredOffset, Written
from lakestream.metadata.store import ANY, Put
from lakestream.metadata.transactions import (
    NOBODY,
    Identity,
    Known,
    State,
    Transaction,
    Transactions,
    _encode,
)
from lakestream.model import PartitionId

ANYWHERE = ("groups calm", "groups lossy", "groups zombies", "groups crashes")
STORMY = ("groups zombies", "groups storm", "groups crashes")
DOUBLED = ("groups doubled", "groups storm")
ROUGH = ("groups lossy", "groups late", "groups storm")

# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_write = GroupRecords.write


async def _write_blindly(
    self: GroupRecords, name: str, who: str, owner: int, some: Sequence[Any], group: Any
) -> Written:
    """Whatever is there."""
    blind: Any = ANY
    told = None if group is None else (group[0], blind)
    return await _write(self, name, who, blind, [(one, committed, blind) for one, committed, _ in some], told)


async def _write_regardless(
    self: GroupRecords, name: str, who: str, owner: int, some: Sequence[Any], group: Any
) -> Written:
    """Who was refused goes on with what it remembers."""
    try:
        return await _write(self, name, who, owner, some, group)
    except Conflict:
        return Written(None, {}, owner, frozenset())


_refusal = offsets.commit_refusal


def _any_generation(group: Any, who: Committer) -> Any:
    return _refusal(group, who._replace(generation=getattr(group, "generation", who.generation)))


def _anybody(group: Any, who: Committer) -> None:
    return None


_stranger = classic.stranger


def _by_instance(members: Mapping[str, Any], member_id: str, instance_id: str | None) -> Any:
    """Who has the instance id is taken for the one that it was given to last."""
    if instance_id is not None and classic.static_member(members, instance_id) is not None:
        return None
    return _stranger(members, member_id, instance_id)


async def _offsets_of_any_node(self: GroupRecords, name: str) -> dict[PartitionId, StoredOffset]:
    found = (await self._store.scan(keys.offsets_folder(name), "", keys.OWNER_NAME)).records
    return {keys.offset_partition(one.name): StoredOffset(offset_of(one), one.version) for one in found}


_end_joining = classic._Draft.end_joining


def _same_generation(self: Any, some_rules: Any) -> None:
    before = self.generation
    _end_joining(self, some_rules)
    self.generation = max(before, 1)


_check_commit = Groups.check_commit


async def _certain_already(self: Groups, name: str, who: Committer, *, certain: bool) -> Any:
    return None if certain else await _check_commit(self, name, who, certain=False)


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _save_blindly(self: Transactions, transactional_id: str, record: Transaction, known: Known | None) -> Known:
    (stored,) = await self._store.put([Put(keys.transaction_key(transactional_id), _encode(record), ANY)])
    if isinstance(stored, Exception):
        raise stored
    return Known(record, stored.version)


_end = TransactionCoordinator.end


async def _mark_first(self: TransactionCoordinator, transactional_id: str, who: Identity, **options: Any) -> Identity:
    record = self._shelf.seen(transactional_id)
    if record is not None and record.is_open and record.producer == who:
        state = State.COMMITTING if options["commit"] else State.ABORTING
        for one in record.partitions:
            await self.endings._mark(one, replace(record, state=state, marking=who), True)
    return await _end(self, transactional_id, who, **options)


async def _mark_without_number(self: Endings, partition: PartitionId, record: Transaction, decided: bool) -> None:
    await _append_marker(self, partition, record, record.commits, NO_TRANSACTION)


_mark = Endings._mark


async def _resume_as_abort(self: Endings, partition: PartitionId, record: Transaction, decided: bool) -> None:
    if decided:
        await _mark(self, partition, record, decided)
    else:
        await _append_marker(self, partition, record, False, record.number)


async def _append_marker(
    self: Endings, partition: PartitionId, record: Transaction, commits: bool, number: int
) -> None:
    body = control_batch(*record.marking, commits, self._clock.now_ms(), 0)
    try:
        await self._log.append(partition, RecordBatch.parse(body), number)
    except (Missing, Fenced):
        return


async def _right(self: Any, draft: Any) -> bool:
    return True


async def _from_memory(self: TransactionCoordinator, partition: PartitionId, batch: BatchInfo) -> int | LakestreamError:
    return batch.transaction


_put_offsets = TransactionCoordinator.put_offsets


async def _commit_offsets_early(
    self: TransactionCoordinator, transactional_id: str, who: Identity, group: str, some: Any, protocol: int
) -> None:
    await _put_offsets(self, transactional_id, who, group, some, protocol)
    record = self._shelf.seen(transactional_id)
    if record is not None:
        await self._records.commit_offsets(record)


_ended = machine.ended


async def _commit_offsets_always(self: Shelf, transactional_id: str, record: Transaction, known: Known | None) -> Known:
    """Also those of a transaction that was aborted."""
    if known is not None and known.record.is_ending and known.record.offsets:
        await self._records.commit_offsets(known.record)
    return await _save(self, transactional_id, record, known)


_save = Shelf.save


async def _commit_offsets_blindly(self: Transactions, record: Transaction) -> None:
    puts = [
        Put(keys.offset_key(group, one.partition), packed_offset(one.committed), ANY)
        for group, some in record.offsets.items()
        for one in some
    ]
    for answer in await self._store.put(puts):
        if isinstance(answer, Exception):
            raise answer


async def _conflict_is_newer(self: GroupRecords, name: str, wanted: Mapping[PartitionId, Any]) -> None:
    """Whoever was faster is taken for the later one."""
    await self._put_offsets(name, {one: (wish.committed, wish.base) for one, wish in wanted.items()}, {})


async def _nothing_pending(self: TransactionCoordinator, group: str) -> set[PartitionId]:
    return set()


async def _not_held(self: TransactionCoordinator, *_: Any) -> None:
    return None


def _same_identity(producer: Identity, fresh_id: int) -> Identity:
    return producer


_timed_out = Patrol._timed_out


def _abort_decided(self: Patrol, record: Transaction | None) -> Transaction:
    if record is not None and record.state is State.COMMITTING:
        return replace(record, state=State.ABORTING)
    return _timed_out(self, record)


_owned = machine._owned


def _any_epoch(record: Transaction | None, who: Identity) -> Transaction:
    known = record is not None and record.producer.producer_id == who.producer_id
    return _owned(record, record.producer if known and record is not None else who)


def _just_forget(record: Transaction, now_ms: int, last: Identity = NOBODY) -> Transaction:
    """What is open is taken for ended at once."""
    above = Identity(record.producer.producer_id, record.producer.epoch + 1)
    return replace(_ended(replace(record, state=State.ABORTING), now_ms), producer=above, last=last)


def _open_over(record: Transaction | None, who: Identity, protocol: int, now_ms: int) -> Transaction:
    """The next one begins while the one before is ending."""
    if record is not None and record.is_ending:
        record = _ended(record, now_ms)
    return _opened(record, who, protocol, now_ms)


_opened = machine._opened


async def _change_from_memory(self: Shelf, transactional_id: str, decide: Any) -> Known:
    """What is refused is refused by what this broker remembers."""
    known = self._known.get(transactional_id) or await self.load(transactional_id)
    while True:
        seen = self._seen(transactional_id, known)
        record = decide(seen)
        if record is seen and known is not None and record is not None:
            return Known(record, known.version)
        try:
            return await self.save(transactional_id, record, known)
        except Conflict:
            known = await self.load(transactional_id)


def _to_the_end(self: fold.Fold) -> int:
    return self.offset_end


def _none_aborted(self: log.Log, *_: Any) -> list[Any]:
    return []


COORDINATION_MUTANTS = (
    Mutant(
        "a group is written by whose turn it is",
        "every write succeeds",
        [(GroupRecords, "write", _write_blindly)],
        STORMY,
    ),
    Mutant(
        "who lost its turn forgets the group",
        "what is in memory stays after a lost compare-and-set",
        [(GroupRecords, "write", _write_regardless)],
        DOUBLED,
    ),
    Mutant(
        "nobody hears of a step before it is stored",
        "members are told at once",
        [(Held, "_unstored", property(lambda self: None))],
        STORMY,
    ),
    Mutant(
        "each rebalance is a generation",
        "the number stays",
        [(classic._Draft, "end_joining", _same_generation)],
        ANYWHERE,
    ),
    Mutant(
        "a commit is of the newest generation",
        "any generation may commit",
        [(offsets, "commit_refusal", _any_generation)],
        ANYWHERE,
    ),
    Mutant("only members commit", "anybody may commit", [(offsets, "commit_refusal", _anybody)], ANYWHERE),
    Mutant(
        "an instance id is its newest member's",
        "the one before may go on",
        [(classic, "stranger", _by_instance), (offsets, "stranger", _by_instance)],
        ANYWHERE,
    ),
    Mutant(
        "committed offsets are read for certain",
        "an old leader says how far a group is",
        [(GroupRecords, "offsets", _offsets_of_any_node)],
        ("groups deposed",),
    ),
    Mutant(
        "a member is checked once more",
        "offsets become part of a transaction by one look from memory",
        [(Groups, "check_commit", _certain_already)],
        DOUBLED,
    ),
    Mutant(
        "a transaction is changed at the version that is known",
        "every change succeeds",
        [(Transactions, "save", _save_blindly)],
        STORMY,
    ),
    Mutant(
        "a decision is stored before the logs hear of it",
        "markers go out first",
        [(TransactionCoordinator, "end", _mark_first)],
        ANYWHERE,
    ),
    Mutant("a marker has a number", "markers without one", [(Endings, "_mark", _mark_without_number)], ANYWHERE),
    Mutant(
        "an end is resumed as it was decided",
        "what another began is aborted",
        [(Endings, "_mark", _resume_as_abort)],
        STORMY,
    ),
    Mutant(
        "a transaction is asked for before it begins in a log",
        "what was known when the batch came is believed",
        [(struggle._Struggle, "_is_right", _right)],
        STORMY,
    ),
    Mutant(
        "it is asked of the store",
        "what is in memory is believed",
        [(TransactionCoordinator, "transaction_of", _from_memory)],
        STORMY,
    ),
    Mutant(
        "offsets wait for the decision",
        "offsets are committed as they come",
        [(TransactionCoordinator, "put_offsets", _commit_offsets_early)],
        ANYWHERE,
    ),
    Mutant(
        "offsets of an aborted transaction are dropped",
        "they are committed all the same",
        [(Shelf, "save", _commit_offsets_always)],
        ANYWHERE,
    ),
    Mutant(
        "an offset replaces the one that it was meant for",
        "an end that comes late covers newer offsets",
        [(Transactions, "commit_offsets", _commit_offsets_blindly)],
        ("groups late", "groups storm"),
    ),
    Mutant(
        "of two offsets the one stays that was asked for later",
        "the one that is there",
        [(GroupRecords, "commit_asked", _conflict_is_newer)],
        ("groups calm",),
    ),
    Mutant(
        "offsets that may change are not told",
        "who asks for stable ones is told the old",
        [(TransactionCoordinator, "pending", _nothing_pending)],
        ROUGH,
    ),
    Mutant(
        "a group is held before its versions are read",
        "they are read while the transaction before is ending",
        [(TransactionCoordinator, "hold_group", _not_held)],
        ROUGH,
    ),
    Mutant("a new producer has a new epoch", "all have the same", [(machine, "_next", _same_identity)], ANYWHERE),
    Mutant("an epoch of the past is fenced", "any epoch will do", [(machine, "_owned", _any_epoch)], ANYWHERE),
    Mutant(
        "a time-out aborts only what is open",
        "what was decided is aborted",
        [(Patrol, "_timed_out", _abort_decided)],
        ROUGH,
    ),
    Mutant("what is open is aborted in its logs", "it is forgotten", [(machine, "fenced", _just_forget)], ANYWHERE),
    Mutant(
        "the next begins when the last has ended", "it begins at once", [(machine, "_opened", _open_over)], ANYWHERE
    ),
    Mutant(
        "a refusal is read for certain",
        "memory refuses",
        [(Shelf, "change", _change_from_memory)],
        STORMY,
    ),
    Mutant(
        "readers of committed records stop at the stable offset",
        "they get all",
        [(fold.Fold, "last_stable_offset", property(_to_the_end))],
        ("groups calm", "groups zombies"),
    ),
    Mutant(
        "readers hear what was aborted",
        "they hear of nothing",
        [(log.Log, "aborted", _none_aborted)],
        ("groups calm",),
    ),
)
