"""Requirements of a commit, as the REST specification defines them; `type` selects one. Pure.

If a requirement does not hold, the commit fails with CommitFailed, whatever its updates are.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from lakestream.catalog.errors import CommitFailed
from lakestream.catalog.table_metadata.json_model import Id, Json, SmallId


class _Requirement(msgspec.Struct, frozen=True, rename="kebab", tag_field="type"): ...


class AssertCreate(_Requirement, frozen=True, tag="assert-create"):
    """The table does not exist."""


class AssertTableUuid(_Requirement, frozen=True, tag="assert-table-uuid"):
    uuid: str


class AssertRefSnapshotId(_Requirement, frozen=True, tag="assert-ref-snapshot-id"):
    """The branch or tag is at this snapshot; None: it does not exist."""

    ref: str
    snapshot_id: Id | None = None


class AssertLastAssignedFieldId(_Requirement, frozen=True, tag="assert-last-assigned-field-id"):
    last_assigned_field_id: SmallId


class AssertCurrentSchemaId(_Requirement, frozen=True, tag="assert-current-schema-id"):
    current_schema_id: SmallId


class AssertLastAssignedPartitionId(_Requirement, frozen=True, tag="assert-last-assigned-partition-id"):
    last_assigned_partition_id: SmallId


class AssertDefaultSpecId(_Requirement, frozen=True, tag="assert-default-spec-id"):
    default_spec_id: SmallId


class AssertDefaultSortOrderId(_Requirement, frozen=True, tag="assert-default-sort-order-id"):
    default_sort_order_id: SmallId


Requirement: TypeAlias = (
    AssertCreate
    | AssertTableUuid
    | AssertRefSnapshotId
    | AssertLastAssignedFieldId
    | AssertCurrentSchemaId
    | AssertLastAssignedPartitionId
    | AssertDefaultSpecId
    | AssertDefaultSortOrderId
)


def check_requirements(requirements: Sequence[Requirement], table: Json) -> None:
    """Raises CommitFailed for the first requirement that the table does not meet."""
    for requirement in requirements:
        if (failure := _failure(requirement, table)) is not None:
            raise CommitFailed(f"Requirement failed: {failure}")


def _failure(requirement: Requirement, table: Json) -> str | None:
    match requirement:
        case AssertCreate():
            return "table already exists"
        case AssertTableUuid(uuid):
            return _differs("UUID", uuid.lower(), table["table-uuid"].lower())
        case AssertRefSnapshotId(ref, snapshot_id):
            return _ref_differs(ref, snapshot_id, table["refs"].get(ref))
        case AssertLastAssignedFieldId(number):
            return _differs("last assigned field id", number, table["last-column-id"])
        case AssertCurrentSchemaId(number):
            return _differs("current schema id", number, table["current-schema-id"])
        case AssertLastAssignedPartitionId(number):
            return _differs("last assigned partition id", number, table["last-partition-id"])
        case AssertDefaultSpecId(number):
            return _differs("default partition spec", number, table["default-spec-id"])
        case AssertDefaultSortOrderId(number):
            return _differs("default sort order", number, table["default-sort-order-id"])


def _differs(what: str, expected: object, found: object) -> str | None:
    return None if expected == found else f"{what} has changed: expected {expected}, is {found}"


def _ref_differs(name: str, expected: int | None, ref: Json | None) -> str | None:
    if ref is None:
        return None if expected is None else f"branch or tag {name} is missing, expected at snapshot {expected}"
    if expected is None:
        return f"branch or tag {name} was created concurrently"
    if ref["snapshot-id"] != expected:
        return f"{ref['type']} {name} has changed: expected snapshot {expected}, is at {ref['snapshot-id']}"
    return None
