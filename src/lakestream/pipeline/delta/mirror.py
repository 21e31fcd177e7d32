"""Leads the Delta tables of topics on after their Iceberg tables, beside the rounds: nothing waits for it.

Before: rounds.py and maintenance, which commit to Iceberg; others, who do too.  After: catalog/delta/follow.py.

It is told which tables were committed to, and looks at all of them now and then. What is wrong with one Delta table is
said of that one: it is behind, nobody else is, and it catches up when it can.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta.follow import DeltaTables, Followed
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.listing import Listings
from lakestream.coordination import topic_settings
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.metadata.topics import Topic, Topics
from lakestream.pipeline.delta.footers import FileNames
from lakestream.storage.together import together

log = logging.getLogger(__name__)

LOOK_S: Final = 20.0
"""Between looks at all topics: settings change, and others commit too."""
TABLES_AT_ONCE: Final = 2
TABLE_S_MAX: Final = 120.0
"""For one table: the first commit of a large one lists all of its files."""


@dataclass(slots=True)
class DeltaStanding:
    """How a topic's Delta table is doing."""

    name: str
    version: int = -1
    behind: str = ""
    """Why it is not where Iceberg is; empty: it is."""
    behind_ms: int = 0
    """Since when."""
    in_the_way: frozenset[str] = frozenset()
    """Files that it waits for to be written anew, without rows that were deleted."""
    misnamed: frozenset[str] = frozenset()
    """And those for the names of their columns."""


class DeltaMirror:
    def __init__(self, catalog: Catalog, topics: Topics, now_ms: Callable[[], Awaitable[int]]) -> None:
        """`now_ms`: the time by the metadata store."""
        self._catalog = catalog
        self._topics = topics
        self._now_ms = now_ms
        names = FileNames(catalog.objects, catalog.locations)
        self._tables = DeltaTables(catalog, Listings(catalog.objects, catalog.locations), names)
        self._noted: set[str] = set()
        self._news = asyncio.Event()
        self.standings: dict[str, DeltaStanding] = {}
        """By topic id, of those that want it."""

    def note(self, topic_ids: Iterable[str]) -> None:
        """These tables were committed to."""
        self._noted |= set(topic_ids) & self.standings.keys()
        if self._noted:
            self._news.set()

    def in_the_way(self, topic_id: str) -> tuple[frozenset[str], frozenset[str]]:
        standing = self.standings.get(topic_id)
        return (frozenset(), frozenset()) if standing is None else (standing.in_the_way, standing.misnamed)

    async def listed(self, loaded: LoadedTable) -> frozenset[str]:
        """Keys of files that must stay, although Iceberg may no longer name them."""
        return await self._tables.listed(loaded)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
                await self._follow_news(asyncio.get_running_loop().time() + LOOK_S)
            except LakestreamError as error:
                log.warning("delta.not_looked error=%s", error)
                await asyncio.sleep(LOOK_S)

    async def _follow_news(self, until_s: float) -> None:
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    await self._news.wait()
            except TimeoutError:
                return
            self._news.clear()
            await self._lead_on(self._take())

    async def look(self) -> None:
        """At all topics that want a Delta table."""
        wanting = {topic.topic_id: name for name, topic in (await self._topics.all()).items() if _wants_delta(topic)}
        for topic_id in self.standings.keys() - wanting.keys():
            del self.standings[topic_id]
        for topic_id, name in wanting.items():
            self.standings.setdefault(topic_id, DeltaStanding(name)).name = name
        self._tables.forget(wanting.keys())
        self._noted.clear()
        await self._lead_on(wanting)

    def _take(self) -> set[str]:
        noted, self._noted = self._noted, set()
        return noted

    async def _lead_on(self, topic_ids: Iterable[str]) -> None:
        now_ms = await self._now_ms()
        await together([self._guarded(topic_id, now_ms) for topic_id in sorted(topic_ids)], TABLES_AT_ONCE)

    async def _guarded(self, topic_id: str, now_ms: int) -> None:
        standing = self.standings.get(topic_id)
        if standing is None:
            return
        try:
            async with asyncio.timeout(TABLE_S_MAX):
                self._note(standing, await self._tables.follow(topic_id, now_ms), now_ms)
        except NoSuchTable:
            self._note(standing, Followed(standing.version), now_ms)  # there is none yet, or no longer
        except TimeoutError:
            self._say_behind(standing, f"it took more than {TABLE_S_MAX:.0f} s", now_ms)
        except LakestreamError as error:
            self._say_behind(standing, str(error), now_ms)
        except Exception as error:  # a bug must not hold up the others
            log.exception("delta.failed topic=%s", standing.name)
            self._say_behind(standing, f"{type(error).__name__}: {error}", now_ms)

    def _note(self, standing: DeltaStanding, followed: Followed, now_ms: int) -> None:
        standing.version = followed.version
        standing.in_the_way, standing.misnamed = followed.in_the_way, followed.misnamed
        if followed.commits:
            log.info("delta.followed topic=%s version=%d", standing.name, followed.version)
        if followed.waits:
            self._say_behind(standing, followed.waits, now_ms)
        elif standing.behind:
            log.info("delta.caught_up topic=%s version=%d", standing.name, followed.version)
            standing.behind, standing.behind_ms = "", 0

    def _say_behind(self, standing: DeltaStanding, reason: str, now_ms: int) -> None:
        if standing.behind != reason:
            log.warning("delta.behind topic=%s reason=%s", standing.name, reason)
        standing.behind, standing.behind_ms = reason, standing.behind_ms or now_ms


def _wants_delta(topic: Topic) -> bool:
    try:
        return topic_settings.read(topic.settings).delta
    except Misconfigured:  # by a version of the program that this one does not know; others go on
        return False


async def looked_once(mirror: DeltaMirror | None) -> None:
    """For a pipeline that ends: the Delta tables too have what was moved."""
    if mirror is not None:
        with contextlib.suppress(LakestreamError):
            await mirror.look()
