"""A JSON Schema as the registry and the tables see it. Drafts 4, 6, 7, 2019-09 and 2020-12."""

import json
from functools import cached_property
from typing import Final

from lakestream.errors import Rejected
from lakestream.schemas.json.columns import part_of
from lakestream.schemas.json.compare import troubles
from lakestream.schemas.json.documents import Document
from lakestream.schemas.json.parts import Part, shape_of
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.shape import Struct


class JsonSchema:
    def __init__(self, source: Source) -> None:
        self._source: Final = source
        self.document: Final = Document(source)

    @cached_property
    def part(self) -> Part:
        """What values may look like, as far as columns can say it."""
        return part_of(self.document.root)

    @property
    def source(self) -> Source:
        return self._source

    @property
    def canonical(self) -> str:
        return json.dumps(self.document.root.contents, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    def shape(self) -> Struct:
        return shape_of(self.part)

    def troubles_reading(self, older: Schema) -> list[str]:
        if not isinstance(older, JsonSchema):
            raise Rejected(f"a JSON Schema cannot read what was written with {older.source.format.value}")
        return troubles(older.document.root, self.document.root)


def read_json_schema(source: Source) -> JsonSchema:
    """Rejected: it is no JSON Schema, and where; or a `$ref` leads nowhere."""
    return JsonSchema(source)
