"""Typed tables as they must be: writers, field ids, what is in the columns. Beside tables.py, which sees commits.

a writer never changes            its record is made once, when its columns are in the table, and stays with the topic
field ids keep their meaning      a column is where it was, and of the type that it had or a wider one
columns stay                      nobody here takes one out
a row's writer has a record       of every row that has columns
columns are the value             what was produced, decoded by others (fastavro, json, protobuf) with the writer's own
                                  schema
a row has its key                 as it was produced, and what `_key` says of it is what it says
what does not fit stops           a topic that wants it so, and nothing else does

Values that cannot be decoded have no columns, and what the columns do not say is kept as bytes.
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

from lakestream.data.typed.codecs import codec_of
from lakestream.model import PartitionId
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf
from lakestream.schemas.shape import ListOf, MapOf, Struct, Type
from lakestream.schemas.writers import Bound, Writer

if TYPE_CHECKING:
    from tests.simulation.dialects import Dialect
    from tests.simulation.witness import TrueRecord, Witness

FIRST_OWN_ID: Final = 16
"""Columns of values have ids from here on; those before are the stream's. Spelled again."""
FRAME: Final = 5
VARIANTS: Final = ("boolean", "long", "double", "string", "struct", "list", "map")
WIDER: Final = {("int", "long"), ("float", "double")}
LOOKED_FOR_AGAIN_S: Final = 2 * 3600
"""By then whoever did not find a schema has looked for it again."""
FIRST_MESSAGE: Final = (b"\0", b"\2\0")
STOPPED: Final = re.compile(
    r"(.*): partition (\d+), offsets .* the record at offset (\d+) is not what .* is stop", re.DOTALL
)

_decode_writer = msgspec.json.Decoder(Writer).decode


class Cells(NamedTuple):
    """A row of a file: what it has for whom, by field id, at all depths."""

    partition: int
    offset: int
    number: int | None
    """Of its writer."""
    raw: bytes | None
    columns: Mapping[int, Any]
    key: bytes | None = None


class Registered(NamedTuple):
    text: str
    format: str
    at_s: float


