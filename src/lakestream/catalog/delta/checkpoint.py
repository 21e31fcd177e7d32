"""A Delta table's state as a Parquet file, so that readers need not read the log from its start. Blocks.

What was removed is not in ours: that is kept for VACUUM, and here Iceberg's maintenance removes files.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol, Transaction, converted
from lakestream.catalog.delta.state import State
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
_KINDS: Final = {"txn": Transaction, "add": Add, "metaData": MetaData, "protocol": Protocol}
_NAMES: Final = {"txn": "txn", "add": "add", "metaData": "meta_data", "protocol": "protocol"}
_MAPS: Final = ("partitionValues", "configuration", "options")


def checkpoint_of(state: State) -> tuple[bytes, int]:
    """The file, and how many actions are in it."""
    rows = list(_rows(state))
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink, compression="snappy", store_schema=False)
    return sink.getvalue(), len(rows)


def _rows(state: State) -> Iterator[dict[str, Any]]:
    if state.protocol is None or state.metadata is None:
        raise ValueError("a table that is not there has no checkpoint")
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


def state_at(version: int, bodies: Iterable[bytes], name: str) -> State:
    """Of a checkpoint, ours or others', in one part or in several."""
    actions: list[Action] = []
    for body in bodies:
        try:
            file = pq.ParquetFile(io.BytesIO(body))
            there = [column for column in _KINDS if column in file.schema_arrow.names]
            rows = file.read(columns=there).to_pylist()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Corrupt(f"{name} is no checkpoint of a Delta table: {error}") from error
        for row in rows:
            actions += [
                Action(**{_NAMES[column]: converted(_plain(row[column]), _KINDS[column], name)})
                for column in there
                if row[column] is not None and any(value is not None for value in row[column].values())
            ]
    state = State().after(version, actions)
    return State(version, state.protocol, state.metadata, state.transactions, state.files, version)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Maps are lists of pairs in Arrow; what is not there counts as not said."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            value = _plain(value)
        elif name in _MAPS and value is not None:
            value = dict(value)
        if value is not None:
            found[name] = value
    return found
