"""`make sim-mutants`: switches off the rules of the protocol one by one, and checks that the simulation detects each.

A rule whose mutant is not detected is not tested by the simulation: the command fails. Each mutant runs in scenarios in
which its rule matters, on seeds on which the production code passes.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.simulation.consumer_group_mutants import CONSUMER_GROUP_MUTANTS
from tests.simulation.coordination_mutants import COORDINATION_MUTANTS
from tests.simulation.mutant import Mutant, always, never, only_in
from tests.simulation.scenarios import UNEXPECTED, UNRETRIEVED, run
from tests.simulation.table_mutants import TABLE_MUTANTS
from tests.simulation.typed_mutants import TYPED_MUTANTS

from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.data.log import claim_retry, claimer, log, partition_state, partition_view, rules, trim
from lakestream.data.log.garbage_collector import WalGarbageCollector
from lakestream.data.wal import buffer, format, frame_store, reader, writer
from lakestream.data.wal.names import object_key
from lakestream.errors import Missing, Unavailable
from lakestream.metadata import claims, keys, topics
from lakestream.metadata.claims import Claim, Claimed, Claims, StoredClaim
from lakestream.metadata.cluster import PRODUCER_ID_BLOCK, Cluster
from lakestream.metadata.store import Put, Stored, put_one
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.errors import code_of
from lakestream.protocol.kafka.handlers.records import fetch, produce_checks
from lakestream.records.batch import RecordBatch, rebased
from lakestream.testing.simulation import SimLoop

SEEDS_MAX = 400
NAME_WIDTH = 70


class Verdict(NamedTuple):
    mutant: str
    seed: int | None
    rule: str
    runs: int


# ── mutated functions of the log ─────────────────────────────────────────────────────────────────────────────────────


def _remember_only_newest(self: claimer.PartitionQueue, item: Any, failure: claimer.FailedBatch) -> None:
    self.failures[item.batch.producer_id] = failure


async def _overwrite_claims(self: Claims, drafts: Sequence[tuple[PartitionId, Claim]]) -> list[Any]:
    """Writes each claim even if another one exists."""
    results: list[Any] = []
    for partition, claim in drafts:
        key = keys.claim_key(partition, claim.offset_start)
        (result,) = await self._store.put([Put(key, claims._encode(claim))])
        floor = await self._store.get(keys.floor_key(partition), confirmed=True)
        results.append(
            Claimed(result.created_ms, None if floor is None else int(floor.value))
            if isinstance(result, Stored)
            else result
        )
    return results


async def _save_state_unconditionally(self: Claims, partition: PartitionId, body: bytes, version: int | None) -> int:
    return (await put_one(self._store, keys.fold_key(partition), body)).version


async def _raise_unconditionally(self: Claims, key: Any, offset: int, what: str) -> None:
    if await self._store.get(key, confirmed=True) is None:
        raise Missing(f"{what} does not exist")
    await put_one(self._store, key, str(offset).encode())


async def _delete_without_floor(self: Claims, partition: PartitionId) -> None:
    await self.delete_below(partition, claims.END_OF_TIME)
    await self._store.delete(keys.fold_key(partition))
    await self._store.delete(keys.table_end_key(partition))
    await self._store.delete(keys.floor_key(partition))


async def _no_wait(before: Any) -> None:
    return None


async def _do_nothing(self: Any, *_: Any) -> None:
    return None


async def _refresh_unconfirmed(
    self: partition_view.PartitionViews, seen: partition_view.PartitionView, *, confirmed: bool = False
) -> None:
    await self._reads.read(("refresh", seen.partition), lambda: self._catch_up(seen, confirmed=False))


def _trim_partly_moved(chain: Sequence[StoredClaim], floor: int, bound: int) -> int:
    """Trims up to the end of the claim that contains the bound."""
    point = floor
    for dated in chain:
        if dated.claim.offset_start >= bound:
            break
        point = dated.claim.offset_end
    return point


def _delete_unclaimed(*, referenced: int, unclaimed: int, sealed: bool, age_ms: int) -> bool:
    return not referenced


async def _never_needed(self: WalGarbageCollector, stored: Any) -> bool:
    return False


def _delete_old(*, referenced: int, unclaimed: int, sealed: bool, age_ms: int) -> bool:
    return age_ms > rules.ORPHAN_AFTER_MS or (not referenced and not unclaimed and sealed)


async def _store_dated_after(self: frame_store.ObjectFrames, extents: Sequence[buffer.Extent], sequence: int) -> None:
    """Stores frames as the production code does, but dates them after the put."""
    before_ms = self._clock.now_ms()
    frame = format.encode(
        [extent.data() for extent in extents], writer_id=self._writer_id, sequence=sequence, stored_ms=before_ms
    )
    name = object_key(before_ms, self._writer_id, sequence)
    await self._store.put(name, frame.buffers)
    frame_store._set_locations(extents, frame, buffer.Location(claims.Medium.OBJECT, name, 0, self._clock.now_ms()))


async def _delete_then_raise(self: Claims, partition: PartitionId, offset: int) -> None:
    await self.delete_below(partition, offset)
    await self._raise(keys.floor_key(partition), offset, "log")


async def _no_refresh(
    self: partition_view.PartitionViews, seen: partition_view.PartitionView, *, confirmed: bool = False
) -> None:
    return None


def _no_failure(self: claimer.PartitionQueue, *_: Any) -> None:
    return None


def _fail_no_batch(self: claimer.PartitionQueue, extent: Any, error: Any) -> None:
    return None


_apply = partition_state.PartitionState.apply


def _apply_with_gap(self: partition_state.PartitionState, claim: Claim, created_ms: int) -> None:
    """Applies a claim even if it does not follow the last one."""
    self.offset_end = claim.offset_start
    _apply(self, claim, created_ms)


def _ends_by_any_marker(producer: Any, marker: Any) -> bool:
    return bool(producer.in_transaction)


# ── mutated functions of Kafka requests ──────────────────────────────────────────────────────────────────────────────


_handle = Dispatcher.handle


def _begin_in_any_order(self: Dispatcher, connection: Any, frame: Any) -> Any:
    """Begins each request after a random delay."""

    async def later() -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        await asyncio.sleep(loop.rng.random() * 0.01)
        return await _handle(self, connection, frame)

    return later()


_READS: ContextVar[dict[Any, Any]] = ContextVar("reads")
_read = log.Log.read


def _handle_with_read_cache(self: Dispatcher, connection: Any, frame: Any) -> Any:
    work = _handle(self, connection, frame)
    if isinstance(work, asyncio.Future):
        return work

    async def handle() -> Any:
        _READS.set({})
        return await work

    return handle()


async def _read_once(
    self: log.Log, partition: PartitionId, offset: int, bytes_max: int, *, committed: bool = False
) -> Any:
    """Returns the first result to all reads of one request."""
    reads = _READS.get({})
    if (partition, offset) in reads:
        await asyncio.sleep(0.02)  # so that a retry loop without progress takes virtual time
    else:
        reads[partition, offset] = await _read(self, partition, offset, bytes_max, committed=committed)
    return reads[partition, offset]


async def _ignore_new_records(self: log.Log, ends: Any, timeout_ms: int) -> bool:
    await asyncio.sleep(timeout_ms / 1000)
    return False


async def _start_at_zero(self: Claims, partition: PartitionId) -> int:
    return 0


async def _raise_start_unconditionally(self: Claims, partition: PartitionId, offset: int) -> None:
    await put_one(self._store, keys.start_key(partition), str(offset).encode())


_put_topics = MetadataCache._put


def _keep_old_ids(self: MetadataCache, topics: dict[str, Topic]) -> None:
    before = self._names
    _put_topics(self, topics)
    self._names = {**before, **self._names}


async def _take_block_unconditionally(self: Cluster) -> range:
    record = await self._store.get(keys.PRODUCER_IDS)
    start = 0 if record is None else int(record.value)
    await put_one(self._store, keys.PRODUCER_IDS, str(start + PRODUCER_ID_BLOCK).encode())
    return range(start, start + PRODUCER_ID_BLOCK)


_select_batches = partition_view.select_batches


def _only_batches_that_fit(claims: list[StoredClaim], offset: int, bytes_max: int) -> Any:
    selected = _select_batches(claims, offset, bytes_max)
    sizes = (ref.claim.batches[ref.number] for ref in selected)
    return selected if sum(batch.byte_end - batch.byte_start for batch in sizes) <= bytes_max else []


def _duplicate_at_offset_zero(item: Any, duplicate: Any) -> buffer.Appended:
    return buffer.Appended(0, item.batch.record_count, duplicate=True)


async def _topic_unconfirmed(self: Topics, name: str, *, confirmed: bool = False) -> Topic:
    record = await self._store.get(keys.topic_key(name))
    if record is None:
        raise Missing(f"topic {name} does not exist")
    return _decode_topic(record)


_decode_topic = topics._topic


async def _topic_from_cache(self: MetadataCache, name: str) -> Topic:
    topic = self.cached_topic(name)
    if topic is None:
        raise Missing(f"topic {name} does not exist")
    return topic


async def _topics_unconfirmed(self: MetadataCache) -> None:
    self._put(await self._topics.all())


def _do_nothing_sync(*_: Any) -> None:
    return None


HANDLED = ("kafka calm", "kafka cuts", "kafka lossy", "kafka crashes")

MUTANTS = (
    Mutant(
        "a conflict with the broker's own claim is a success",
        "a claim that conflicts with itself is taken for another writer's",
        [(rules, "is_own_claim", never)],
        ("lossy", "late"),
    ),
    Mutant(
        "an unknown result stays unknown after a trim",
        "a claim with a lost response that was trimmed since is created again",
        [(claimer.PartitionQueue, "fail_without_producer", _fail_no_batch)],
        ("fast trims",),
    ),
    Mutant(
        "a conflict after a retry in the store client leaves the result unknown",
        "the response to the second attempt of a store client is taken for the first",
        [(claim_retry, "_is_unclear", lambda result: isinstance(result, Unavailable))],
        ("fast trims",),
    ),
    Mutant(
        "frames are claimed in seal order",
        "frames are claimed as they are stored",
        [(writer, "_wait_for_previous", _no_wait)],
        ("lossy", "late"),
    ),
    Mutant("claims are only created", "a claim overwrites another one", [(Claims, "create", _overwrite_claims)]),
    Mutant(
        "the partition state is stored before a trim",
        "the floor passes the stored partition state",
        [
            (rules, "trim_bound", lambda upto, table_end, saved_offset: min(upto, table_end)),
            (trim.Trimmer, "_save_state", _do_nothing),
        ],
        ("trims",),
    ),
    Mutant(
        "the partition state moves only forward",
        "an old partition state replaces a newer one",
        [(Claims, "save_state", _save_state_unconditionally)],
        ("zombies", "late", "trims"),
    ),
    Mutant(
        "table end and floor move only forward",
        "an old table end or floor replaces a newer one",
        [(Claims, "_raise", _raise_unconditionally)],
        ("late", "trims", "storm"),
    ),
    Mutant(
        "the floor is checked after a create",
        "a claim created below the floor is valid",
        [(rules, "floor_allows", only_in(("is_valid_claim", "_outcome_of"), always, rules.floor_allows))],
        ("trims", "zombies"),
    ),
    Mutant(
        "the floor is checked in a scan",
        "a scan from below the floor is valid",
        [(rules, "floor_allows", only_in(("apply_scan", "_load", "claims_from"), always, rules.floor_allows))],
        ("trims", "zombies"),
    ),
    Mutant(
        "only claims that are fully in the table are trimmed",
        "a claim that is partly in the table is deleted",
        [(rules, "trim_point", _trim_partly_moved)],
        ("trims",),
    ),
    Mutant(
        "only records in the table are trimmed",
        "claims are deleted before they are moved",
        [(rules, "trim_bound", lambda upto, table_end, saved_offset: min(upto, saved_offset))],
        ("trims",),
    ),
    Mutant(
        "stale claims are ignored",
        "a claim is valid however late it was created",
        [(rules, "is_stale", never)],
        ("sleepers",),
    ),
    Mutant(
        "partly claimed objects are kept",  # the known size of an object has the same effect, so both are off
        "an object is deleted when its known claims are deleted",
        [(rules, "may_delete", _delete_unclaimed), (WalGarbageCollector, "_is_certainly_needed", _never_needed)],
    ),
    Mutant(
        "claimed objects are kept",
        "an old object is deleted although it is claimed",
        [(rules, "may_delete", _delete_old)],
        ("sleepers",),
    ),
    Mutant(
        "garbage collection waits for late claims",
        "unclaimed objects are deleted after ten seconds",
        [(rules, "ORPHAN_AFTER_MS", 10_000)],
        ("zombies", "trims"),
    ),
    Mutant(
        # The floor check detects the same gaps, and applying claims asserts that they follow: all three are off.
        "gaps are detected when a log is loaded",
        "claims with a gap are loaded",
        [
            (rules, "is_gapless", always),
            (rules, "floor_allows", only_in(("_load",), always, rules.floor_allows)),
            (partition_state.PartitionState, "apply", _apply_with_gap),
        ],
        ("restarts",),
    ),
    Mutant(
        "the floor is raised before claims are deleted",
        "claims are deleted before the floor is raised",
        [(Claims, "raise_floor", _delete_then_raise)],
        ("trims",),
    ),
    Mutant(
        "the age of a claim starts before its put",
        "a claim is dated after its put",
        [(frame_store.ObjectFrames, "store", _store_dated_after)],
        ("sleepers",),
    ),
    Mutant(
        "a reader refreshes the floor when an object is missing",
        "a reader does not read the floor again",
        [
            (
                partition_view.PartitionViews,
                "refresh",
                only_in(("_read_claims",), _no_refresh, partition_view.PartitionViews.refresh),
            )
        ],
        ("slow readers",),
    ),
    Mutant(
        "the end is refreshed before it is returned",
        "the cached end is returned",
        [
            (
                partition_view.PartitionViews,
                "refresh",
                only_in(("bounds", "_refresh_end"), _no_refresh, partition_view.PartitionViews.refresh),
            )
        ],
    ),
    Mutant(
        "appends are rejected only after a confirmed read",
        "a batch is rejected by the state of an old leader",
        [(rules, "needs_confirming", never)],
        ("deposed",),
    ),
    Mutant(
        "reads are rejected only after a confirmed read",
        "an offset is rejected by the state of an old leader",
        [(partition_view.PartitionViews, "refresh", _refresh_unconfirmed)],
        ("deposed",),
    ),
    Mutant("sequences are checked", "any sequence may follow", [(rules, "sequence_follows", always)]),
    Mutant("epochs are checked", "an old epoch is accepted", [(rules, "epoch_is_current", always)]),
    Mutant(
        "checksums are verified on reads",
        "bytes are returned without verification",
        [(reader, "verify", lambda data, name: RecordBatch(data))],
    ),
    Mutant(
        "a batch after a failed one is rejected",
        "a batch after a failed one is appended",
        [(claimer.PartitionQueue, "failure_of", _no_failure)],
        ("lossy", "late"),
    ),
    Mutant(
        "deleting a log raises its floor first",
        "the records of a log are deleted before its floor is raised",
        [(Claims, "delete_log", _delete_without_floor)],
    ),
    Mutant(
        "a marker ends only its own transaction",
        "a late marker ends the next transaction",
        [(partition_state, "_ends", _ends_by_any_marker)],
        ("zombies", "storm", "late"),
    ),
    # Rules of Kafka requests.
    Mutant(
        "requests of a connection begin in order",
        "a produce request overtakes the previous one",
        [(Dispatcher, "handle", _begin_in_any_order)],
        ("kafka calm",),
    ),
    Mutant(
        "a failed batch rejects batches sent before its response",
        "a producer is assumed to have received the response",
        [(claimer.FailedBatch, "is_before", never)],
        ("kafka lossy", "kafka storm"),
    ),
    Mutant(
        "a batch that fails before the log rejects the next",
        "failures before the log are forgotten",
        [(produce_checks, "note", _do_nothing_sync)],
        ("kafka new topics",),
    ),
    Mutant(
        "consecutive failures of a producer are kept together",
        "only the newest failure is kept",
        [(claimer.PartitionQueue, "_remember", _remember_only_newest)],
        ("kafka new topics",),
    ),
    Mutant(
        "a duplicate returns its first offset",
        "a duplicate returns any offset",
        [(claimer, "_appended_duplicate", _duplicate_at_offset_zero)],
        HANDLED,
    ),
    Mutant(
        "producer ids are unique",
        "two brokers reserve the same block of ids",
        [(Cluster, "_take_block", _take_block_unconditionally)],
        HANDLED,
    ),
    Mutant(
        "a fetch reads again after its wait",
        "a fetch returns what it read before its wait",
        [(Dispatcher, "handle", _handle_with_read_cache), (log.Log, "read", _read_once)],
        HANDLED,
    ),
    Mutant(
        "new records end a waiting fetch",
        "a waiting fetch waits until its timeout",
        [(log.Log, "wait_any", _ignore_new_records)],
        ("kafka calm",),
    ),
    Mutant(
        "the first batch is returned whole",
        "a batch that is larger than the limit is never returned",
        [(log, "select_batches", _only_batches_that_fit)],
        HANDLED,
    ),
    Mutant(
        "batches are returned with their offsets",
        "a batch has the offset that its producer wrote",
        [(log, "rebased", lambda batch, offset: rebased(batch, 0))],
        HANDLED,
    ),
    Mutant(
        "ListOffsets refreshes the ends",
        "cached ends are returned",
        [
            (
                partition_view.PartitionViews,
                "refresh",
                only_in(("bounds",), _no_refresh, partition_view.PartitionViews.refresh),
            )
        ],
        HANDLED,
    ),
    Mutant(
        "all brokers respect the log start offset",
        "other brokers return deleted records",
        [(Claims, "start", _start_at_zero)],
        HANDLED,
    ),
    Mutant(
        "the log start offset moves only forward",
        "an old start replaces a newer one",
        [(Claims, "raise_start", _raise_start_unconditionally)],
        HANDLED,
    ),
    Mutant(
        "DeleteRecords stops at the end",
        "any offset may become the start",
        [(log.Log, "_refresh_end", only_in(("delete_before",), _do_nothing, log.Log._refresh_end))],
        HANDLED,
    ),
    Mutant(
        "the id of a deleted topic is unknown",
        "the id refers to the topic that has its name now",
        [(MetadataCache, "_put", _keep_old_ids)],
        HANDLED,
    ),
    Mutant(
        "a topic is denied only after a confirmed read",
        "a topic is denied by the state of an old leader",
        [(Topics, "get", _topic_unconfirmed)],
        ("kafka deposed", "kafka storm"),
    ),
    Mutant(
        "a topic is denied only after a read",
        "a topic is denied from the cache",
        [(MetadataCache, "topic", _topic_from_cache)],
        HANDLED,
    ),
    Mutant(
        "a topic with a deleted log is read again",
        "the cached topic stays although its log is deleted",
        [(MetadataCache, "evict_topic_of", _do_nothing_sync)],
        ("kafka lossy", "kafka storm"),
    ),
    Mutant(
        "the list of topics is read with confirmation",
        "the list of topics is read from an old leader",
        [(MetadataCache, "refresh_topics", _topics_unconfirmed)],
        ("groups deposed",),
    ),
    Mutant(
        "fetches return errors that consumers retry",
        "a fetch returns the error codes of a produce request",
        [(fetch, "code_in_fetch", code_of)],
        ("kafka lossy",),
    ),
)

ALL = (*MUTANTS, *TABLE_MUTANTS, *TYPED_MUTANTS, *COORDINATION_MUTANTS, *CONSUMER_GROUP_MUTANTS)


@contextmanager
def _mutated(mutant: Mutant) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, broken in mutant.patches:
            stack.enter_context(patch.object(owner, name, broken))
        yield


def hunt(mutant_name: str, seeds_max: int) -> Verdict:
    """Returns the first seed on which the mutant breaks a rule and the production code passes."""
    (mutant,) = (mutant for mutant in ALL if mutant.name == mutant_name)
    for seed in range(seeds_max):
        with _mutated(mutant):
            outcome = run(seed, scenarios=mutant.scenarios)
        if outcome.violation is None or outcome.violation.rule in (UNEXPECTED, UNRETRIEVED):
            continue  # an unexpected exception may come from the mutated function itself
        if run(seed, scenarios=mutant.scenarios).violation is None:
            return Verdict(mutant.name, seed, outcome.violation.rule, seed + 1)
    return Verdict(mutant.name, None, "", seeds_max)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="seeds to try for each mutant")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    names = [mutant.name for mutant in ALL if options.only in mutant.name]
    survivors = 0
    print(f"{'rule switched off':{NAME_WIDTH}} {'detected at seed':>16}  by")
    with ProcessPoolExecutor(options.jobs, initializer=logging.disable) as pool:
        for verdict in pool.map(hunt, names, [options.seeds] * len(names)):
            survivors += verdict.seed is None
            detected = f"SURVIVES {verdict.runs} runs" if verdict.seed is None else str(verdict.seed)
            print(f"{verdict.mutant:{NAME_WIDTH}} {detected:>16}  {verdict.rule}", flush=True)
    print(f"{len(names)} mutants, {len(names) - survivors} detected")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
