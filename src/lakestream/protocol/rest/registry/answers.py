"""Answers: JSON, and schemas as the API spells them."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lakestream.coordination.schemas.registry import Registration
from lakestream.metadata.schemas import NewSchema, StoredText
from lakestream.protocol.rest.registry.errors import JSON

PLAIN = "application/json"


def json_answer(request: Request, body: Any) -> Response:
    return _answer(request, msgspec.json.encode(body))


def text_answer(request: Request, text: str) -> Response:
    """A schema and nothing else."""
    return _answer(request, text.encode())


def _answer(request: Request, body: bytes) -> Response:
    accepted = request.headers.get("accept", "")
    wants_plain = PLAIN in accepted and "schemaregistry" not in accepted
    return Response(body, headers={"content-type": PLAIN if wants_plain else JSON})


def version_body(found: Registration, text: str | None = None) -> dict[str, Any]:
    """A version of a subject. `text`: in another format than it is kept in."""
    place = {"subject": found.subject, "version": found.version.number, "id": found.version.id}
    deleted = {"deleted": True} if found.version.deleted else {}
    return {**place, **schema_body(found.schema, found.text, text), **deleted}


def schema_body(schema: NewSchema, stored: StoredText, text: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"guid": schema.guid, "schemaType": schema.format}
    if schema.references:
        named = (("name", "subject", "version"), schema.references)
        body["references"] = [{name: getattr(one, name) for name in named[0]} for one in named[1]]
    more: Mapping[str, Any] = {"metadata": stored.metadata, "ruleSet": stored.rule_set}
    body |= {name: value for name, value in more.items() if value is not None}
    return body | {"schema": stored.text if text is None else text}
