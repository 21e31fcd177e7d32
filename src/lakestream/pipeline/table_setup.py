"""Tables of the topics that a micro-batch moves: loaded or created, with the columns and the layout of their topics.

Before: micro_batch.py.  After: plan.py, which takes location, columns and layout; commit.py, which adds files.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import IncompatibleTable, NoSuchTable
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.operations.update_layout import TableLayout, file_layout, update_layout
from lakestream.catalog.topic_table.checks import check_columns
from lakestream.catalog.topic_table.field_names import file_columns
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.clock import Clock
from lakestream.coordination.topic_config import read as read_settings
from lakestream.data.log.garbage_collector import WalGarbageCollector
from lakestream.data.log.log import Log
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.model import PartitionId
from lakestream.pipeline.backlog import ChangedPartitions
from lakestream.pipeline.plan import Target
from lakestream.pipeline.tasks import Move, MoveFailed, SchemasMissing
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.pipeline.topic_status import TopicStatuses
from lakestream.schemas.value_format import ConversionSettings
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

TABLES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineContext:
    """What the steps of a micro-batch work on."""

    log: Log
    claims: Claims
    topics: Topics
    gc: WalGarbageCollector
    objects: ObjectStore
    catalog: Catalog
    clock: Clock
    changed: ChangedPartitions


class ResolvedMoves(NamedTuple):
    moves: list[Move]
    """To be run again, with the schemas that were missing."""
    failed: list[MoveFailed]


class TopicTables:
    """The tables of the topics, cached between micro-batches. A topic that fails loses its entry."""

    def __init__(self, context: PipelineContext, statuses: TopicStatuses, schemas: TopicSchemas | None) -> None:
        self._catalog = context.catalog
        self._topics = context.topics
        self._claims = context.claims
        self._changed = context.changed
        self._statuses = statuses
        self._schemas = schemas
        self._conversions: dict[str, ConversionSettings | None] = {}
        self._next_offsets: dict[str, tuple[LoadedTable, dict[int, int]]] = {}
        self.by_id: dict[str, LoadedTable] = {}
        """By topic id."""

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def refresh_topics(self) -> None:
        """Reads all topics; forgets those that were deleted."""
        topics = {topic.topic_id: NamedTopic(name, topic) for name, topic in (await self._topics.all()).items()}
        self._statuses.topics = topics
        states = (self.by_id, self._next_offsets, self._conversions, self._statuses.by_id)
        for topic_id in {one for state in states for one in state} - topics.keys():
            for state in states:
                state.pop(topic_id, None)
            if self._schemas is not None:
                self._schemas.forget(topic_id)

    async def load(self, topic_id: str) -> None:
        """Loads the table of a topic, if it exists.

        If the table of a topic was dropped, the topic stalls: a new table would start without the records that were
        only in the old one.
        """
        if topic_id in self.by_id or self._statuses.is_waiting(topic_id):
            return
        try:
            try:
                self.by_id[topic_id] = await self._catalog.load_id(topic_id)
            except NoSuchTable:
                await self._check_never_existed(topic_id)
        except LakestreamError as error:
            self.stall(topic_id, f"its table cannot be read: {error}")
        except Exception as error:
            self.stall_for_bug(topic_id, error)

    async def _check_never_existed(self, topic_id: str) -> None:
        for partition in self._statuses.topics[topic_id].topic.partitions():
            if end := await self._claims.table_end(partition):
                try:  # another driver may have created the table since the first load, and moved this far
                    self.by_id[topic_id] = await self._catalog.load_id(topic_id)
                except NoSuchTable:
                    self.stall(
                        topic_id,
                        f"its table was dropped, with the records before offset {end} of partition"
                        f" {partition.number} in it: register the table again, or delete the topic",
                    )
                return

    async def reload_if_ahead(self, partition: PartitionId, offset: int) -> bool:
        """Returns whether another driver has moved the records at `offset`, and caches the table if so.

        A record that cannot be read is then no error. Unavailable: the table cannot be read now.
        """
        try:
            table = await self._catalog.load_id(partition.topic_id, confirmed=True)
            if next_offsets(table.metadata).get(partition.number, 0) <= offset:
                return False
        except Unavailable:
            raise
        except LakestreamError:
            return False
        self.by_id[partition.topic_id] = table
        return True

    def drop(self, topic_id: str) -> None:
        """Removes a table from the cache; the next micro-batch loads it again."""
        self.by_id.pop(topic_id, None)

    def next_offset(self, partition: PartitionId) -> int:
        """Returns where the table of a partition ends; 0 if there is no table."""
        table = self.by_id.get(partition.topic_id)
        return 0 if table is None else self.next_offsets(partition.topic_id).get(partition.number, 0)

    def next_offsets(self, topic_id: str) -> dict[int, int]:
        """Parsed once per state of a table, which may have thousands of partitions."""
        table, cached = self.by_id[topic_id], self._next_offsets.get(topic_id)
        if cached is None or cached[0] is not table:
            cached = self._next_offsets[topic_id] = (table, next_offsets(table.metadata))
        return cached[1]

    # ── creation, columns and layout ─────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, topic_ids: Iterable[str]) -> None:
        """Creates missing tables, and gives all of them the columns and the layout of their topics."""
        # A read of another partition may just have found that the topic is deleted.
        existing = sorted(set(topic_ids) & self._statuses.topics.keys())
        await gather_limited([self._try_prepare(topic_id) for topic_id in existing], TABLES_AT_ONCE)

    async def _try_prepare(self, topic_id: str) -> None:
        existed = topic_id in self.by_id
        try:
            await self._prepare(topic_id)
        except IncompatibleTable as error:
            self.stall(topic_id, str(error))
        except LakestreamError as error:
            if existed and isinstance(error, Unavailable):
                self.drop(topic_id)
                self._statuses.note_error(topic_id, f"its schemas cannot be read: {error}")
            else:
                self.stall(topic_id, f"its table cannot be created: {error}")
        except Exception as error:
            self.stall_for_bug(topic_id, error)

    async def _prepare(self, topic_id: str) -> None:
        named = await self._current_topic(topic_id)
        if named is None:
            self.drop(topic_id)  # the next micro-batch finds that the topic is deleted
            return
        is_new = topic_id not in self.by_id
        if is_new:
            self.by_id[topic_id] = await ensure_table(self._catalog, named.name, topic_id, named.topic.settings)
        check_columns(self.by_id[topic_id].metadata)  # before files are written that could not be committed
        if self._schemas is not None:
            prepared = await self._schemas.prepare(named, self.by_id[topic_id])
            self.by_id[topic_id], self._conversions[topic_id] = prepared
        # A new table gets its columns with its first values, and with them the fields that it is partitioned by.
        await self._update_layout(topic_id, only_whole=is_new)

    async def _current_topic(self, topic_id: str) -> NamedTopic | None:
        """Returns the topic with its current settings, which may have got schemas since; None if it was deleted."""
        named = self._statuses.topics[topic_id]
        if self._schemas is None:
            return named
        try:
            topic = await self._topics.get(named.name)
        except Missing:
            return None
        if topic.topic_id != topic_id:
            return None
        self._statuses.topics[topic_id] = NamedTopic(named.name, topic)
        return self._statuses.topics[topic_id]

    async def _update_layout(self, topic_id: str, *, only_whole: bool = False) -> None:
        """Applies the topic's layout settings to its table, as far as the table has the columns."""
        settings = read_settings(self._statuses.topics[topic_id].topic.settings)
        layout = TableLayout(
            partition=settings.table_partition, sort=settings.table_sort, properties=settings.table_properties
        )
        table, pending = await update_layout(self._catalog, self.by_id[topic_id], layout, only_whole=only_whole)
        self.by_id[topic_id], self._statuses.get(topic_id).pending_layout = table, pending

    async def resolve_schemas(self, missing: Sequence[SchemasMissing], *, may_request: bool) -> ResolvedMoves:
        """Looks up the schemas that workers lack, and adds columns for them.

        Without `may_request` workers do not request schemas again: values without a schema keep their bytes.
        """
        topics: defaultdict[str, list[SchemasMissing]] = defaultdict(list)
        for one in missing:
            topics[one.move.partition.topic_id].append(one)
        resolved = ResolvedMoves([], [])

        async def resolve(topic_id: str) -> None:
            moves = [one.move for one in topics[topic_id]]
            try:
                await self._resolve_schemas(topic_id, topics[topic_id])
            except LakestreamError as error:
                reason, is_temporary = f"its schemas cannot be read: {error}", not isinstance(error, IncompatibleTable)
                resolved.failed.extend(MoveFailed(move, reason, is_temporary) for move in moves)
                return
            except Exception as error:
                log.exception("pipeline.failed topic=%s", self._statuses.name(topic_id))
                resolved.failed.extend(MoveFailed(move, _bug_reason(error), False) for move in moves)
                return
            target = self.target(topic_id)
            conversion = target.conversion
            if conversion is not None and not may_request:
                conversion = replace(conversion, requests_schemas=False)
            resolved.moves.extend(
                replace(move, columns=target.columns, conversion=conversion, layout=target.layout) for move in moves
            )

        await gather_limited([resolve(topic_id) for topic_id in topics], TABLES_AT_ONCE)
        return resolved

    async def _resolve_schemas(self, topic_id: str, missing: Sequence[SchemasMissing]) -> None:
        conversion = self._conversions.get(topic_id)
        if self._schemas is None or conversion is None:
            raise Unavailable("a worker lacks schemas of a topic without schemas (bug)")
        self.by_id[topic_id], self._conversions[topic_id] = await self._schemas.resolve(
            self._statuses.topics[topic_id],
            self.by_id[topic_id],
            conversion,
            [schema for one in missing for schema in one.schemas],
            [shape for one in missing for shape in one.inferred],
        )
        await self._update_layout(topic_id)  # a new column may be one that the table is to be partitioned by

    def target(self, topic_id: str) -> Target:
        metadata = self.by_id[topic_id].metadata
        properties = tuple((name, text) for name, text in metadata["properties"].items() if name.startswith("write."))
        conversion, layout = self._conversions.get(topic_id), file_layout(metadata)
        columns = file_columns(metadata) if conversion is not None else ()
        return Target(metadata["location"], properties, columns, conversion, layout)

    # ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def stall(self, topic_id: str, reason: str) -> None:
        """Stops a topic for a while. Its table is loaded again by the retry."""
        self._statuses.note_stalled(topic_id, reason)
        self.drop(topic_id)
        named = self._statuses.topics.get(topic_id)
        if named is not None:
            self._changed.requeue(named.topic.partitions())

    def stall_for_bug(self, topic_id: str, error: Exception) -> None:
        """Stops a topic after an error that is not raised on purpose. The other topics continue."""
        log.exception("pipeline.failed topic=%s", self._statuses.name(topic_id))
        self.stall(topic_id, _bug_reason(error))


def _bug_reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}: this is a bug, please report it with the lines of the log"
