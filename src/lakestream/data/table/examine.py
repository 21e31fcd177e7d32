"""Holds a topic's table against the log, against its own files, and against what Kafka serves of it: what `lakestream
doctor` sees of tables.

    marks   floor ≤ table end ≤ next-offset ≤ log end, of every partition
    state   pointer → metadata file → list → manifests → files            examine_state.py
    files   there, as large as said, with the rows and bounds as said     examine_files.py, pure
            and every row in the partition that its file is in            examine_partitions.py
    rows    each offset once; Kafka serves what the table has             examine_rows.py

Beside brokers, pipelines and other hands that change all of it: whatever looks wrong is looked at again, and only what
is wrong every time is said. Reads little at once, and keeps little.
"""

import asyncio
import random
from collections.abc import Iterable
from typing import Final, NamedTuple

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchTable
from lakestream.clock import Clock
from lakestream.data.table.examine_choice import SAMPLED, Choice, Depth, choose
from lakestream.data.table.examine_files import Marks, Trouble
from lakestream.data.table.examine_look import Examined, Kafka, Look
from lakestream.data.table.examine_state import READS_AT_ONCE, State, load_state, unreadable
from lakestream.data.table.snapshots import LOOK_MS
from lakestream.data.table.threads import Run
from lakestream.errors import Corrupt, LakestreamError, Missing
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId, Span
from lakestream.storage.together import together

ORPHAN_AGE_MS: Final = 24 * 60 * 60 * 1000
LOOKS_MAX: Final = 5
"""Two, and more where the table was changed under the second."""
PAUSE_MS: Final = LOOK_MS + 200
"""Before the second look: what Kafka serves may be as much older than the table."""


class _Low(NamedTuple):
    """The marks of a log that are read before its table."""

    floor: int
    table_end: int


class Examiner:
    def __init__(
        self,
        catalog: Catalog,
        claims: Claims,
        topics: Topics,
        kafka: Kafka,
        run: Run,
        clock: Clock,
        luck: random.Random,
        depth: Depth = SAMPLED,
        pause_ms: int = PAUSE_MS,
    ) -> None:
        self._catalog = catalog
        self._claims = claims
        self._topics = topics
        self._kafka = kafka
        self._run = run
        self._clock = clock
        self._luck = luck
        self._depth = depth
        self._pause_ms = pause_ms

    async def examine(self, name: str, topic: Topic) -> Examined:
        """LakestreamError: the stores do not answer."""
        first = Examined()
        choice = await self._look(topic, first, None)
        for _ in range(LOOKS_MAX - 1):
            if not first.troubles:
                break
            await asyncio.sleep(self._pause_ms / 1000)
            try:
                topic_now = await self._topics.get(name)
            except Missing:
                return Examined(said="deleted meanwhile")
            if topic_now.topic_id != topic.topic_id:
                return Examined(said="deleted and made again meanwhile")
            again = Examined()
            await self._look(topic_now, again, choice.narrowed(first.troubles, first.windows))
            seen = {trouble.key for trouble in first.troubles}
            first.troubles = _each_once(trouble for trouble in again.troubles if trouble.key in seen)
            if await self._is_still(topic, again.metadata_location):
                break
        return first

    async def _is_still(self, topic: Topic, metadata_location: str) -> bool:
        """Nobody has changed the table since it was looked at, so what was seen of it is true."""
        try:
            return (await self._catalog.pointers.find_id(topic.topic_id)).table.metadata_location == metadata_location
        except NoSuchTable:
            return not metadata_location

    async def _look(self, topic: Topic, seen: Examined, choice: Choice | None) -> Choice:
        """`choice`: look at that only, of what one can choose. None: choose."""
        low = await self._low_marks(topic)
        try:
            state = await load_state(self._catalog, topic.topic_id)
        except NoSuchTable:
            seen.behind = sum(ends.end for ends in (await self._ends(low)).values())
            _say_gone(low, seen)
            return Choice()
        except LakestreamError as error:
            seen.troubles.append(unreadable("table", "its table", error))
            return Choice()
        ends = await self._ends(low)
        seen.metadata_location = state.loaded.metadata_location
        seen.troubles += state.troubles
        look = Look(self._catalog, self._kafka, self._run, state, topic, seen)
        offsets = state.next_offsets or {}
        look.check_marks(
            {
                one.number: Marks(*low[one], offsets.get(one.number, 0), ends[one.number].end)
                for one in low
                if one.number in ends
            }
        )
        await look.check_folder(self._clock.now_ms() - ORPHAN_AGE_MS, self._depth.old_reads)
        if choice is None:
            choice = choose(state, ends, self._depth, self._luck)
        await look.check_files(choice)
        await look.check_rows(choice, ends)
        seen.said = _summary(state, choice, seen)
        return choice

    async def _low_marks(self, topic: Topic) -> dict[PartitionId, _Low]:
        async def low(partition: PartitionId) -> tuple[PartitionId, _Low] | None:
            floor = await self._claims.floor(partition)
            return None if floor is None else (partition, _Low(floor, await self._claims.table_end(partition)))

        found = await together([low(partition) for partition in topic.partitions()], READS_AT_ONCE)
        return dict(one for one in found if one is not None)

    async def _ends(self, partitions: Iterable[PartitionId]) -> dict[int, Span]:
        async def ends(partition: PartitionId) -> tuple[int, Span] | None:
            try:
                return partition.number, await self._kafka.ends(partition)
            except (Missing, Corrupt):  # deleted; or damaged, which is said of the log
                return None

        found = await together([ends(partition) for partition in partitions], READS_AT_ONCE)
        return dict(one for one in found if one is not None)


def _say_gone(low: dict[PartitionId, _Low], seen: Examined) -> None:
    """Without a table all is well, as long as nothing has left the log for it."""
    moved = [(partition.number, marks.table_end) for partition, marks in low.items() if marks.table_end]
    if not moved:
        seen.said = f"no table yet; {seen.behind:,} offsets in the log"
        return
    number, end = moved[0]
    text = (
        f"its table was dropped, and with it the records before offset {end} of partition {number}"
        f"{' and of others' if len(moved) > 1 else ''}: register its newest metadata file again, or delete the topic"
    )
    seen.troubles.append(Trouble("gone", "", text))


def _summary(state: State, choice: Choice, seen: Examined) -> str:
    rows, size = sum(file.rows for file in state.data), sum(file.size for file in state.data)
    deletes = f" and {len(state.deletes):,} of deletes" if state.deletes else ""
    return (
        f"{state.name}: {rows:,} rows, {size:,} bytes in {len(state.data):,} files{deletes};"
        f" {seen.behind:,} offsets behind the log; looked into {len(choice.files):,} files, compared"
        f" {len(choice.windows):,} parts with what Kafka serves"
    )


def _each_once(troubles: Iterable[Trouble]) -> list[Trouble]:
    """On one line each: libraries whose words are repeated there take several."""
    found = {" ".join(trouble.text.split()): trouble for trouble in troubles}
    return [trouble._replace(text=text) for text, trouble in found.items()]
