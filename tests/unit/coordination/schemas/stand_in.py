"""A format of a few lines, so that what the registry decides can be tested without any real one.

A schema is a JSON list of field names; one with a question mark may be missing.
"""

import json
from dataclasses import dataclass

from lakestream.clock import RandomIds
from lakestream.coordination.schemas.names import parse
from lakestream.coordination.schemas.reading import Reading
from lakestream.coordination.schemas.registry import SchemaRegistry, Wanted
from lakestream.errors import Rejected
from lakestream.metadata.schemas import Pointer
from lakestream.metadata.store import MetadataStore
from lakestream.schemas.model import Format, Schema, Source
from lakestream.schemas.shape import Struct


@dataclass(frozen=True)
class FieldList:
    source: Source
    fields: frozenset[str]

    @property
    def canonical(self) -> str:
        return json.dumps(sorted(self.fields), separators=(",", ":"))

    def shape(self) -> Struct:
        return Struct(())

    def troubles_reading(self, older: Schema) -> list[str]:
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
        raise Rejected(f"it is no list of fields ({error})") from error
    if not isinstance(fields, list):
        raise Rejected("it is no list of fields")
    return FieldList(source, frozenset(fields))


def registry_over(store: MetadataStore) -> SchemaRegistry:
    return SchemaRegistry(store, RandomIds(), Reading(read_fields))


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
) -> Wanted:
    return Wanted(
        subject=parse(subject),
        format=kind,
        text=json.dumps(fields) if text is None else text,
        references=references,
        metadata=metadata,
        id=schema_id,
        version=version,
        normalize=normalize,
    )
