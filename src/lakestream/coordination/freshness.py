"""A fresh read: a table that has everything which was acknowledged when somebody asked for it.

Where the logs end now → an ask in the metadata store → the pipeline wakes, moves and commits → the table's pointer
moves, which wakes us → the table says how far it is. Every wait ends: when the time is over, or it is known that nobody
will come, the answer is what there is, and why it is not more.

Before: protocol/rest/iceberg/tables.py.  The other side: pipeline/asked.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.names import TableName
from lakestream.catalog.next_offsets import next_offsets
from lakestream.catalog.topic_names import name_of
from lakestream.clock import Clock, Ids
from lakestream.coordination.cluster import ClusterView
from lakestream.data.log.log import Log
from lakestream.durations import seconds
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.asks import Asks
from lakestream.metadata.reports import Reports
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import Topic, Topics
from lakestream.storage.together import together

log = logging.getLogger(__name__)

WAITING_MAX: Final = 100
"""Of one broker. Who comes then gets what there is at once."""
LOOK_MS: Final = 1_000
"""Also without news, which may get lost."""
LOGS_AT_ONCE: Final = 32
REMOVE_S_MAX: Final = 5
HEARD_MS: Final = 3 * 60 * 1000
"""A pipeline that lives says so every minute: what one said before may no longer hold."""
LACKING_SHOWN: Final = 3


class Fresh(NamedTuple):
    is_fresh: bool
    why: str
    """What is missing, and for what reason; or why nothing can be."""


class NamedTopic(NamedTuple):
    name: str
    topic: Topic


class Freshness:
    def __init__(
        self, store: MetadataStore, logs: Log, catalog: Catalog, view: ClusterView, clock: Clock, ids: Ids
    ) -> None:
        self._store = store
        self._logs = logs
        self._catalog = catalog
        self._view = view
        self._clock = clock
        self._ids = ids
        self._topics = Topics(store)
        self._asks = Asks(store)
        self._reports = Reports(store)
        self._news: set[asyncio.Event] = set()  # of each who waits
        self._closed = False

    def close(self) -> None:
        """Whoever waits gets what there is."""
        self._closed = True
        for news in self._news:
            news.set()

    async def wait(self, name: TableName, wait_ms: int) -> Fresh:
        """Until the table of that name has all that its topic's logs have now, or the time is over."""
        lacking: dict[int, str] = {}
        said = ""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._wait(name, lacking)
        except TimeoutError:
            said = f"not within {seconds(wait_ms)}{await self._silence()}"
        except LakestreamError as error:
            said = f"{error}"
        return Fresh(False, "; ".join([said, *_shown(lacking)]))

    async def _wait(self, name: TableName, lacking: dict[int, str]) -> Fresh:
        found = await self._topic_of(name)
        if found is None:
            return Fresh(True, "no topic stands behind this table")
        if len(self._news) >= WAITING_MAX:
            return Fresh(False, f"{len(self._news)} others wait already: ask again")
        topic_id = found.topic.topic_id
        ends = await self._ends(found.topic)
        lacking.update(await self._lacking(topic_id, ends))
        if not lacking:
            return Fresh(True, "")
        async with self._followed(topic_id) as news, self._asked(topic_id, {one: ends[one] for one in lacking}):
            while not self._closed:
                news.clear()
                now = await self._lacking(topic_id, ends)
                lacking.clear()
                lacking.update(now)
                if not lacking:
                    return Fresh(True, "")
                if why := await self._stuck(found.name):
                    return Fresh(False, "; ".join([why, *_shown(lacking)]))
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_MS / 1000):
                        await news.wait()
        return Fresh(False, "; ".join(["this server stops", *_shown(lacking)]))

    async def _topic_of(self, name: TableName) -> NamedTopic | None:
        """The topic that is called like the table; else the one whose table has been given another name."""
        with suppress(Missing):
            topic = await self._topics.get(name.name)
            if name_of(name.name, topic.settings) == name:
                return NamedTopic(name.name, topic)
        with suppress(Missing, NoSuchTable):
            table = (await self._catalog.pointers.find(name)).table
            if table.topic_id:
                topic_name = await self._view.name_of_id(table.topic_id)
                topic = await self._topics.get(topic_name)
                if topic.topic_id == table.topic_id:
                    return NamedTopic(topic_name, topic)
        return None

    async def _ends(self, topic: Topic) -> dict[int, int]:
        """Up to which all is decided: no open transaction lies before it."""
        partitions = topic.partitions()
        bounds = await together([self._logs.bounds(partition) for partition in partitions], LOGS_AT_ONCE)
        return {partition.number: bound.stable for partition, bound in zip(partitions, bounds, strict=True)}

    async def _lacking(self, topic_id: str, ends: Mapping[int, int]) -> dict[int, str]:
        """How far each partition is that is not there yet."""
        try:
            reached = next_offsets((await self._catalog.load_id(topic_id)).metadata)
        except NoSuchTable:
            reached = {}
        return {
            number: f"partition {number} is at {reached.get(number, 0)} of {end}"
            for number, end in ends.items()
            if reached.get(number, 0) < end
        }

    async def _stuck(self, name: str) -> str:
        report = await self._reports.get()
        if report is None or self._clock.now_ms() - report.at_ms > HEARD_MS:
            return ""
        topic = report.topics.get(name)
        return f"the topic is stuck: {topic.stuck}" if topic is not None and topic.stuck else ""

    async def _silence(self) -> str:
        """Of the pipeline, where that explains it."""
        try:
            report = await self._reports.get()
        except LakestreamError:
            return ""
        if report is None:
            return ": no pipeline has run yet, start one"
        silent_ms = self._clock.now_ms() - report.at_ms
        return f": the pipeline was last heard of {silent_ms // 1000} s ago" if silent_ms > HEARD_MS else ""

    @asynccontextmanager
    async def _asked(self, topic_id: str, ends: Mapping[int, int]) -> AsyncIterator[None]:
        name = self._ids.new()
        await self._asks.put(name, topic_id, ends)
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(REMOVE_S_MAX):
                    await self._asks.remove(name)
            except (LakestreamError, TimeoutError) as error:
                log.warning("freshness.ask_left name=%s error=%s", name, error)  # the pipeline removes it

    @asynccontextmanager
    async def _followed(self, topic_id: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever the table may have moved."""
        news = asyncio.Event()

        async def follow() -> None:
            with suppress(LakestreamError):  # then the looks in between find it
                async for _ in self._store.watch(keys.table_key(topic_id).path):
                    news.set()

        following = asyncio.get_running_loop().create_task(follow(), name="freshness.follow")
        self._news.add(news)
        try:
            yield news
        finally:
            self._news.discard(news)
            following.cancel()
            await asyncio.wait([following])


def _shown(lacking: Mapping[int, str]) -> list[str]:
    shown = list(lacking.values())[:LACKING_SHOWN]
    return [*shown, f"{len(lacking) - len(shown)} more"] if len(lacking) > len(shown) else shown
