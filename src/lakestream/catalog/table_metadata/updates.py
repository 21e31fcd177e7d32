"""Updates of a commit, as the REST specification defines them; `action` selects one.

`builder.py` applies them. Schemas, specs, snapshots and the like stay JSON, so that fields which clients wrote into
them and which are unknown here are kept.
"""

from typing import Literal, TypeAlias

import msgspec

from lakestream.catalog.table_metadata.json_model import Id, Json, SmallId


class _Update(msgspec.Struct, frozen=True, rename="kebab", tag_field="action", omit_defaults=True): ...


class AssignUuid(_Update, frozen=True, tag="assign-uuid"):
    uuid: str


class UpgradeFormatVersion(_Update, frozen=True, tag="upgrade-format-version"):
    format_version: SmallId


class AddSchema(_Update, frozen=True, tag="add-schema"):
    schema: Json
    last_column_id: SmallId | None = None


class SetCurrentSchema(_Update, frozen=True, tag="set-current-schema"):
    schema_id: SmallId  # -1, here and below: the last one that the same commit added


class AddSpec(_Update, frozen=True, tag="add-spec"):
    spec: Json


class SetDefaultSpec(_Update, frozen=True, tag="set-default-spec"):
    spec_id: SmallId


class AddSortOrder(_Update, frozen=True, tag="add-sort-order"):
    sort_order: Json


class SetDefaultSortOrder(_Update, frozen=True, tag="set-default-sort-order"):
    sort_order_id: SmallId


class AddSnapshot(_Update, frozen=True, tag="add-snapshot"):
    snapshot: Json


class SetSnapshotRef(_Update, frozen=True, tag="set-snapshot-ref"):
    ref_name: str
    type: Literal["branch", "tag"]
    snapshot_id: Id
    min_snapshots_to_keep: SmallId | None = None
    max_snapshot_age_ms: Id | None = None
    max_ref_age_ms: Id | None = None


class RemoveSnapshots(_Update, frozen=True, tag="remove-snapshots"):
    snapshot_ids: list[Id]


class RemoveSnapshotRef(_Update, frozen=True, tag="remove-snapshot-ref"):
    ref_name: str


class SetLocation(_Update, frozen=True, tag="set-location"):
    location: str


class SetProperties(_Update, frozen=True, tag="set-properties"):
    updates: dict[str, str]


class RemoveProperties(_Update, frozen=True, tag="remove-properties"):
    removals: list[str]


class SetStatistics(_Update, frozen=True, tag="set-statistics"):
    statistics: Json


class RemoveStatistics(_Update, frozen=True, tag="remove-statistics"):
    snapshot_id: Id


class SetPartitionStatistics(_Update, frozen=True, tag="set-partition-statistics"):
    partition_statistics: Json


class RemovePartitionStatistics(_Update, frozen=True, tag="remove-partition-statistics"):
    snapshot_id: Id


class RemovePartitionSpecs(_Update, frozen=True, tag="remove-partition-specs"):
    spec_ids: list[SmallId]


class RemoveSchemas(_Update, frozen=True, tag="remove-schemas"):
    schema_ids: list[SmallId]


class AddEncryptionKey(_Update, frozen=True, tag="add-encryption-key"):
    encryption_key: Json


class RemoveEncryptionKey(_Update, frozen=True, tag="remove-encryption-key"):
    key_id: str


class EnableRowLineage(_Update, frozen=True, tag="enable-row-lineage"):
    """Of early drafts of format version 3. Row lineage is always enabled there."""


Update: TypeAlias = (
    AssignUuid
    | UpgradeFormatVersion
    | AddSchema
    | SetCurrentSchema
    | AddSpec
    | SetDefaultSpec
    | AddSortOrder
    | SetDefaultSortOrder
    | AddSnapshot
    | SetSnapshotRef
    | RemoveSnapshots
    | RemoveSnapshotRef
    | SetLocation
    | SetProperties
    | RemoveProperties
    | SetStatistics
    | RemoveStatistics
    | SetPartitionStatistics
    | RemovePartitionStatistics
    | RemovePartitionSpecs
    | RemoveSchemas
    | AddEncryptionKey
    | RemoveEncryptionKey
    | EnableRowLineage
)
