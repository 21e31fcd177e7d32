"""Responses of the schema registry API: JSON, and schemas in its field names."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lakestream.coordination.schema_registry.registry import RegisteredVersion
from lakestream.metadata.schemas import NewSchema, StoredText
from lakestream.protocol.rest.schema_registry.errors import JSON

PLAIN = "application/json"


def json_response(request: Request, body: Any) -> Response:
    return _response(request, msgspec.json.encode(body))


def text_response(request: Request, text: str) -> Response:
    return _response(request, text.encode())


def _response(request: Request, body: bytes) -> Response:
    accepted = request.headers.get("accept", "")
    is_plain = PLAIN in accepted and "schemaregistry" not in accepted
    return Response(body, headers={"content-type": PLAIN if is_plain else JSON})


def version_body(registration: RegisteredVersion, text: str | None = None) -> dict[str, Any]:
    """Returns a version of a subject. `text`: the schema in another format than the stored one."""
    version = {"subject": registration.subject, "version": registration.version.number, "id": registration.version.id}
    deleted = {"deleted": True} if registration.version.deleted else {}
    return {**version, **schema_body(registration.schema, registration.text, text), **deleted}


def schema_body(schema: NewSchema, stored: StoredText, text: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"guid": schema.guid, "schemaType": schema.format}
    if schema.references:
        body["references"] = [
            {"name": one.name, "subject": one.subject, "version": one.version} for one in schema.references
        ]
    more: Mapping[str, Any] = {"metadata": stored.metadata, "ruleSet": stored.rule_set}
    body |= {name: value for name, value in more.items() if value is not None}
    return body | {"schema": stored.text if text is None else text}
