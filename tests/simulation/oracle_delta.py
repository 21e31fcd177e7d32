"""The true Delta tables: compares each commit to a Delta log with its Iceberg table, at the instant of the commit.

Delta versions are written once           and are contiguous
Delta has the files of its snapshot       the files of the snapshot that the commit names
Delta moves forward                       never to an older snapshot
files of Delta are not deleted            by Lakestream
"""

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle

LOG: Final = "/_delta_log/"
COMMIT: Final = re.compile(r"(.*)/_delta_log/(\d{20})\.json")
SNAPSHOT: Final = "lakestream.snapshot-id"


@dataclass(slots=True)
class TrueDeltaTable:
    version: int = -1
    followed: int = -1
    files: set[str] = field(default_factory=set)
    """Keys of the live files."""


class TrueDelta:
    def __init__(self, oracle: "Oracle") -> None:
        self._oracle = oracle
        self.tables: dict[str, TrueDeltaTable] = {}
        """Tables by the folder of their files."""

    def file_stored(self, key: str, body: bytes, is_new: bool) -> None:
        if (named := COMMIT.fullmatch(key)) is None:
            return
        root, version = named.group(1), int(named.group(2))
        table = self.tables.setdefault(root, TrueDeltaTable())
        if not is_new or version != table.version + 1:
            self._oracle.report("Delta versions are written once", f"{key} was stored at version {table.version}")
        table.version = version
        self._oracle.tally["Delta commits"] += 1
        self._apply(root, table, [json.loads(line) for line in body.splitlines() if line])

    def _apply(self, root: str, table: TrueDeltaTable, actions: list[dict[str, Any]]) -> None:
        snapshot_id = followed = None
        for action in actions:
            if "remove" in action:
                table.files.discard(f"{root}/{unquote(action['remove']['path'])}")
            if "add" in action:
                table.files.add(f"{root}/{unquote(action['add']['path'])}")
            snapshot_id = action.get("commitInfo", {}).get(SNAPSHOT, snapshot_id)
            followed = action.get("txn", {}).get("version", followed)
        where = f"version {table.version} of {root}"
        if followed is None or followed < table.followed:
            self._oracle.report(
                "Delta moves forward", f"{where} follows {followed}, the previous version {table.followed}"
            )
        table.followed = max(table.followed, followed or 0)
        expected = self._oracle.tables.snapshots.get(int(snapshot_id or 0))
        if expected is None or table.files != expected:
            differing = sorted(table.files ^ (expected or set()))
            self._oracle.report(
                "Delta has the files of its snapshot", f"{where} and snapshot {snapshot_id} differ in {differing}"
            )

    def file_deleted(self, key: str) -> None:
        for root, table in self.tables.items():
            if key in table.files:
                self._oracle.report("files of Delta are not deleted", f"{key} was deleted, {root} lists it")

    def lists(self, key: str) -> bool:
        return LOG in key or any(key in table.files for table in self.tables.values())
