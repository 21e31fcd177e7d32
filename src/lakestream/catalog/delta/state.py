"""The state of a Delta table at a version, computed from its log. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol
from lakestream.catalog.delta.schema import COLUMN_MAPPING, MAPPING_MODE, TIMESTAMP_NTZ

NO_VERSION: Final = -1
"""The version of a table that does not exist."""
KNOWN_FEATURES: Final = frozenset((COLUMN_MAPPING, TIMESTAMP_NTZ, "appendOnly", "invariants", "checkConstraints"))
"""Features that other engines may enable. They do not change how files are read, so commits stay valid."""


@dataclass(frozen=True, slots=True)
class DeltaState:
    version: int = NO_VERSION
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    transactions: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, Add] = field(default_factory=dict)
    """By path."""
    checkpoint: int = NO_VERSION
    """The version of the newest known checkpoint."""

    @property
    def is_mapped(self) -> bool:
        return self.metadata is not None and self.metadata.configuration.get(MAPPING_MODE, "none") != "none"

    def after(self, version: int, actions: Iterable[Action]) -> "DeltaState":
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

    def unsupported(self) -> str:
        """Returns why commits to the table are not possible; empty if they are. Another engine changed the table."""
        if self.protocol is None or self.metadata is None:
            return "" if self.version == NO_VERSION else "its log has no protocol or metadata action"
        if others := sorted(self.protocol.features - KNOWN_FEATURES):
            return f"an engine enabled its table feature {others[0]}"
        if self.metadata.partition_columns:
            return "an engine partitioned it"
        return ""
