"""Somebody else's Spark at work on the tables while a storm goes on: it sorts and rewrites files and manifests, expires
snapshots, looks for orphans, adds columns, and deletes rows that it remembers.

Its catalog is a broker that may be killed at any moment, so each statement is tried again until it succeeds. All of
them may be repeated: rows below the end of a table never come again.
"""

import itertools
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from tests.integration.engines import Spark
from tests.integration.storm_clients import Place

TRIED_S_MAX: Final = 180.0
"""A long statement asks the catalog many times, and each of them may meet a broker that was just killed."""
RETRY_S: Final = 1.0
FORGIVEN_AFTER: Final = 3
"""Tries of what a busy machine may never let through."""
ROWS_WAITED_FOR: Final = 30
DELETED_MAX: Final = 25
EVERYTHING: Final = "TIMESTAMP '2100-01-01 00:00:00'"


class Foreigner:
    def __init__(self, spark: Spark, topics: list[str], luck: random.Random, say: Callable[[str], None]) -> None:
        self.rounds = 0
        self.deleted: dict[Place, set[int]] = defaultdict(set)
        self._spark = spark
        self._topics = topics
        self._luck = luck
        self._say = say
        self._numbers = itertools.count()

    def prepare(self) -> None:
        """Until there are tables to work on. One of them is told how to delete."""
        for topic in self._topics:
            self._wait_for_rows(topic)
        self._do(f"ALTER TABLE default.{self._topics[0]} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")

    def run(self, ended: threading.Event) -> None:
        """Each round changes tables in every way, in any order. The first one is always finished."""
        while not self.rounds or not ended.is_set():
            for change, topic in self._changes():
                change(topic)
                if self.rounds and ended.is_set():
                    return
            self.rounds += 1

    def _changes(self) -> list[tuple[Callable[[str], None], str]]:
        """Rows go from all tables; the rest is done to one of them."""
        changes = [self._sort, self._rewrite, self._expire]
        changes += [self._rewrite_manifests, self._remove_orphans, self._add_column]
        chosen: list[tuple[Callable[[str], None], str]] = [
            (change, self._luck.choice(self._topics)) for change in changes
        ]
        chosen += [(self._delete, topic) for topic in self._topics]
        self._luck.shuffle(chosen)
        return chosen

    def _sort(self, topic: str) -> None:
        all_files = "options => map('rewrite-all', 'true')"
        order = self._luck.choice(["value DESC", "_stream.timestamp DESC"])
        self._call("rewrite_data_files", topic, f"strategy => 'sort', sort_order => '{order}', {all_files}")

    def _rewrite(self, topic: str) -> None:
        self._call("rewrite_data_files", topic, "options => map('min-input-files', '2')")

    def _expire(self, topic: str) -> None:
        self._call("expire_snapshots", topic, f"older_than => {EVERYTHING}, retain_last => 1")

    def _rewrite_manifests(self, topic: str) -> None:
        self._call("rewrite_manifests", topic, "use_caching => false")

    def _remove_orphans(self, topic: str) -> None:
        """As old as Iceberg says: files that a pipeline is about to commit are younger. On a disk, Hadoop stops at a
        file that goes while it lists them: on a busy machine there always is one."""
        self._call("remove_orphan_files", topic, "prefix_listing => true", unless="cannot access")

    def _add_column(self, topic: str) -> None:
        """Under a new name for each try: the one before may have been done, and only its answer got lost."""
        self._do(lambda: f"ALTER TABLE default.{topic} ADD COLUMN more{next(self._numbers)} string")

    def _delete(self, topic: str) -> None:
        """Some rows in a row, of one partition; at times the first there are."""
        ends = self._ends(topic)
        number = self._luck.choice(sorted(ends))
        first, last = ends[number]
        start = first if self._luck.random() < 0.3 else self._luck.randint(first, last)
        end = min(last + 1, start + self._luck.randint(1, DELETED_MAX))
        inside = f"_stream.offset >= {start} AND _stream.offset < {end}"
        self.deleted[Place(topic, number)].update(range(start, end))
        self._do(f"DELETE FROM default.{topic} WHERE _stream.partition = {number} AND {inside}")

    def _ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first and the last offset of each partition."""
        offsets = "min(_stream.offset), max(_stream.offset)"
        rows = self._do(f"SELECT _stream.partition, {offsets} FROM default.{topic} GROUP BY 1", quietly=True)
        return {number: (first, last) for number, first, last in rows}

    def _wait_for_rows(self, topic: str) -> None:
        while self._do(f"SELECT count(*) FROM default.{topic}", quietly=True)[0][0] < ROWS_WAITED_FOR:
            time.sleep(RETRY_S)

    def _call(self, procedure: str, topic: str, rest: str, *, unless: str | None = None) -> None:
        self._do(f"CALL lake.system.{procedure}(table => 'default.{topic}', {rest})", unless=unless)

    def _do(
        self, wanted: str | Callable[[], str], *, quietly: bool = False, unless: str | None = None
    ) -> list[list[int]]:
        """`unless`: in words of a failure that is soon taken for an answer."""
        until_s = time.monotonic() + TRIED_S_MAX
        for attempt in itertools.count(1):
            statement = wanted if isinstance(wanted, str) else wanted()
            try:
                answer: list[list[int]] = self._spark.sql(statement)
            except AssertionError as error:  # it failed: its broker was killed, or the pipeline came in between
                if unless is not None and unless in str(error) and attempt >= FORGIVEN_AFTER:
                    return []
                if time.monotonic() > until_s:
                    raise
                self._say(f"foreigner: try {attempt}: {_reason(error)} of {statement}")
                time.sleep(RETRY_S)
            else:
                if not quietly:
                    self._say(f"foreigner: {statement}")
                return answer
        raise AssertionError("unreachable")


def _reason(error: AssertionError) -> str:
    """The last exception that Java names."""
    named = re.findall(r"(\w+(?:Exception|Error): [^\\\n]*)", str(error))
    return str(named[-1] if named else error)[:200]
