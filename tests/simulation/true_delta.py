"""Delta tables as they must be: every commit to the log of one is held against the Iceberg table that it follows, at
the instant it happens.

a version of Delta is written once    and each follows the one before
Delta is what Iceberg was             its files are those of the snapshot that the commit names
Delta never goes back                 to an older snapshot than it was at
what Delta lists stays                nobody of ours removes such a file
"""

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from tests.simulation.witness import Witness

LOG: Final = "/_delta_log/"
COMMIT: Final = re.compile(r"(.*)/_delta_log/(\d{20})\.json")
SNAPSHOT: Final = "lakestream.snapshot-id"


@dataclass(slots=True)
class TrueDeltaTable:
    version: int = -1
    followed: int = -1
    files: set[str] = field(default_factory=set)
    """Keys."""


class TrueDelta:
    def __init__(self, witness: "Witness") -> None:
        self._witness = witness
        self.tables: dict[str, TrueDeltaTable] = {}
        """By the folder that their files are in."""

    def stored(self, key: str, body: bytes, is_new: bool) -> None:
        if (named := COMMIT.fullmatch(key)) is None:
            return
        root, version = named.group(1), int(named.group(2))
        table = self.tables.setdefault(root, TrueDeltaTable())
        if not is_new or version != table.version + 1:
            self._witness.accuse("a version of Delta is written once", f"{key} was stored at version {table.version}")
        table.version = version
        self._witness.tally["Delta commits"] += 1
        self._fold(root, table, [json.loads(line) for line in body.splitlines() if line])

    def _fold(self, root: str, table: TrueDeltaTable, actions: list[dict[str, Any]]) -> None:
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
            self._witness.accuse(
                "Delta never goes back", f"{where} follows {followed}, the one before {table.followed}"
            )
        table.followed = max(table.followed, followed or 0)
        expected = self._witness.tables.snapshots.get(int(snapshot_id or 0))
        if expected is None or table.files != expected:
            differing = sorted(table.files ^ (expected or set()))
            self._witness.accuse(
                "Delta is what Iceberg was", f"{where} and snapshot {snapshot_id} differ in {differing}"
            )

    def removed(self, key: str) -> None:
        for root, table in self.tables.items():
            if key in table.files:
                self._witness.accuse("what Delta lists stays", f"{key} was deleted, {root} lists it")

    def lists(self, key: str) -> bool:
        return LOG in key or any(key in table.files for table in self.tables.values())
