"""A parsed JSON Schema, as the registry and the tables use it. Drafts 4, 6, 7, 2019-09 and 2020-12."""

import json
from functools import cached_property
from typing import Final

from lakestream.errors import Rejected
from lakestream.schemas.json.compatibility import find_incompatibilities
from lakestream.schemas.json.json_types import JsonTypeUnion, shape_of
from lakestream.schemas.json.references import Document
from lakestream.schemas.json.to_types import types_of_schema
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.types import Struct


class JsonSchema:
    def __init__(self, source: Source) -> None:
        self._source: Final = source
        self.document: Final = Document(source)

    @cached_property
    def types(self) -> JsonTypeUnion:
        """The JSON types of the values, as far as columns can represent them."""
        return types_of_schema(self.document.root)

    @property
    def source(self) -> Source:
        return self._source

    @property
    def canonical(self) -> str:
        return json.dumps(self.document.root.contents, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    def shape(self) -> Struct:
        return shape_of(self.types)

    def incompatibilities_reading(self, older: Schema) -> list[str]:
        if not isinstance(older, JsonSchema):
            raise Rejected(f"the older schema is of type {older.source.format.value}, this one is JSON")
        return find_incompatibilities(older.document.root, self.document.root)


def read_json_schema(source: Source) -> JsonSchema:
    """Parses a JSON Schema. Rejected, with the place, if it is invalid or a `$ref` cannot be resolved."""
    return JsonSchema(source)
