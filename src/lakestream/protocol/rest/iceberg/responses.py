"""Responses of the Iceberg REST API. Table metadata is sent as the bytes of its file."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.table_metadata.json_model import Json, file_json
from lakestream.protocol.rest.iceberg.errors import JSON


def json_response(body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON, headers=headers)


def no_content() -> Response:
    return Response(status_code=204)


def table_response(
    table: LoadedTable, *, refs_only: bool = False, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a table without storage settings.

    Those are defaults of the whole catalog (/v1/config). In a table they would take precedence over the client's own
    configuration, and DuckDB would ignore all other credentials.
    """
    metadata: object = msgspec.Raw(bytes(table.file.raw))
    if refs_only:
        metadata = file_json(_with_refs_only(table.metadata))
    body: dict[str, object] = {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
    return json_response(body, {"etag": etag(table, refs_only=refs_only), **(headers or {})})


def etag(table: LoadedTable, *, refs_only: bool) -> str:
    """Derived from the name of the metadata file alone: a metadata file never changes."""
    digest = hashlib.sha256(table.metadata_location.encode()).hexdigest()[:32]
    return f'"{digest}-{"refs" if refs_only else "all"}"'


def _with_refs_only(metadata: Json) -> Json:
    """Removes the snapshots that no branch or tag refers to. Clients load them when they need them."""
    referenced = {ref["snapshot-id"] for ref in metadata["refs"].values()}
    kept = [snapshot for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] in referenced]
    return {**metadata, "snapshots": kept}
