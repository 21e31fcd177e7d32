"""An external Spark that changes the tables while processes are killed.

It sorts and rewrites files and manifests, expires snapshots, removes orphan files, adds columns, and deletes rows,
whose offsets it records. Its catalog is a broker that can be killed at any time, so each statement is retried until it
succeeds. Every statement may be repeated: the pipeline does not add rows below the end of a table again.
"""

import itertools
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from tests.harness.engines.engines import Spark
from tests.integration.chaos.clients import Place

RETRIES_S_MAX: Final = 180.0
"""A long statement sends many requests to the catalog, each of which can reach a broker that was just killed."""
RETRY_S: Final = 1.0
ATTEMPTS_BEFORE_SKIP: Final = 3
"""Attempts of a statement that may never succeed on a busy machine."""
REWRITES_BEFORE_SKIP: Final = 20
"""Attempts of a rewrite of many files: the pipelines of this test merge files every second, each of which conflicts."""
CONFLICT: Final = "Cannot commit rewrite"
ROWS_MIN: Final = 30
DELETED_MAX: Final = 25
EVERYTHING: Final = "TIMESTAMP '2100-01-01 00:00:00'"


class ExternalSpark:
    def __init__(self, spark: Spark, topics: list[str], rng: random.Random, log: Callable[[str], None]) -> None:
        self.rounds = 0
        self.deleted: dict[Place, set[int]] = defaultdict(set)
        self._spark = spark
        self._topics = topics
        self._rng = rng
        self._log = log
        self._numbers = itertools.count()

    def prepare(self) -> None:
        """Waits until the tables have rows. One table then deletes by position (merge-on-read)."""
        for topic in self._topics:
            self._wait_for_rows(topic)
        self._do(f"ALTER TABLE default.{self._topics[0]} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")

    def run(self, ended: threading.Event) -> None:
        """Runs rounds of all changes in random order until `ended` is set. The first round is always complete."""
        while not self.rounds or not ended.is_set():
            for change, topic in self._changes():
                change(topic)
                if self.rounds and ended.is_set():
                    return
            self.rounds += 1

    def _changes(self) -> list[tuple[Callable[[str], None], str]]:
        """Returns the changes of a round: rows are deleted from all tables, each other change is for one table."""
        changes = [self._sort, self._rewrite, self._expire]
        changes += [self._rewrite_manifests, self._remove_orphans, self._add_column]
        chosen: list[tuple[Callable[[str], None], str]] = [
            (change, self._rng.choice(self._topics)) for change in changes
        ]
        chosen += [(self._delete, topic) for topic in self._topics]
        self._rng.shuffle(chosen)
        return chosen

    def _sort(self, topic: str) -> None:
        all_files = "options => map('rewrite-all', 'true')"
        order = self._rng.choice(["value DESC", "_stream.timestamp DESC"])
        self._rewrite_files(topic, f"strategy => 'sort', sort_order => '{order}', {all_files}")

    def _rewrite(self, topic: str) -> None:
        self._rewrite_files(topic, "options => map('min-input-files', '2')")

    def _rewrite_files(self, topic: str, rest: str) -> None:
        self._call("rewrite_data_files", topic, rest, ignored_error=CONFLICT, attempts=REWRITES_BEFORE_SKIP)

    def _expire(self, topic: str) -> None:
        self._call("expire_snapshots", topic, f"older_than => {EVERYTHING}, retain_last => 1")

    def _rewrite_manifests(self, topic: str) -> None:
        self._call("rewrite_manifests", topic, "use_caching => false")

    def _remove_orphans(self, topic: str) -> None:
        """Removes orphan files with the default age of Iceberg: files that a pipeline is about to commit are younger.

        On a local disk, Hadoop fails if a file is deleted while it lists the files, which is frequent on a busy
        machine.
        """
        self._call("remove_orphan_files", topic, "prefix_listing => true", ignored_error="cannot access")

    def _add_column(self, topic: str) -> None:
        """Adds a column with a new name for each attempt: an attempt may have succeeded although its response was
        lost."""
        self._do(lambda: f"ALTER TABLE default.{topic} ADD COLUMN more{next(self._numbers)} string")

    def _delete(self, topic: str) -> None:
        """Deletes consecutive rows of one partition, sometimes the first ones."""
        ends = self._ends(topic)
        number = self._rng.choice(sorted(ends))
        first, last = ends[number]
        start = first if self._rng.random() < 0.3 else self._rng.randint(first, last)
        end = min(last + 1, start + self._rng.randint(1, DELETED_MAX))
        inside = f"_stream.offset >= {start} AND _stream.offset < {end}"
        self.deleted[Place(topic, number)].update(range(start, end))
        self._do(f"DELETE FROM default.{topic} WHERE _stream.partition = {number} AND {inside}")

    def _ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Returns the first and the last offset of each partition."""
        offsets = "min(_stream.offset), max(_stream.offset)"
        rows = self._do(f"SELECT _stream.partition, {offsets} FROM default.{topic} GROUP BY 1", quiet=True)
        return {number: (first, last) for number, first, last in rows}

    def _wait_for_rows(self, topic: str) -> None:
        while self._do(f"SELECT count(*) FROM default.{topic}", quiet=True)[0][0] < ROWS_MIN:
            time.sleep(RETRY_S)

    def _call(
        self,
        procedure: str,
        topic: str,
        rest: str,
        *,
        ignored_error: str | None = None,
        attempts: int = ATTEMPTS_BEFORE_SKIP,
    ) -> None:
        statement = f"CALL lake.system.{procedure}(table => 'default.{topic}', {rest})"
        self._do(statement, ignored_error=ignored_error, attempts=attempts)

    def _do(
        self,
        statement_of: str | Callable[[], str],
        *,
        quiet: bool = False,
        ignored_error: str | None = None,
        attempts: int = ATTEMPTS_BEFORE_SKIP,
    ) -> list[list[int]]:
        """Runs a statement until it succeeds.

        After so many attempts an error that contains `ignored_error` counts as success."""
        deadline_s = time.monotonic() + RETRIES_S_MAX
        for attempt in itertools.count(1):
            statement = statement_of if isinstance(statement_of, str) else statement_of()
            try:
                rows: list[list[int]] = self._spark.sql(statement)
            except AssertionError as error:  # its broker was killed, or the pipeline committed in between
                if ignored_error is not None and ignored_error in str(error) and attempt >= attempts:
                    return []
                if time.monotonic() > deadline_s:
                    raise
                self._log(f"external Spark: attempt {attempt}: {_reason(error)} of {statement}")
                time.sleep(RETRY_S)
            else:
                if not quiet:
                    self._log(f"external Spark: {statement}")
                return rows
        raise AssertionError("unreachable")


def _reason(error: AssertionError) -> str:
    """Returns the last exception in the output of Java."""
    exceptions = re.findall(r"(\w+(?:Exception|Error): [^\\\n]*)", str(error))
    return str(exceptions[-1] if exceptions else error)[:200]