class TrueTypes:
    def __init__(self, witness: "Witness") -> None:
        self._witness = witness
        self._writers: dict[tuple[str, int], Writer] = {}
        self._fields: dict[str, dict[int, tuple[int, str]]] = {}
        """Table → field id → the id of the column around it, and its type."""
        self._current: dict[str, set[int]] = {}
        self._key_writers: dict[str, dict[int, Writer]] = {}
        self._schemas: dict[int, Registered] = {}

    def registered(self, schema_id: int, text: str, form: str) -> None:
        known = self._schemas.setdefault(schema_id, Registered(text, form, self._witness.now_s))
        if known.text != text:
            self._witness.accuse("an id is of one schema", f"{schema_id} is that of {text} and {known.text}")

    # ── writers and columns ──────────────────────────────────────────────────────────────────────────────────────────

    def writer_put(self, topic_id: str, name: str, value: bytes, is_new: bool) -> None:
        writer = _decode_writer(value)
        if not is_new:
            self._witness.accuse("a writer never changes", f"record {name} of {topic_id} was written over")
        if lacking := sorted(set(_ids(writer.columns)) - self._current.get(topic_id, set())):
            self._witness.accuse(
                "a writer's columns are there", f"writer {name} of {topic_id} has {lacking}, which the table has not"
            )
        if name.startswith("key."):
            self._key_writers.setdefault(topic_id, {})[writer.number] = writer
        else:
            self._writers[topic_id, writer.number] = writer
        self._witness.tally["writers recorded"] += 1

    def writer_deleted(self, topic_id: str, name: str) -> None:
        if any(log.gone for partition, log in self._witness.logs.items() if partition.topic_id == topic_id):
            return
        self._witness.accuse("a writer never changes", f"record {name} of {topic_id} was deleted")

    def committed(self, table_id: str, name: str, metadata: Mapping[str, Any]) -> None:
        known = self._fields.setdefault(table_id, {})
        for schema in metadata["schemas"]:
            for field_id, parent, text in _fields(schema["fields"], 0):
                before = known.setdefault(field_id, (parent, text))
                if before != (parent, text) and (
                    before[0] != parent or not _is_wider(before[1], text, schema, metadata)
                ):
                    self._witness.accuse(
                        "field ids keep their meaning",
                        f"field {field_id} of table {name} was {before[1]} in {before[0]}, is {text} in {parent}",
                    )
        (current,) = (one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
        for field_id, parent, text in _fields(current["fields"], 0):
            known[field_id] = parent, text
        there = {field_id for field_id, _, _ in _fields(current["fields"], 0)}
        if lost := sorted(self._current.get(table_id, set()) - there):
            self._witness.accuse("columns stay", f"fields {lost} of table {name} are gone, which nobody took out")
        self._current[table_id] = there

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def value_of(self, table_id: str, cells: Cells) -> bytes | None:
        """What a consumer must get for the row. What its columns say is held against that."""
        record = self._witness.log(PartitionId(table_id, cells.partition)).records.get(cells.offset)
        where = f"row {cells.partition}:{cells.offset} of {table_id}"
        if record is not None:
            self._check_key(where, table_id, record.key, cells)
            self._check_stopped(where, table_id, record)
        if keys := self._key_columns(table_id):
            cells = cells._replace(columns={number: one for number, one in cells.columns.items() if number not in keys})
        columns = {number: one for number, one in cells.columns.items() if one is not None}
        if not columns and (cells.number is None or cells.raw is not None):
            return cells.raw  # bytes, or nothing
        writer = None if cells.number is None else self._writers.get((table_id, cells.number))
        if writer is None:
            self._witness.accuse("a row's writer has a record", f"{where} is of writer {cells.number}, which has none")
        elif record is not None and record.value is not None:
            self._check_columns(where, writer, record.value, cells)
        self._witness.tally["typed rows" if cells.raw is None else "typed rows with bytes"] += 1
        return cells.raw if cells.raw is not None else record and record.value

    def _check_columns(self, where: str, writer: Writer, value: bytes, cells: Cells) -> None:
        decoded = decoded_by(writer, value)
        said = {number: one for number, one in cells.columns.items() if one is not None}
        if decoded is None:
            self._witness.accuse(
                "columns are the value", f"{where} has {said}, and {value!r} is no value of its schema"
            )
            return
        bound = {number for one in writer.columns if one is not None for number in (one.field_id,)}
        if strange := sorted(said.keys() - bound):
            self._witness.accuse("columns are the value", f"{where} has columns {strange}, which its writer has not")
        if not fits(_shape(writer), writer.columns, decoded, cells.columns, cells.raw is not None):
            self._witness.accuse("columns are the value", f"{where} has {said}, its value is {decoded}")

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _key_columns(self, table_id: str) -> set[int]:
        """Those that the fields of keys are in, whatever they are called."""
        fields = self._fields.get(table_id, {})
        writers = self._key_writers.get(table_id, {}).values()
        return {fields[one.field_id][0] for writer in writers for one in writer.columns if one is not None}

    def _check_key(self, where: str, table_id: str, key: bytes | None, cells: Cells) -> None:
        if cells.key != key:
            self._witness.accuse("a row has its key", f"{where} has {cells.key!r}, not {key!r}")
        for number in sorted(self._key_columns(table_id)):
            if (said := cells.columns.get(number)) is None:
                continue
            self._witness.tally["keys with columns"] += 1
            if key is None or not any(_says(one, key, said) for one in self._key_writers[table_id].values()):
                self._witness.accuse("a row has its key", f"{where} has {said} in _key, its key is {key!r}")

    # ── what does not fit ────────────────────────────────────────────────────────────────────────────────────────────

    def _check_stopped(self, where: str, table_id: str, record: "TrueRecord") -> None:
        """At the instant when a commit brings the row in."""
        dialect = self._witness.dialects.get(table_id)
        if dialect is not None and dialect.stops and (why := self._wrong(dialect, record, is_sure=True)):
            self._witness.accuse("what does not fit stops", f"{where} is in the table, though {why}: {record.value!r}")

    def is_stopped(self, told: str) -> bool:
        """Whether a topic that is said to be stuck has to be: for a record that does not fit."""
        if (found := STOPPED.search(told)) is None:
            return False
        named = self._witness.topics.get(found[1])
        if named is None:
            return True  # deleted meanwhile
        dialect = self._witness.dialects.get(named.topic.topic_id)
        record = self._witness.log(PartitionId(named.topic.topic_id, int(found[2]))).records.get(int(found[3]))
        return dialect is not None and record is not None and bool(self._wrong(dialect, record, is_sure=False))

    def _wrong(self, dialect: "Dialect", record: "TrueRecord", *, is_sure: bool) -> str:
        """What is wrong with a record; `is_sure`: whichever schemas a driver knows by now."""
        if why := self._misfit(dialect.key_mode, dialect.key_ids, record.key, is_sure=is_sure):
            return f"its key {why}"
        return self._misfit(dialect.mode, dialect.ids, record.value, is_sure=is_sure)

    def _misfit(self, mode: str, ids: Sequence[int], value: bytes | None, *, is_sure: bool) -> str:
        if mode == "none" or value is None:
            return ""
        if mode == "json":
            return "" if _is_object(value) else "is no JSON object"
        if mode == "latest":
            known = [self._schemas[number] for number in ids if number in self._schemas]
            wrong = [not _is_of(one.text, one.format, value) for one in known]
            return "is of none of the schemas" if (all(wrong) if is_sure else any(wrong) or self._young(known)) else ""
        if len(value) < FRAME or value[0] != 0:
            return "has no id"
        found = self._schemas.get(int.from_bytes(value[1:FRAME], "big"))
        if found is None or (not is_sure and self._young([found])):
            return "names a schema that nobody knows"
        return "" if _is_of(found.text, found.format, value[FRAME:]) else "is none of its schema"

    def _young(self, schemas: Sequence[Registered]) -> bool:
        """Somebody may not know of them yet."""
        return all(self._witness.now_s - one.at_s < LOOKED_FOR_AGAIN_S for one in schemas)


def _says(writer: Writer, key: bytes, said: Mapping[int, Any]) -> bool:
    decoded = decoded_by(writer, key)
    lacks_some = any(one is None for one in writer.columns)
    return decoded is not None and fits(_shape(writer), writer.columns, decoded, said, lacks_some)


def cells_in(table: Any) -> list[Cells]:
    """Of a Parquet file as Arrow read it."""
    streams = table.column("_stream").to_pylist()
    own = [
        (number, one, table.column(place))
        for place, one in enumerate(table.schema)
        if (number := _id(one)) >= FIRST_OWN_ID
    ]
    values = {number: [_by_id(one, cell) for cell in column.to_pylist()] for number, one, column in own}
    plain = table.column("value").to_pylist() if _has_bytes(table.schema) else [None] * len(streams)
    return [
        Cells(
            stream["partition"],
            stream["offset"],
            stream["schema_id"],
            stream["value"] if stream["value"] is not None else plain[row],
            {number: cells[row] for number, cells in values.items()},
            stream["key"],
        )
        for row, stream in enumerate(streams)
    ]


def decoded_by(writer: Writer, value: bytes) -> dict[str, Any] | None:
    """With the writer's schema. None: it is none of its values."""
    if writer.framed:
        if value[:FRAME] != b"\x00" + writer.schema_id.to_bytes(4, "big"):
            return None
        value = value[FRAME:]
    return decoded_with(writer.text, writer.format, value)


def decoded_with(text: str, form: str, value: bytes) -> dict[str, Any] | None:
    try:
        if form == "AVRO":
            source = io.BytesIO(value)
            found = fastavro.schemaless_reader(source, _avro(text))
            return found if isinstance(found, dict) and not source.read(1) else None
        if form == "PROTOBUF":
            return _message(text, value)
        found = json.loads(value)
    except (ValueError, EOFError, IndexError, UnicodeDecodeError, StopIteration, DecodeError):
        return None
    return found if isinstance(found, dict) else None


def _message(text: str, value: bytes) -> dict[str, Any] | None:
    """Of the first message of a schema, which no other stands in."""
    head = next((one for one in FIRST_MESSAGE if value.startswith(one)), None)
    if head is None:
        return None
    found = GetMessageClass(read_protobuf(Source(Format.PROTOBUF, text)).descriptor).FromString(value[len(head) :])
    return {
        one.name: None if one.has_presence and not found.HasField(one.name) else getattr(found, one.name)
        for one in found.DESCRIPTOR.fields
    }


def _is_of(text: str, form: str, value: bytes) -> bool:
    """Whether it is a value of the schema: also in the range of its numbers, of which fastavro says nothing."""
    found = decoded_with(text, form, value)
    if found is None or form != "AVRO":
        return found is not None
    fields = {one["name"]: one["type"] for one in json.loads(text)["fields"]}
    inner = found.get("inner") or {}
    return (
        all(abs(found[name]) < 2**31 for name, kind in fields.items() if kind == "int")
        and abs(inner.get("a", 0)) < 2**31
    )


def _is_object(value: bytes) -> bool:
    """Without a name that is there twice: of such a value nobody knows what it says."""
    doubled: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        doubled.extend(["twice"] * (len(found) - len(made)))
        return made

    try:
        found = json.loads(value, object_pairs_hook=pairs)
    except ValueError:
        return False
    return isinstance(found, dict) and not doubled


def fits(
    shape: Struct, bounds: Sequence[Bound | None], said: Mapping[str, Any], cells: Mapping[int, Any], is_raw: bool
) -> bool:
    """Whether the cells say what was said; what has no column is not lost where the bytes are kept."""
    fields: dict[str, list[tuple[Type, Bound | None]]] = {}
    for one, bound in zip(shape.fields, bounds, strict=True):
        fields.setdefault(_base(one.name, fields), []).append((one.type, bound))
    if set(said) - set(fields) and not is_raw:
        return False
    return all(_one_fits(variants, said.get(name), cells, is_raw) for name, variants in fields.items())


def _base(name: str, known: Mapping[str, object]) -> str:
    """JSON that says now a number, now a text has a column for each: `n`, `n_string`."""
    base, _, suffix = name.rpartition("_")
    return base if suffix in VARIANTS and base in known else name


def _one_fits(variants: Sequence[tuple[Type, Bound | None]], said: Any, cells: Mapping[int, Any], is_raw: bool) -> bool:
    """One of them says it, the others nothing."""
    found = [(kind, bound, None if bound is None else cells.get(bound.field_id)) for kind, bound in variants]
    told = [one for one in found if one[2] is not None]
    if not told:
        return said is None or is_raw
    return len(told) == 1 and _fits(*told[0][:2], said, told[0][2], is_raw)


def _fits(kind: Type, bound: Bound | None, said: Any, cell: Any, is_raw: bool) -> bool:
    if bound is None:
        return said is None or is_raw
    if said is None or cell is None:
        return (said is None and cell is None) or is_raw
    match kind:
        case Struct():
            return fits(kind, bound.children, said, cell, is_raw)
        case ListOf(element):
            inner = bound.children[0]
            return len(said) == len(cell) and all(
                _fits(element, inner, one, other, is_raw) for one, other in zip(said, cell, strict=True)
            )
        case MapOf():
            raise AssertionError("no value of the simulation has a map")
    if is_raw and isinstance(cell, float) and isinstance(said, int):
        return cell == float(said)  # a whole number that no column takes: the nearest, and the bytes
    return bool(said == cell)


@cache
def _avro(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


@cache
def _shape(writer: Writer) -> Struct:
    return codec_of(writer).shape


def _ids(bounds: Sequence[Bound | None]) -> Iterator[int]:
    for bound in bounds:
        if bound is not None:
            yield bound.field_id
            yield from _ids(bound.children)


def _fields(fields: Sequence[Mapping[str, Any]], parent: int) -> Iterator[tuple[int, int, str]]:
    """Id, the id of what is around it, and type of every field of a schema."""
    for one in fields:
        yield from _field(one["id"], parent, one["type"])


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
    """An old schema, which the metadata still has, may say what the column was before it was widened."""
    if schema["schema-id"] != metadata["current-schema-id"]:
        return (after, before) in WIDER or (before, after) in WIDER or before == after
    return (before, after) in WIDER


def _id(one: Any) -> int:
    return int((one.metadata or {}).get(b"PARQUET:field_id", -1))


def _has_bytes(schema: Any) -> bool:
    return any(one.name == "value" and _id(one) < FIRST_OWN_ID for one in schema)


def _by_id(one: Any, cell: Any) -> Any:
    """With field ids instead of names, which others may change."""
    if cell is None:
        return None
    if pa.types.is_struct(one.type):
        return {_id(inner): _by_id(inner, cell[inner.name]) for inner in one.type}
    if pa.types.is_list(one.type) or pa.types.is_large_list(one.type):
        return [_by_id(one.type.value_field, inner) for inner in cell]
    return cell
