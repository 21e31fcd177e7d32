"""Responses of the Iceberg REST API. Table metadata is sent as the bytes of its file."""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.metadata_files import THREAD_BYTES_MIN
from lakestream.catalog.table_metadata.json_model import Json, file_json
from lakestream.protocol.rest.iceberg.errors import JSON


def json_response(body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON, headers=headers)


def no_content() -> Response:
    return Response(status_code=204)


async def table_response(
    table: LoadedTable, *, refs_only: bool = False, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a table without storage settings. Large metadata is encoded in a thread.

    Storage settings are defaults of the whole catalog (/v1/config). In a table they would take precedence over the
    client's own configuration, and DuckDB would ignore all other credentials.
    """
    in_thread = len(table.file.raw) >= THREAD_BYTES_MIN
    body = await asyncio.to_thread(_body, table, refs_only) if in_thread else _body(table, refs_only)
    return Response(body, media_type=JSON, headers={"etag": etag(table, refs_only=refs_only), **(headers or {})})


def _body(table: LoadedTable, refs_only: bool) -> bytes:
    metadata: object = msgspec.Raw(bytes(table.file.raw))
    if refs_only:
        metadata = file_json(_with_refs_only(table.metadata))
    return msgspec.json.encode({"metadata-location": table.metadata_location, "metadata": metadata, "config": {}})


def etag(table: LoadedTable, *, refs_only: bool) -> str:
    """Derived from the name of the metadata file alone: a metadata file never changes."""
    digest = hashlib.sha256(table.metadata_location.encode()).hexdigest()[:32]
    return f'"{digest}-{"refs" if refs_only else "all"}"'


def _with_refs_only(metadata: Json) -> Json:
    """Removes the snapshots that no branch or tag refers to. Clients load them when they need them."""
    referenced = {ref["snapshot-id"] for ref in metadata["refs"].values()}
    kept = [snapshot for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] in referenced]
    return {**metadata, "snapshots": kept}
