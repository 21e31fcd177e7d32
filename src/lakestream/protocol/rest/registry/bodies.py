"""What clients send: bounded, decoded into values, and refused with the place where it is wrong."""

from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from lakestream.coordination.schemas.names import Subject
from lakestream.coordination.schemas.refusals import InvalidSchema, InvalidVersion
from lakestream.coordination.schemas.registry import Wanted
from lakestream.coordination.schemas.state import LATEST
from lakestream.metadata.schemas import Pointer
from lakestream.model import MiB
from lakestream.protocol.rest import incoming
from lakestream.protocol.rest.registry.calls import NUMBER_MAX, Call
from lakestream.protocol.rest.registry.errors import Malformed, Unprocessable
from lakestream.schemas.model import Format

BODY_BYTES_MAX: Final = 4 * MiB
BODY_S_MAX: Final = 30
REFERENCES_MAX: Final = 1_000

T = TypeVar("T")


class Reference(msgspec.Struct, frozen=True):
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
    references: list[Reference] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None


class ModeBody(msgspec.Struct, frozen=True):
    mode: str | None


async def read_body(request: Request, kind: type[T]) -> T:
    body = await incoming.read_bytes(request, BODY_BYTES_MAX, BODY_S_MAX)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Unprocessable(f"the body of the request is wrong: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body of the request is not JSON: {error}") from error
    except RecursionError as error:
        raise Malformed("the body of the request is nested too deeply") from error


async def read_schema(call: Call, subject: Subject) -> Wanted:
    body = await read_body(call.request, SchemaBody)
    return Wanted(
        subject=subject,
        format=_format(body.schema_type),
        text=body.schema or "",
        references=_references(body.references or []),
        metadata=_filled(body.metadata, Metadata, "metadata"),
        rule_set=_filled(body.rule_set, RuleSet, "ruleSet"),
        id=_number(body.id, "id"),
        version=_number(body.version, "version"),
        normalize=call.flag("normalize"),
    )


def _format(text: str | None) -> Format:
    try:
        return Format(text or Format.AVRO.value)
    except ValueError:
        known = ", ".join(one.value for one in Format)
        raise InvalidSchema(f"Invalid schema type {str(text)[:40]}: valid ones are {known}") from None


def _references(references: list[Reference]) -> tuple[Pointer, ...]:
    if len(references) > REFERENCES_MAX:
        raise InvalidSchema(f"a schema may have {REFERENCES_MAX} references at most")
    for reference in references:
        if reference.version != LATEST and not 0 < reference.version <= NUMBER_MAX:
            raise InvalidVersion(f"reference {reference.name!r}: {reference.version} is not a valid version")
    return tuple(Pointer(one.name, one.subject, one.version) for one in references)


def _filled(value: dict[str, Any] | None, kind: type[msgspec.Struct], what: str) -> dict[str, Any] | None:
    """As it was sent: serializers may know more of it than we do. They send nulls for what they have not."""
    kept = {name: one for name, one in (value or {}).items() if one is not None}
    try:
        msgspec.convert(kept, kind)
    except msgspec.ValidationError as error:
        raise Unprocessable(f"{what} is wrong: {error}") from error
    return kept or None


def _number(value: int | None, what: str) -> int | None:
    """Zero and below mean: whichever it is."""
    if value is None or value <= 0:
        return None
    if value > NUMBER_MAX:
        raise Unprocessable(f"{what} is {value}: {NUMBER_MAX} is the largest")
    return value
