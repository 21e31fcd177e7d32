"""A schema as a writer keeps it, and as readers of its format want it: between model.py and writers.py."""

from collections.abc import Iterator

from lakestream.schemas.model import Format, Reference, Schema, Source
from lakestream.schemas.read import read
from lakestream.schemas.writers import Writer


def kept(source: Source) -> tuple[tuple[str, str], ...]:
    """Name and text of every schema that it needs, each once and before those that need it."""
    return tuple(dict.fromkeys(_in_order(source.references)))


def _in_order(references: tuple[Reference, ...]) -> Iterator[tuple[str, str]]:
    for one in references:
        yield from _in_order(one.references)
        yield one.name, one.text


def source_of(writer: Writer) -> Source:
    """ValueError: it is of no format that has schemas."""
    references = tuple(Reference(name, text) for name, text in writer.references)
    return Source(Format(writer.format), writer.text, references)


def schema_of(writer: Writer) -> Schema:
    """Rejected: it cannot be read, which it could when it was kept. ValueError as above."""
    return read_message(source_of(writer), writer.message)


def read_message(source: Source, message: tuple[int, ...] = ()) -> Schema:
    """`message`: which one of a Protobuf schema."""
    if source.format is Format.PROTOBUF and message:
        from lakestream.schemas.protobuf.schema import read_protobuf

        return read_protobuf(source, message)
    return read(source)
