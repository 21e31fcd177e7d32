"""The true typed tables: writer schemas, field ids and columns. tables.py calls it for each commit.

writer schemas are immutable      stored once, when the table has their columns, and kept as long as the topic
field ids keep their meaning      a column keeps its parent and its type, or gets a wider type
columns are not dropped           in the simulation
rows have a stored writer schema  every row with columns
columns match the value           the produced value, decoded with fastavro, json or protobuf and the writer schema
rows have their key               the produced key, and `_key` matches it
invalid records stop the topic    if the topic is configured so, and nothing else stops it

Values that cannot be decoded have no columns. Values that the columns do not represent fully are kept as bytes.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fastavro
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from lakestream.data.typed.format_codecs import codec_of
from lakestream.model import PartitionId
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf
from lakestream.schemas.types import ListOf, MapOf, Struct, Type
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle, TrueRecord
    from tests.simulation.value_generators import ValueGenerator

FIRST_OWN_ID: Final = 16
"""First field id of value columns; lower ids belong to `_stream`. A copy on purpose."""
FRAME_BYTES: Final = 5
VARIANTS: Final = ("boolean", "long", "double", "string", "struct", "list", "map")
WIDER: Final = {("int", "long"), ("float", "double")}
SCHEMA_REFRESH_S: Final = 2 * 3600
"""A driver that did not find a schema has read the registry again after this time."""
FIRST_MESSAGE: Final = (b"\0", b"\2\0")
STOPPED_ERROR: Final = re.compile(
    r"(.*): partition (\d+), offsets .* the record at offset (\d+) does not match .* is stop", re.DOTALL
)

_decode_writer = msgspec.json.Decoder(WriterSchema).decode


class Cells(NamedTuple):
    """A row of a file, with columns by field id at all depths."""

    partition: int
    offset: int
    number: int | None
    """Number of its writer schema."""
    raw: bytes | None
    columns: Mapping[int, Any]
    key: bytes | None = None


class RegisteredSchema(NamedTuple):
    text: str
    format: str
    registered_s: float


class TrueTypes:
    def __init__(self, oracle: "Oracle") -> None:
        self._oracle = oracle
        self._writers: dict[tuple[str, int], WriterSchema] = {}
        self._fields: dict[str, dict[int, tuple[int, str]]] = {}
        """Table → field id → id of the parent field, and the type."""
        self._current: dict[str, set[int]] = {}
        self._key_writers: dict[str, dict[int, WriterSchema]] = {}
        self._schemas: dict[int, RegisteredSchema] = {}

    def registered(self, schema_id: int, text: str, form: str) -> None:
        first = self._schemas.setdefault(schema_id, RegisteredSchema(text, form, self._oracle.now_s))
        if first.text != text:
            self._oracle.report("a schema id has one schema", f"{schema_id} is the id of {text} and {first.text}")

    # ── writer schemas and columns ───────────────────────────────────────────────────────────────────────────────────

    def writer_put(self, topic_id: str, name: str, value: bytes, is_new: bool) -> None:
        writer = _decode_writer(value)
        if not is_new:
            self._oracle.report("writer schemas are immutable", f"record {name} of {topic_id} was overwritten")
        if missing := sorted(set(_ids(writer.columns)) - self._current.get(topic_id, set())):
            self._oracle.report(
                "columns of a writer schema exist",
                f"writer schema {name} of {topic_id} has {missing}, which the table does not have",
            )
        if name.startswith("key."):
            self._key_writers.setdefault(topic_id, {})[writer.number] = writer
        else:
            self._writers[topic_id, writer.number] = writer
        self._oracle.tally["writers recorded"] += 1

    def writer_deleted(self, topic_id: str, name: str) -> None:
        if any(log.deleted for partition, log in self._oracle.logs.items() if partition.topic_id == topic_id):
            return
        self._oracle.report("writer schemas are immutable", f"record {name} of {topic_id} was deleted")

    def committed(self, table_id: str, name: str, metadata: Mapping[str, Any]) -> None:
        fields = self._fields.setdefault(table_id, {})
        for schema in metadata["schemas"]:
            for field_id, parent, text in _fields(schema["fields"], 0):
                before = fields.setdefault(field_id, (parent, text))
                if before != (parent, text) and (
                    before[0] != parent or not _is_wider(before[1], text, schema, metadata)
                ):
                    self._oracle.report(
                        "field ids keep their meaning",
                        f"field {field_id} of table {name} was {before[1]} in {before[0]}, is {text} in {parent}",
                    )
        (current,) = (schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])
        for field_id, parent, text in _fields(current["fields"], 0):
            fields[field_id] = parent, text
        current_ids = {field_id for field_id, _, _ in _fields(current["fields"], 0)}
        if lost := sorted(self._current.get(table_id, set()) - current_ids):
            self._oracle.report("columns are not dropped", f"fields {lost} of table {name} do not exist any more")
        self._current[table_id] = current_ids

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def value_of(self, table_id: str, cells: Cells) -> bytes | None:
        """Returns the value that a consumer must receive for the row. Checks key and columns of the row against it."""
        record = self._oracle.log(PartitionId(table_id, cells.partition)).records.get(cells.offset)
        where = f"row {cells.partition}:{cells.offset} of {table_id}"
        if record is not None:
            self._check_key(where, table_id, record.key, cells)
            self._check_not_invalid(where, table_id, record)
        if keys := self._key_columns(table_id):
            cells = cells._replace(columns={id_: cell for id_, cell in cells.columns.items() if id_ not in keys})
        columns = {field_id: cell for field_id, cell in cells.columns.items() if cell is not None}
        if not columns and (cells.number is None or cells.raw is not None):
            return cells.raw  # bytes or null
        writer = None if cells.number is None else self._writers.get((table_id, cells.number))
        if writer is None:
            self._oracle.report(
                "rows have a stored writer schema", f"{where} has writer schema {cells.number}, which is not stored"
            )
        elif record is not None and record.value is not None:
            self._check_columns(where, writer, record.value, cells)
        self._oracle.tally["typed rows" if cells.raw is None else "typed rows with bytes"] += 1
        return cells.raw if cells.raw is not None else record and record.value

    def _check_columns(self, where: str, writer: WriterSchema, value: bytes, cells: Cells) -> None:
        decoded = decoded_by(writer, value)
        present = {field_id: cell for field_id, cell in cells.columns.items() if cell is not None}
        if decoded is None:
            self._oracle.report(
                "columns match the value", f"{where} has {present}, but {value!r} does not match its schema"
            )
            return
        bound = {column.field_id for column in writer.columns if column is not None}
        if unbound := sorted(present.keys() - bound):
            self._oracle.report(
                "columns match the value", f"{where} has columns {unbound}, which its writer schema does not have"
            )
        if not struct_matches(_shape(writer), writer.columns, decoded, cells.columns, cells.raw is not None):
            self._oracle.report("columns match the value", f"{where} has {present}, its value is {decoded}")

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _key_columns(self, table_id: str) -> set[int]:
        """Returns the ids of the columns that contain the fields of keys. Their names may change."""
        fields = self._fields.get(table_id, {})
        writers = self._key_writers.get(table_id, {}).values()
        return {fields[column.field_id][0] for writer in writers for column in writer.columns if column is not None}

    def _check_key(self, where: str, table_id: str, key: bytes | None, cells: Cells) -> None:
        if cells.key != key:
            self._oracle.report("rows have their key", f"{where} has {cells.key!r}, not {key!r}")
        for field_id in sorted(self._key_columns(table_id)):
            if (cell := cells.columns.get(field_id)) is None:
                continue
            self._oracle.tally["keys with columns"] += 1
            if key is None or not any(
                _matches_key(writer, key, cell) for writer in self._key_writers[table_id].values()
            ):
                self._oracle.report("rows have their key", f"{where} has {cell} in _key, its key is {key!r}")

    # ── invalid records ──────────────────────────────────────────────────────────────────────────────────────────────

    def _check_not_invalid(self, where: str, table_id: str, record: "TrueRecord") -> None:
        """Checks at the commit that the row is not one that must stop the topic."""
        generator = self._oracle.generators.get(table_id)
        if generator is not None and generator.stops and (reason := self._invalid(generator, record, is_certain=True)):
            self._oracle.report(
                "invalid records stop the topic", f"{where} is in the table, but {reason}: {record.value!r}"
            )

    def is_expected_stop(self, error: str) -> bool:
        """Returns whether the error of a stopped topic names an invalid record."""
        if (match := STOPPED_ERROR.search(error)) is None:
            return False
        live = self._oracle.topics.get(match[1])
        if live is None:
            return True  # the topic has been deleted
        generator = self._oracle.generators.get(live.topic.topic_id)
        record = self._oracle.log(PartitionId(live.topic.topic_id, int(match[2]))).records.get(int(match[3]))
        return generator is not None and record is not None and bool(self._invalid(generator, record, is_certain=False))

    def _invalid(self, generator: "ValueGenerator", record: "TrueRecord", *, is_certain: bool) -> str:
        """Returns why a record is invalid, or "". `is_certain`: for any set of schemas that a driver may have read."""
        if reason := self._invalid_part(generator.key_mode, generator.key_ids, record.key, is_certain=is_certain):
            return f"its key {reason}"
        return self._invalid_part(generator.mode, generator.ids, record.value, is_certain=is_certain)

    def _invalid_part(self, mode: str, ids: Sequence[int], value: bytes | None, *, is_certain: bool) -> str:
        if mode == "none" or value is None:
            return ""
        if mode == "json":
            return "" if _is_object(value) else "is no JSON object"
        if mode == "latest":
            schemas = [self._schemas[schema_id] for schema_id in ids if schema_id in self._schemas]
            invalid = [not _is_valid(schema.text, schema.format, value) for schema in schemas]
            is_invalid = all(invalid) if is_certain else any(invalid) or self._are_new(schemas)
            return "matches no schema of the subject" if is_invalid else ""
        if len(value) < FRAME_BYTES or value[0] != 0:
            return "has no schema id"
        schema = self._schemas.get(int.from_bytes(value[1:FRAME_BYTES], "big"))
        if schema is None or (not is_certain and self._are_new([schema])):
            return "names an unknown schema id"
        return "" if _is_valid(schema.text, schema.format, value[FRAME_BYTES:]) else "does not match its schema"

    def _are_new(self, schemas: Sequence[RegisteredSchema]) -> bool:
        """Returns whether a driver may not have read any of the schemas yet."""
        return all(self._oracle.now_s - schema.registered_s < SCHEMA_REFRESH_S for schema in schemas)


def _matches_key(writer: WriterSchema, key: bytes, cells: Mapping[int, Any]) -> bool:
    decoded = decoded_by(writer, key)
    lacks_some = any(column is None for column in writer.columns)
    return decoded is not None and struct_matches(_shape(writer), writer.columns, decoded, cells, lacks_some)


def cells_in(table: Any) -> list[Cells]:
    """Returns the rows of a Parquet file that Arrow has read."""
    streams = table.column("_stream").to_pylist()
    own = [
        (field_id, field, table.column(index))
        for index, field in enumerate(table.schema)
        if (field_id := _id(field)) >= FIRST_OWN_ID
    ]
    values = {field_id: [_by_id(field, cell) for cell in column.to_pylist()] for field_id, field, column in own}
    plain = table.column("value").to_pylist() if _has_bytes(table.schema) else [None] * len(streams)
    return [
        Cells(
            stream["partition"],
            stream["offset"],
            stream["schema_id"],
            stream["value"] if stream["value"] is not None else plain[row],
            {field_id: cells[row] for field_id, cells in values.items()},
            stream["key"],
        )
        for row, stream in enumerate(streams)
    ]


def decoded_by(writer: WriterSchema, value: bytes) -> dict[str, Any] | None:
    """Decodes a value with its writer schema. Returns None if it does not match the schema."""
    if writer.framed:
        if value[:FRAME_BYTES] != b"\x00" + writer.schema_id.to_bytes(4, "big"):
            return None
        value = value[FRAME_BYTES:]
    return decoded_with(writer.text, writer.format, value)


def decoded_with(text: str, form: str, value: bytes) -> dict[str, Any] | None:
    try:
        if form == "AVRO":
            source = io.BytesIO(value)
            decoded = fastavro.schemaless_reader(source, _avro(text))
            return decoded if isinstance(decoded, dict) and not source.read(1) else None
        if form == "PROTOBUF":
            return _message(text, value)
        decoded = json.loads(value)
    except (ValueError, EOFError, IndexError, UnicodeDecodeError, StopIteration, DecodeError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _message(text: str, value: bytes) -> dict[str, Any] | None:
    """Decodes a value of the first message of a schema. Messages of the simulation are not nested."""
    head = next((head for head in FIRST_MESSAGE if value.startswith(head)), None)
    if head is None:
        return None
    message = GetMessageClass(read_protobuf(Source(Format.PROTOBUF, text)).descriptor).FromString(value[len(head) :])
    return {
        field.name: None if field.has_presence and not message.HasField(field.name) else getattr(message, field.name)
        for field in message.DESCRIPTOR.fields
    }


def _is_valid(text: str, form: str, value: bytes) -> bool:
    """Returns whether the value matches the schema, with the range of integers, which fastavro does not check."""
    decoded = decoded_with(text, form, value)
    if decoded is None or form != "AVRO":
        return decoded is not None
    fields = {field["name"]: field["type"] for field in json.loads(text)["fields"]}
    inner = decoded.get("inner") or {}
    return (
        all(abs(decoded[name]) < 2**31 for name, kind in fields.items() if kind == "int")
        and abs(inner.get("a", 0)) < 2**31
    )


def _is_object(value: bytes) -> bool:
    """Returns whether the value is a JSON object without duplicate names, which would make it ambiguous."""
    duplicates: list[str] = []

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        duplicates.extend(["duplicate"] * (len(pairs) - len(result)))
        return result

    try:
        decoded = json.loads(value, object_pairs_hook=without_duplicates)
    except ValueError:
        return False
    return isinstance(decoded, dict) and not duplicates


def struct_matches(
    shape: Struct,
    bounds: Sequence[ColumnBinding | None],
    value: Mapping[str, Any],
    cells: Mapping[int, Any],
    is_raw: bool,
) -> bool:
    """Returns whether the cells match the value. `is_raw`: the row also has the bytes, so columns may be missing."""
    fields: dict[str, list[tuple[Type, ColumnBinding | None]]] = {}
    for field, bound in zip(shape.fields, bounds, strict=True):
        fields.setdefault(_base_name(field.name, fields), []).append((field.type, bound))
    if set(value) - set(fields) and not is_raw:
        return False
    return all(_variants_match(variants, value.get(name), cells, is_raw) for name, variants in fields.items())


def _base_name(name: str, fields: Mapping[str, object]) -> str:
    """Returns the JSON name of a column: a name with numbers and strings has two columns, `n` and `n_string`."""
    base, _, suffix = name.rpartition("_")
    return base if suffix in VARIANTS and base in fields else name


def _variants_match(
    variants: Sequence[tuple[Type, ColumnBinding | None]], value: Any, cells: Mapping[int, Any], is_raw: bool
) -> bool:
    """Returns whether one variant matches the value and all others are null."""
    candidates = [(kind, bound, None if bound is None else cells.get(bound.field_id)) for kind, bound in variants]
    present = [candidate for candidate in candidates if candidate[2] is not None]
    if not present:
        return value is None or is_raw
    return len(present) == 1 and _matches(*present[0][:2], value, present[0][2], is_raw)


def _matches(kind: Type, bound: ColumnBinding | None, value: Any, cell: Any, is_raw: bool) -> bool:
    if bound is None:
        return value is None or is_raw
    if value is None or cell is None:
        return (value is None and cell is None) or is_raw
    match kind:
        case Struct():
            return struct_matches(kind, bound.children, value, cell, is_raw)
        case ListOf(element):
            inner = bound.children[0]
            return len(value) == len(cell) and all(
                _matches(element, inner, value_item, cell_item, is_raw)
                for value_item, cell_item in zip(value, cell, strict=True)
            )
        case MapOf():
            raise AssertionError("no value of the simulation has a map")
    if is_raw and isinstance(cell, float) and isinstance(value, int):
        return cell == float(value)  # no integer column: the column has the nearest float, and the row the bytes
    return bool(value == cell)


@cache
def _avro(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


@cache
def _shape(writer: WriterSchema) -> Struct:
    return codec_of(writer).shape


def _ids(bounds: Sequence[ColumnBinding | None]) -> Iterator[int]:
    for bound in bounds:
        if bound is not None:
            yield bound.field_id
            yield from _ids(bound.children)


def _fields(fields: Sequence[Mapping[str, Any]], parent: int) -> Iterator[tuple[int, int, str]]:
    """Yields id, parent id and type of every field of a schema."""
    for field in fields:
        yield from _field(field["id"], parent, field["type"])


def _field(field_id: int, parent: int, kind: Any) -> Iterator[tuple[int, int, str]]:
    if isinstance(kind, str):
        yield field_id, parent, kind
        return
    yield field_id, parent, kind["type"]
    if kind["type"] == "struct":
        yield from _fields(kind["fields"], field_id)
    elif kind["type"] == "list":
        yield from _field(kind["element-id"], field_id, kind["element"])
    else:
        yield from _field(kind["key-id"], field_id, kind["key"])
        yield from _field(kind["value-id"], field_id, kind["value"])


def _is_wider(before: str, after: str, schema: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Returns whether the new type is wider. An old schema in the metadata may have the type from before."""
    if schema["schema-id"] != metadata["current-schema-id"]:
        return (after, before) in WIDER or (before, after) in WIDER or before == after
    return (before, after) in WIDER


def _id(field: Any) -> int:
    return int((field.metadata or {}).get(b"PARQUET:field_id", -1))


def _has_bytes(schema: Any) -> bool:
    return any(field.name == "value" and _id(field) < FIRST_OWN_ID for field in schema)


def _by_id(field: Any, cell: Any) -> Any:
    """Replaces names by field ids, because engines may rename columns."""
    if cell is None:
        return None
    if pa.types.is_struct(field.type):
        return {_id(inner): _by_id(inner, cell[inner.name]) for inner in field.type}
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        return [_by_id(field.type.value_field, item) for item in cell]
    return cell
