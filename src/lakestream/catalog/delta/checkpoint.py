"""Reads and writes checkpoints: the state of a Delta table as a Parquet file. Blocks.

Checkpoints written here have no remove actions: those serve VACUUM, and Iceberg's maintenance deletes the files.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol, Txn, converted
from lakestream.catalog.delta.state import DeltaState
from lakestream.errors import Corrupt

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_LIST: Final = pa.list_(pa.string())
_SCHEMA: Final = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("tags", _TEXTS),
                    ("stats", pa.string()),
                ]
            ),
        ),
        (
            "remove",
            pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", _LIST),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", _LIST),
                    ("writerFeatures", _LIST),
                ]
            ),
        ),
    ]
)
_KINDS: Final = {"txn": Txn, "add": Add, "metaData": MetaData, "protocol": Protocol}
_NAMES: Final = {"txn": "txn", "add": "add", "metaData": "meta_data", "protocol": "protocol"}
_MAPS: Final = ("partitionValues", "configuration", "options")


def write_checkpoint_file(state: DeltaState) -> tuple[bytes, int]:
    """Returns the file and the number of its actions."""
    rows = list(_rows(state))
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink, compression="snappy", store_schema=False)
    return sink.getvalue(), len(rows)


def _rows(state: DeltaState) -> Iterator[dict[str, Any]]:
    if state.protocol is None or state.metadata is None:
        raise ValueError("a table without protocol and metadata cannot have a checkpoint")
    protocol, metadata = state.protocol, state.metadata
    yield {
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "readerFeatures": protocol.reader_features,
            "writerFeatures": protocol.writer_features,
        }
    }
    yield {
        "metaData": {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": metadata.format.provider, "options": list(metadata.format.options.items())},
            "schemaString": metadata.schema_string,
            "partitionColumns": list(metadata.partition_columns),
            "configuration": list(metadata.configuration.items()),
            "createdTime": metadata.created_time,
        }
    }
    for app_id, version in state.transactions.items():
        yield {"txn": {"appId": app_id, "version": version}}
    for add in state.files.values():
        yield {
            "add": {
                "path": add.path,
                "partitionValues": list((add.partition_values or {}).items()),
                "size": add.size,
                "modificationTime": add.modification_time,
                "dataChange": False,
                "stats": add.stats,
            }
        }


def read_checkpoint_file(version: int, bodies: Iterable[bytes], name: str) -> DeltaState:
    """Returns the state of a checkpoint of any writer, in one or several parts."""
    actions: list[Action] = []
    for body in bodies:
        try:
            file = pq.ParquetFile(io.BytesIO(body))
            present = [column for column in _KINDS if column in file.schema_arrow.names]
            rows = file.read(columns=present).to_pylist()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Corrupt(f"{name} is not a checkpoint of a Delta table: {error}") from error
        for row in rows:
            actions += [
                Action(**{_NAMES[column]: converted(_plain(row[column]), _KINDS[column], name)})
                for column in present
                if row[column] is not None and any(value is not None for value in row[column].values())
            ]
    state = DeltaState().after(version, actions)
    return DeltaState(version, state.protocol, state.metadata, state.transactions, state.files, version)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Converts maps, which are lists of pairs in Arrow, and leaves out null fields."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            value = _plain(value)
        elif name in _MAPS and value is not None:
            value = dict(value)
        if value is not None:
            found[name] = value
    return found
