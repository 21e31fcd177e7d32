"""Bodies of requests to the schema registry. An invalid body is rejected with the path of the invalid field."""

from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from lakestream.coordination.schema_registry.errors import InvalidSchema, InvalidVersion
from lakestream.coordination.schema_registry.registry import RegisterRequest
from lakestream.coordination.schema_registry.state import LATEST
from lakestream.coordination.schema_registry.subjects import Subject
from lakestream.metadata.schemas import Pointer
from lakestream.model import MiB
from lakestream.protocol.rest import request_body
from lakestream.protocol.rest.router import Unprocessable
from lakestream.protocol.rest.schema_registry.requests import NUMBER_MAX, RegistryCall
from lakestream.schemas.model import Format

SCHEMA_BYTES_MAX: Final = 4 * MiB
"""Of the body with a schema, which may have a million characters, and as many bytes of references and metadata."""
REFERENCES_MAX: Final = 1_000

T = TypeVar("T")


class SchemaReference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class Metadata(msgspec.Struct, frozen=True):
    tags: dict[str, list[str]] | None = None
    properties: dict[str, str] | None = None
    sensitive: list[str] | None = None


class Rule(msgspec.Struct, frozen=True, rename="camel"):
    name: str | None = None
    doc: str | None = None
    kind: str | None = None
    mode: str | None = None
    type: str | None = None
    tags: list[str] | None = None
    params: dict[str, str] | None = None
    expr: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    disabled: bool | None = None


class RuleSet(msgspec.Struct, frozen=True, rename="camel"):
    migration_rules: list[Rule] | None = None
    domain_rules: list[Rule] | None = None
    encoding_rules: list[Rule] | None = None
    enable_at: str | None = None


class SchemaBody(msgspec.Struct, frozen=True, rename="camel"):
    schema: str | None = None
    schema_type: str | None = None
    references: list[SchemaReference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None


class ModeBody(msgspec.Struct, frozen=True):
    mode: str | None


async def read_body(request: Request, kind: type[T], bytes_max: int = request_body.BODY_BYTES_MAX) -> T:
    return await request_body.read_json(request, kind, bytes_max, invalid=Unprocessable)


async def read_schema(call: RegistryCall, subject: Subject) -> RegisterRequest:
    body = await read_body(call.request, SchemaBody, SCHEMA_BYTES_MAX)
    return RegisterRequest(
        subject=subject,
        format=_format(body.schema_type),
        text=body.schema or "",
        references=_references(body.references or []),
        metadata=_validated(body.metadata, Metadata, "metadata"),
        rule_set=_validated(body.rule_set, RuleSet, "ruleSet"),
        id=_number(body.id, "id"),
        version=_number(body.version, "version"),
        normalize=call.flag("normalize"),
    )


def _format(text: str | None) -> Format:
    try:
        return Format(text or Format.AVRO.value)
    except ValueError:
        valid = ", ".join(one.value for one in Format)
        raise InvalidSchema(f"Invalid schema type {str(text)[:40]}: use one of {valid}") from None


def _references(references: list[SchemaReference]) -> tuple[Pointer, ...]:
    if len(references) > REFERENCES_MAX:
        raise InvalidSchema(f"a schema may have {REFERENCES_MAX} references at most")
    for reference in references:
        if reference.version != LATEST and not 0 < reference.version <= NUMBER_MAX:
            raise InvalidVersion(f"reference {reference.name!r}: {reference.version} is not a valid version")
    return tuple(Pointer(one.name, one.subject, one.version) for one in references)


def _validated(value: dict[str, Any] | None, kind: type[msgspec.Struct], field: str) -> dict[str, Any] | None:
    """Returns the value as sent, without nulls: serializers may send fields that `kind` does not have."""
    kept = {name: one for name, one in (value or {}).items() if one is not None}
    try:
        msgspec.convert(kept, kind)
    except msgspec.ValidationError as error:
        raise Unprocessable(f"{field} is invalid: {error}") from error
    return kept or None


def _number(value: int | None, field: str) -> int | None:
    """Returns None for 0 and below, with which clients leave the number to the registry."""
    if value is None or value <= 0:
        return None
    if value > NUMBER_MAX:
        raise Unprocessable(f"{field} is {value}: {NUMBER_MAX} is the maximum")
    return value
