"""`make sim-mutants`: switches off the rules of the protocol one by one, and shows that the simulation catches each.

A rule that can be switched off unnoticed is not proven by the simulation: a survivor is a failure of this command. Each
mutant is run in moods in which its rule matters, on seeds on which the real code holds.
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

from tests.simulation.coordination_mutants import COORDINATION_MUTANTS
from tests.simulation.follower_mutants import FOLLOWER_MUTANTS
from tests.simulation.mutant import Mutant, always, never, only_in
from tests.simulation.scenarios import SURPRISE, UNHEARD, run
from tests.simulation.table_mutants import TABLE_MUTANTS
from tests.simulation.typed_mutants import TYPED_MUTANTS

from lakestream.batch import RecordBatch, rebased
from lakestream.coordination.cluster import ClusterView
from lakestream.data.log import claimer, fold, log, rules, struggle, view
from lakestream.data.log.sweeper import Sweeper
from lakestream.data.wal import buffer, format, media, reader, writer
from lakestream.data.wal.names import object_key
from lakestream.errors import Missing, Unavailable
from lakestream.metadata import claims, keys, topics
from lakestream.metadata.claims import Claim, Claimed, Claims, Dated
from lakestream.metadata.cluster import PRODUCER_ID_BLOCK, Cluster
from lakestream.metadata.store import Put, Stored, put_one
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId
from lakestream.protocol.kafka import setbacks
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.errors import code_of
from lakestream.protocol.kafka.handlers import fetch
from lakestream.testing.simulation import SimLoop

SEEDS_MAX = 400


class Verdict(NamedTuple):
    mutant: str
    seed: int | None
    rule: str
    runs: int


# ── what broken code does ────────────────────────────────────────────────────────────────────────────────────────────


def _remember_the_newest(self: claimer.Lane, item: Any, failure: claimer.Failure) -> None:
    self.failures[item.batch.producer_id] = failure


async def _create_over(self: Claims, wanted: Sequence[tuple[PartitionId, Claim]]) -> list[Any]:
    """Write the claim whether or not one is there."""
    answers: list[Any] = []
    for partition, claim in wanted:
        key = keys.claim_key(partition, claim.offset_start)
        (answer,) = await self._store.put([Put(key, claims._encode(claim))])
        floor = await self._store.get(keys.floor_key(partition), confirmed=True)
        answers.append(
            Claimed(answer.created_ms, None if floor is None else int(floor.value))
            if isinstance(answer, Stored)
            else answer
        )
    return answers


async def _save_fold_blindly(self: Claims, partition: PartitionId, body: bytes, version: int | None) -> int:
    return (await put_one(self._store, keys.fold_key(partition), body)).version


async def _raise_blindly(self: Claims, key: Any, offset: int, what: str) -> None:
    if await self._store.get(key, confirmed=True) is None:
        raise Missing(f"{what} is gone")
    await put_one(self._store, key, str(offset).encode())


async def _bury_without_floor(self: Claims, partition: PartitionId) -> None:
    await self.drop_below(partition, claims.END_OF_TIME)
    await self._store.delete(keys.fold_key(partition))
    await self._store.delete(keys.table_end_key(partition))
    await self._store.delete(keys.floor_key(partition))


async def _no_turn(before: Any) -> None:
    return None


async def _nothing(self: Any, *_: Any) -> None:
    return None


async def _believe_any_node(self: view.Views, seen: view.View, *, confirmed: bool = False) -> None:
    await self._looks.look(("refresh", seen.partition), lambda: self._catch_up(seen, confirmed=False))


def _trim_half_moved(chain: Sequence[Dated], floor: int, bound: int) -> int:
    """Up to the end of the claim that holds the bound."""
    point = floor
    for dated in chain:
        if dated.claim.offset_start >= bound:
            break
        point = dated.claim.offset_end
    return point


def _counts_late(found: Any, created_ms: int) -> bool:
    return False


def _sweep_unclaimed(*, pinned: int, unclaimed: int, sealed: bool, age_ms: int) -> bool:
    return not pinned


async def _never_sure(self: Sweeper, stored: Any) -> bool:
    return False


def _sweep_old(*, pinned: int, unclaimed: int, sealed: bool, age_ms: int) -> bool:
    return age_ms > rules.ORPHAN_AFTER_MS or (not pinned and not unclaimed and sealed)


async def _store_dated_after(self: media.ObjectFrames, extents: Sequence[buffer.Extent], sequence: int) -> None:
    """As the real one, but the time is taken when the put is over."""
    before_ms = self._clock.now_ms()
    frame = format.encode(
        [extent.part() for extent in extents], writer_id=self._writer_id, sequence=sequence, stored_ms=before_ms
    )
    name = object_key(before_ms, self._writer_id, sequence)
    await self._store.put(name, frame.buffers)
    media._tell(extents, frame, buffer.Location(claims.Medium.OBJECT, name, 0, self._clock.now_ms()))


async def _drop_then_raise(self: Claims, partition: PartitionId, offset: int) -> None:
    await self.drop_below(partition, offset)
    await self._raise(keys.floor_key(partition), offset, "log")


async def _no_look(self: view.Views, seen: view.View, *, confirmed: bool = False) -> None:
    return None


def _no_failure(self: claimer.Lane, *_: Any) -> None:
    return None


def _fail_nobody(self: claimer.Lane, extent: Any, error: Any) -> None:
    return None


_apply = fold.Fold.apply


def _apply_anywhere(self: fold.Fold, claim: Claim, created_ms: int) -> None:
    """Whatever the last one was."""
    self.offset_end = claim.offset_start
    _apply(self, claim, created_ms)


def _any_marker_ends(producer: Any, marker: Any) -> bool:
    return bool(producer.in_transaction)


# ── what broken brokers do: the layer of Kafka's requests ────────────────────────────────────────────────────────────


_handle = Dispatcher.handle


def _begin_in_any_order(self: Dispatcher, connection: Any, frame: Any) -> Any:
    """Each request takes its time before it is begun."""

    async def later() -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        await asyncio.sleep(loop.luck.random() * 0.01)
        return await _handle(self, connection, frame)

    return later()


_READS: ContextVar[dict[Any, Any]] = ContextVar("reads")
_read = log.Log.read


def _handle_with_memory(self: Dispatcher, connection: Any, frame: Any) -> Any:
    work = _handle(self, connection, frame)
    if isinstance(work, asyncio.Future):
        return work

    async def remembering() -> Any:
        _READS.set({})
        return await work

    return remembering()


async def _read_once(self: log.Log, partition: PartitionId, offset: int, bytes_max: int) -> Any:
    """What a request has read it does not read again."""
    reads = _READS.get({})
    if (partition, offset) in reads:
        await asyncio.sleep(0.02)  # or it would ask again and again without end
    else:
        reads[partition, offset] = await _read(self, partition, offset, bytes_max)
    return reads[partition, offset]


async def _sleep_through(self: log.Log, ends: Any, timeout_ms: int) -> bool:
    await asyncio.sleep(timeout_ms / 1000)
    return False


async def _from_the_first(self: Claims, partition: PartitionId) -> int:
    return 0


async def _raise_start_blindly(self: Claims, partition: PartitionId, offset: int) -> None:
    await put_one(self._store, keys.start_key(partition), str(offset).encode())


_put_topics = ClusterView._put


def _keep_old_ids(self: ClusterView, topics: dict[str, Topic]) -> None:
    before = self._names
    _put_topics(self, topics)
    self._names = {**before, **self._names}


async def _take_block_blindly(self: Cluster) -> range:
    record = await self._store.get(keys.PRODUCER_IDS)
    start = 0 if record is None else int(record.value)
    await put_one(self._store, keys.PRODUCER_IDS, str(start + PRODUCER_ID_BLOCK).encode())
    return range(start, start + PRODUCER_ID_BLOCK)


_picks = log._picks


def _only_what_fits(claims: list[Dated], offset: int, bytes_max: int) -> Any:
    picks = _picks(claims, offset, bytes_max)
    sizes = (pick.claim.batches[pick.batch] for pick in picks)
    return picks if sum(batch.byte_end - batch.byte_start for batch in sizes) <= bytes_max else []


def _duplicate_nowhere(item: Any, duplicate: Any) -> buffer.Appended:
    return buffer.Appended(0, item.batch.record_count, duplicate=True)


async def _topic_of_any_node(self: Topics, name: str) -> Topic:
    record = await self._store.get(keys.topic_key(name))
    if record is None:
        raise Missing(f"there is no topic {name}")
    return _decode_topic(record)


_decode_topic = topics._topic


async def _topic_from_memory(self: ClusterView, name: str) -> Topic:
    known = self.known(name)
    if known is None:
        raise Missing(f"there is no topic {name}")
    return known


async def _topics_of_any_node(self: ClusterView) -> None:
    self._put(await self._topics.all())


def _nothing_at_all(*_: Any) -> None:
    return None


HANDLED = ("kafka calm", "kafka cuts", "kafka lossy", "kafka crashes")

MUTANTS = (
    Mutant(
        "look before retry",
        "a claim that met itself is taken for somebody else's",
        [(rules, "is_mine", never)],
        ("lossy", "late"),
    ),
    Mutant(
        "a doubt that a trim has covered stays one",
        "a lost claim that cannot be looked at any more is made again",
        [(claimer.Lane, "fail_plain", _fail_nobody)],
        ("swift",),
    ),
    Mutant(
        "a create that was repeated below leaves a doubt",
        "the second answer of a client that tried twice is taken for the first",
        [(struggle, "_leaves_doubt", lambda answer: isinstance(answer, Unavailable))],
        ("swift",),
    ),
    Mutant(
        "seal order", "frames are claimed as they are stored", [(writer, "_turn_after", _no_turn)], ("lossy", "late")
    ),
    Mutant("create-only claim", "a claim is written over another one", [(Claims, "create", _create_over)]),
    Mutant(
        "fold before trim",
        "the floor passes the stored fold",
        [
            (rules, "trim_bound", lambda upto, table_end, fold_offset: min(upto, table_end)),
            (log.Log, "_save_fold_before_trim", _nothing),
        ],
        ("trims",),
    ),
    Mutant(
        "fold only forward",
        "an old fold replaces a newer one",
        [(Claims, "save_fold", _save_fold_blindly)],
        ("zombies", "late", "trims"),
    ),
    Mutant(
        "table end and floor only forward",
        "an old end replaces a newer one",
        [(Claims, "_raise", _raise_blindly)],
        ("late", "trims", "storm"),
    ),
    Mutant(
        "floor check after a create",
        "a create below the floor counts",
        [(rules, "floor_allows", only_in(("counts", "_fate"), always, rules.floor_allows))],
        ("trims", "zombies"),
    ),
    Mutant(
        "floor check in a scan",
        "a scan from below the floor counts",
        [(rules, "floor_allows", only_in(("take_in", "_load", "claims_from"), always, rules.floor_allows))],
        ("trims", "zombies"),
    ),
    Mutant(
        "trim only what is wholly moved",
        "a claim that is half in the table is dropped",
        [(rules, "trim_point", _trim_half_moved)],
        ("trims",),
    ),
    Mutant(
        "trim only what is in the table",
        "claims are dropped before they are moved",
        [(rules, "trim_bound", lambda upto, table_end, fold_offset: min(upto, fold_offset))],
        ("trims",),
    ),
    Mutant("stale claims", "a claim counts however late it came", [(rules, "is_stale", never)], ("sleepers",)),
    Mutant(
        "sweep of half-claimed objects",  # what is known of its size says the same, so both are off
        "an object goes when what was claimed of it is dropped",
        [(rules, "may_sweep", _sweep_unclaimed), (Sweeper, "_is_needed_surely", _never_sure)],
    ),
    Mutant(
        "sweep spares what a claim names",
        "an old object goes although it is claimed",
        [(rules, "may_sweep", _sweep_old)],
        ("sleepers",),
    ),
    Mutant(
        "sweep waits for late claims",
        "unclaimed objects go after ten seconds",
        [(rules, "ORPHAN_AFTER_MS", 10_000)],
        ("zombies", "trims"),
    ),
    Mutant(
        # The floor check finds the same gaps, and whoever counts claims asserts that they follow: all three are off.
        "gap check on opening",
        "a chain with a gap is believed",
        [
            (rules, "is_gapless", always),
            (rules, "floor_allows", only_in(("_load",), always, rules.floor_allows)),
            (fold.Fold, "apply", _apply_anywhere),
        ],
        ("restarts",),
    ),
    Mutant(
        "floor before claims are dropped",
        "claims go before the floor is raised",
        [(Claims, "raise_floor", _drop_then_raise)],
        ("trims",),
    ),
    Mutant(
        "age counts from before the put",
        "a claim is dated when its put is over",
        [(media.ObjectFrames, "store", _store_dated_after)],
        ("sleepers",),
    ),
    Mutant(
        "a missing object means that the table has it",
        "a reader does not look at the floor again",
        [(view.Views, "refresh", only_in(("_bytes_of",), _no_look, view.Views.refresh))],
        ("slow readers",),
    ),
    Mutant(
        "who says that there is no more looks first",
        "the end is told from memory",
        [(view.Views, "refresh", only_in(("bounds", "_look_at_end"), _no_look, view.Views.refresh))],
    ),
    Mutant(
        "refusals from a confirmed view: appends",
        "a batch is refused by what an old leader says",
        [(rules, "needs_confirming", never)],
        ("deposed",),
    ),
    Mutant(
        "refusals from a confirmed view: reads",
        "an offset is refused by what an old leader says",
        [(view.Views, "refresh", _believe_any_node)],
        ("deposed",),
    ),
    Mutant("sequence check", "any sequence may follow", [(rules, "sequence_follows", always)]),
    Mutant("epoch check", "an old incarnation may go on", [(rules, "epoch_is_current", always)]),
    Mutant(
        "checksum of a read", "bytes are served unchecked", [(reader, "verify", lambda data, name: RecordBatch(data))]
    ),
    Mutant(
        "a failed batch holds back the next",
        "what follows a failed batch is appended",
        [(claimer.Lane, "failure_of", _no_failure)],
        ("lossy", "late"),
    ),
    Mutant(
        "deletion raises the floor first",
        "the records of a log go before its floor is raised",
        [(Claims, "bury_log", _bury_without_floor)],
    ),
    Mutant(
        "a marker ends only its own transaction",
        "a marker that comes late ends the next transaction",
        [(fold, "_ends", _any_marker_ends)],
        ("zombies", "storm", "late"),
    ),
    # The layer of Kafka's requests, driven by Kafka clients.
    Mutant(
        "requests of a connection are begun in order",
        "a produce request overtakes the one before it",
        [(Dispatcher, "handle", _begin_in_any_order)],
        ("kafka calm",),
    ),
    Mutant(
        "a failed batch holds back those that arrive later",
        "who was told of a failure is believed to know of it",
        [(claimer.Failure, "is_before", never)],
        ("kafka lossy", "kafka storm"),
    ),
    Mutant(
        "a batch that never came to the log holds back the next",
        "what fails on its way to the log is forgotten",
        [(setbacks, "note", _nothing_at_all)],
        ("kafka newcomers",),
    ),
    Mutant(
        "all failures of a producer are one",
        "the newest is remembered",
        [(claimer.Lane, "_remember", _remember_the_newest)],
        ("kafka newcomers",),
    ),
    Mutant(
        "a retry is answered with its first offset",
        "a duplicate gets any offset",
        [(claimer, "_appended_before", _duplicate_nowhere)],
        HANDLED,
    ),
    Mutant(
        "a producer id is given once",
        "two brokers take the same block of ids",
        [(Cluster, "_take_block", _take_block_blindly)],
        HANDLED,
    ),
    Mutant(
        "a fetch reads again after its wait",
        "a fetch answers what it read before it waited",
        [(Dispatcher, "handle", _handle_with_memory), (log.Log, "read", _read_once)],
        HANDLED,
    ),
    Mutant(
        "a long fetch is woken",
        "who waits at the end waits until its time is over",
        [(log.Log, "wait_any", _sleep_through)],
        ("kafka calm",),
    ),
    Mutant(
        "the first batch is given whole",
        "a batch that is larger than the limit is never given",
        [(log, "_picks", _only_what_fits)],
        HANDLED,
    ),
    Mutant(
        "batches are given with their offsets",
        "a batch says the offset that its producer wrote into it",
        [(log, "rebased", lambda batch, offset: rebased(batch, 0))],
        HANDLED,
    ),
    Mutant(
        "who lists offsets looks first",
        "the ends are told from memory",
        [(view.Views, "refresh", only_in(("bounds",), _no_look, view.Views.refresh))],
        HANDLED,
    ),
    Mutant(
        "the start of a log is respected",
        "other brokers serve what was deleted",
        [(Claims, "start", _from_the_first)],
        HANDLED,
    ),
    Mutant(
        "the start only forward",
        "an old start replaces a newer one",
        [(Claims, "raise_start", _raise_start_blindly)],
        HANDLED,
    ),
    Mutant(
        "nothing is deleted beyond the end",
        "any offset may be the start",
        [(log.Log, "_look_at_end", only_in(("delete_before",), _nothing, log.Log._look_at_end))],
        HANDLED,
    ),
    Mutant(
        "an old topic id is nobody's",
        "an id means the topic that has its name now",
        [(ClusterView, "_put", _keep_old_ids)],
        HANDLED,
    ),
    Mutant(
        "a topic is denied for certain: confirmed",
        "a topic is denied by what an old leader says",
        [(Topics, "get", _topic_of_any_node)],
        ("kafka deposed", "kafka storm"),
    ),
    Mutant(
        "a topic is denied for certain: looked for",
        "a topic is denied from memory",
        [(ClusterView, "topic", _topic_from_memory)],
        HANDLED,
    ),
    Mutant(
        "a topic whose log is gone is looked for anew",
        "what is known of a topic stays, whatever its log says",
        [(ClusterView, "forget_log", _nothing_at_all)],
        ("kafka lossy", "kafka storm"),
    ),
    Mutant(
        "who looks at the topics is sure of them",
        "an old leader says which topics there are, and nobody looks again",
        [(ClusterView, "look_at_topics", _topics_of_any_node)],
        ("groups deposed",),
    ),
    Mutant(
        "consumers are told what they retry",
        "a fetch is answered with the codes of a produce request",
        [(fetch, "code_in_fetch", code_of)],
        ("kafka lossy",),
    ),
)

ALL = (*MUTANTS, *TABLE_MUTANTS, *TYPED_MUTANTS, *COORDINATION_MUTANTS, *FOLLOWER_MUTANTS)


@contextmanager
def _mutated(mutant: Mutant) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, broken in mutant.patches:
            stack.enter_context(patch.object(owner, name, broken))
        yield


def hunt(mutant_name: str, seeds_max: int) -> Verdict:
    """The first seed on which the mutant is caught though the real code holds."""
    (mutant,) = (one for one in ALL if one.name == mutant_name)
    for seed in range(seeds_max):
        with _mutated(mutant):
            outcome = run(seed, moods=mutant.moods)
        if outcome.violation is None or outcome.violation.rule in (SURPRISE, UNHEARD):
            continue  # an exception that nobody foresaw may be the mutant's own fault
        if run(seed, moods=mutant.moods).violation is None:
            return Verdict(mutant.name, seed, outcome.violation.rule, seed + 1)
    return Verdict(mutant.name, None, "", seeds_max)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="give up on a mutant after so many")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    names = [mutant.name for mutant in ALL if options.only in mutant.name]
    survivors = 0
    print(f"{'rule switched off':42} {'caught at seed':>14}  by")
    with ProcessPoolExecutor(options.jobs, initializer=logging.disable) as pool:
        for verdict in pool.map(hunt, names, [options.seeds] * len(names)):
            survivors += verdict.seed is None
            caught = f"SURVIVES {verdict.runs} runs" if verdict.seed is None else str(verdict.seed)
            print(f"{verdict.mutant:42} {caught:>14}  {verdict.rule}", flush=True)
    print(f"{len(names)} mutants, {len(names) - survivors} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
