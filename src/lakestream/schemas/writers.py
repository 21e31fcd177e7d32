"""How the values of one schema became columns of one table, and become themselves again. Plain data.

A table keeps one writer for each number in its column `_stream.schema_id`, for as long as it has rows of it: a registry
may forget a schema, a table may not. Numbers from 1 on are the registry's ids, of values that have them in front;
negative ones are given by the table itself: shapes of JSON without a schema, values without an id in front, further
messages of one Protobuf schema, and schemas of other contexts than the default one, which have ids of their own.
"""

from typing import Final

import msgspec

DEFAULT_CONTEXT: Final = "."


class Bound(msgspec.Struct, frozen=True, array_like=True):
    """A field of the shape, by its place among its siblings, and the column it has in the table. Lists have one child,
    their element; maps two, key and value."""

    field_id: int
    children: tuple["Bound | None", ...] = ()
    """None: this part of the shape has no column that fits. Values that have something there keep their bytes."""


class Writer(msgspec.Struct, frozen=True):
    number: int
    format: str
    """As `model.Format` spells it, `codecs.py` knows more. Empty: nobody can read it, and `text` says why. Values of it
    keep their bytes."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of every schema that it needs, each before those that need it."""
    schema_id: int = 0
    """The registry's id of it, in the context; 0: it has none."""
    framed: bool = False
    """Values begin with a zero byte and that id (Confluent's wire format); Protobuf has the message behind it."""
    message: tuple[int, ...] = ()
    """Protobuf: which of the messages of the schema, as in the wire format; empty: the first."""
    style: str = ""
    """JSON: how its text was written, so that it can be written so again."""
    columns: tuple[Bound | None, ...] = ()
    """One for each field of the shape."""
    context: str = DEFAULT_CONTEXT
    """Of the registry: in another one the same id is another schema."""


class NoWriter(Exception):
    """Rows have a number that nobody has told of yet: whoever reads asks for it, and tries again."""

    def __init__(self, number: int) -> None:
        super().__init__(f"writer {number} is not known here")
        self.number = number
