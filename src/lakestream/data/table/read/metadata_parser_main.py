"""Reads from table metadata what reads of history need. Pure; for large metadata in a process of its own.

    metadata_parser_client.py  ──  metadata file  ──▶  metadata_parser_main.py  ──  ParsedTable  ──▶  …_client.py

The metadata grows with each commit of any engine. Parsing holds the GIL: 40 MiB take 0.3 s of CPU time, in which a
broker serves no client. Small metadata is parsed by the same function in a thread of the broker.
"""

from typing import Final, TypeAlias

import msgspec

from lakestream.aio.worker_loop import serve
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.table_metadata.json_model import LONG_MAX, Json, normalised, schema_of
from lakestream.catalog.topic_table.checks import check_columns
from lakestream.catalog.topic_table.columns import PARTITION_ID, VALUE_ID
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, main_of, next_offsets
from lakestream.catalog.topic_table.properties import bound_ids
from lakestream.errors import Rejected
from lakestream.model import Buffer, MiB

MEMORY_MAX: Final = 1024 * MiB
"""Address space, a third of which libraries reserve. The largest metadata file takes some 300 MiB."""
IDLE_S_MAX: Final = 60.0
"""The process ends after this time without a request."""
RESPONSE_BYTES_MAX: Final = 4 * MiB
"""The broker decodes the response with the GIL held. Next offsets of 100,000 partitions take a third."""
REASON_MAX: Final = 2_000
"""Characters. Properties of any length may be part of a reason."""

_INVALID: Final = (msgspec.DecodeError, Rejected, RecursionError)
_BAD_FIELDS: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading fields raises that are not validated, such as those of a schema's columns."""


class TableState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The fields of `snapshots.py:TableSnapshot` that are in the metadata."""

    location: str
    """The table's folder, as the metadata spells it."""
    manifest_list: str | None
    next_offsets: dict[int, int]
    places: dict[int, int]
    is_typed: bool


class InvalidMetadata(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The file is not the metadata of a table."""

    reason: str


class IncompatibleMetadata(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The table was changed so that records cannot be read from it."""

    reason: str


ParsedTable: TypeAlias = TableState | InvalidMetadata | IncompatibleMetadata


def parse_table(raw: Buffer) -> ParsedTable:
    """Parses a metadata file."""
    try:
        return _state(normalised(msgspec.json.decode(raw, type=Json)))
    except IncompatibleTable as error:
        return IncompatibleMetadata(str(error)[:REASON_MAX])
    except _INVALID as error:
        return InvalidMetadata(str(error)[:REASON_MAX])
    except _BAD_FIELDS as error:
        return InvalidMetadata(f"{type(error).__name__}: {error}"[:REASON_MAX])


def partition_places(metadata: Json) -> dict[int, int]:
    """Returns, by partition spec, the position of the field that is the topic's partition, if it has one."""
    return {
        spec["spec-id"]: place
        for spec in metadata["partition-specs"]
        for place, field in enumerate(spec["fields"])
        if field.get("source-id") == PARTITION_ID and field.get("transform") == "identity"
    }


def respond(raw: bytes) -> bytes:
    """Returns the encoded ParsedTable."""
    response = msgspec.msgpack.encode(parse_table(raw))
    if len(response) <= RESPONSE_BYTES_MAX:
        return response
    return msgspec.msgpack.encode(
        IncompatibleMetadata(
            f"{NEXT_OFFSETS}, partition specs and manifest list have {len(response)} bytes, more than"
            f" {RESPONSE_BYTES_MAX}: restore its metadata from a backup"
        )
    )


def _state(metadata: Json) -> TableState:
    try:
        check_columns(metadata)
        offsets = next_offsets(metadata)
    except Rejected as error:
        raise IncompatibleTable(str(error)) from error
    if any(max(moved) > LONG_MAX for moved in offsets.items()):
        raise IncompatibleTable(f"{NEXT_OFFSETS}: a partition or an offset is above {LONG_MAX}")
    snapshot = main_of(metadata)
    listed = next((one.get("manifest-list") for one in metadata["snapshots"] if one["snapshot-id"] == snapshot), None)
    has_value = any(field["id"] == VALUE_ID for field in schema_of(metadata)["fields"])
    is_typed = not has_value or bool(bound_ids(metadata))
    return TableState(metadata["location"], listed, offsets, partition_places(metadata), is_typed)


if __name__ == "__main__":
    serve(respond, MEMORY_MAX, IDLE_S_MAX)
