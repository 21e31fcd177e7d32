"""Minimal schema format, which tests the schema registry independently of the real formats.

A schema is a JSON list of field names; a field with a question mark is optional.
"""

import json
from dataclasses import dataclass

from lakestream.clock import RandomIds
from lakestream.coordination.schema_registry.parser_client import SchemaParserClient
from lakestream.coordination.schema_registry.parser_main import Parser, ParserResponse, Read, Request
from lakestream.coordination.schema_registry.register import Limits
from lakestream.coordination.schema_registry.registry import RegisterRequest, SchemaRegistry
from lakestream.coordination.schema_registry.subjects import parse
from lakestream.errors import Rejected
from lakestream.metadata.schemas import Pointer
from lakestream.metadata.store import MetadataStore
from lakestream.schemas.model import Format, Schema, Source
from lakestream.schemas.parse import read
from lakestream.schemas.types import Struct


@dataclass(frozen=True)
class FieldList:
    source: Source
    fields: frozenset[str]

    @property
    def canonical(self) -> str:
        return json.dumps(sorted(self.fields), separators=(",", ":"))

    def shape(self) -> Struct:
        return Struct(())

    def incompatibilities_reading(self, older: Schema) -> list[str]:
        assert isinstance(older, FieldList)
        there = {field.rstrip("?") for field in older.fields}
        return [
            f"field {field!r} is missing"
            for field in sorted(self.fields)
            if field.rstrip("?") not in there | {field[:-1]}
        ]


def read_fields(source: Source) -> Schema:
    try:
        fields = json.loads(source.text)
    except ValueError as error:
        raise Rejected(f"the schema is not a list of fields ({error})") from error
    if not isinstance(fields, list):
        raise Rejected("the schema is not a list of fields")
    return FieldList(source, frozenset(fields))


class InProcessParser(SchemaParserClient):
    """Parses schemas in this process."""

    def __init__(self, how: Read = read) -> None:
        super().__init__()
        self._parser = Parser(how)

    async def _send(self, request: Request) -> ParserResponse:
        return self._parser.respond(request)


def registry_over(store: MetadataStore, limits: Limits = Limits()) -> SchemaRegistry:  # noqa: B008
    return SchemaRegistry(store, RandomIds(), InProcessParser(read_fields), limits)


def wanted(
    subject: str,
    *fields: str,
    references: tuple[Pointer, ...] = (),
    kind: Format = Format.JSON,
    text: str | None = None,
    metadata: dict[str, object] | None = None,
    schema_id: int | None = None,
    version: int | None = None,
    normalize: bool = False,
) -> RegisterRequest:
    return RegisterRequest(
        subject=parse(subject),
        format=kind,
        text=json.dumps(fields) if text is None else text,
        references=references,
        metadata=metadata,
        id=schema_id,
        version=version,
        normalize=normalize,
    )
