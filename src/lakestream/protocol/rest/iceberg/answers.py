"""Answers: JSON, and metadata as the bytes that are in its file."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.shapes import Json, written
from lakestream.protocol.rest.iceberg.errors import JSON


def json_answer(body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON, headers=headers)


def nothing() -> Response:
    return Response(status_code=204)


def table_answer(table: LoadedTable, *, refs_only: bool = False, headers: Mapping[str, str] | None = None) -> Response:
    """Without settings of the storage: those are defaults for the whole catalog (/v1/config). Given with a table they
    would count more than what a client was told by its own user, and DuckDB would use no other credentials beside them.
    """
    metadata: object = msgspec.Raw(bytes(table.file.raw))
    if refs_only:
        metadata = written(_with_refs_only(table.metadata))
    body: dict[str, object] = {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
    return json_answer(body, {"etag": etag(table, refs_only=refs_only), **(headers or {})})


def etag(table: LoadedTable, *, refs_only: bool) -> str:
    """A metadata file never changes, so its name tells what a client has already."""
    digest = hashlib.sha256(table.metadata_location.encode()).hexdigest()[:32]
    return f'"{digest}-{"refs" if refs_only else "all"}"'


def _with_refs_only(metadata: Json) -> Json:
    """Without the snapshots that no branch or tag points at, which a client loads when it needs them."""
    wanted = {ref["snapshot-id"] for ref in metadata["refs"].values()}
    kept = [snapshot for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] in wanted]
    return {**metadata, "snapshots": kept}
