"""What a Delta table is after a commit: the fold of its log. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol
from lakestream.catalog.delta.schema import COLUMN_MAPPING, MAPPING_MODE, TIMESTAMP_NTZ

NOTHING: Final = -1
"""The version of a table that is not there yet."""
KNOWN_FEATURES: Final = frozenset((COLUMN_MAPPING, TIMESTAMP_NTZ, "appendOnly", "invariants", "checkConstraints"))
"""What others may have switched on without our commits becoming wrong: they give no new meaning to files."""


@dataclass(frozen=True, slots=True)
class State:
    version: int = NOTHING
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    transactions: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, Add] = field(default_factory=dict)
    """By path."""
    checkpoint: int = NOTHING
    """The newest that is known."""

    @property
    def is_mapped(self) -> bool:
        return self.metadata is not None and self.metadata.configuration.get(MAPPING_MODE, "none") != "none"

    def after(self, version: int, actions: Iterable[Action]) -> "State":
        protocol, metadata = self.protocol, self.metadata
        transactions, files = dict(self.transactions), dict(self.files)
        for action in actions:
            protocol = action.protocol or protocol
            metadata = action.meta_data or metadata
            if action.txn is not None:
                transactions[action.txn.app_id] = action.txn.version
            if action.remove is not None:
                files.pop(action.remove.path, None)
            if action.add is not None:
                files[action.add.path] = action.add
        return replace(
            self, version=version, protocol=protocol, metadata=metadata, transactions=transactions, files=files
        )

    def strange(self) -> str:
        """What somebody has made of the table that we cannot go on with; empty: nothing."""
        if self.protocol is None or self.metadata is None:
            return "" if self.version == NOTHING else "its log does not say what it is"
        if others := sorted(self.protocol.features - KNOWN_FEATURES):
            return f"somebody switched on its feature {others[0]}"
        if self.metadata.partition_columns:
            return "somebody partitioned it"
        return ""
