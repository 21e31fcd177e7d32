"""Converts the values and keys of topics with schemas into table columns without losing a byte.

Before: `write/batch_decoder.py`.  After: `write/parquet_writer.py`.

    wire_format.py: writer schema  →  codec decodes  →  projection.py: columns of the table
        →  columns back to values  →  codec encodes  →  equal bytes: `_stream.value` stays null

A value that its columns do not restore byte for byte keeps its bytes in `_stream.value`, with or without columns. Runs
in a Spark worker. Python code runs per writer schema and per column, never per value. Rows are converted in chunks, to
bound the memory: by their bytes and columns, and by the slots of their lists, which codecs count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.aio.cache import weighted_cache
from lakestream.catalog.topic_table.columns import FIRST_FREE_ID, STREAM, VALUE, VALUE_ID
from lakestream.data.table.arrow.byte_spans import ByteSpans, numbers
from lakestream.data.table.arrow.types import PLAIN_COLUMNS, STREAM_TYPE, arrow_schema, field_id_of
from lakestream.data.table.arrow.unreadable_batches import unreadable_rows
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed import column_buffers, wire_format
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.codec import TOO_MANY, Codec
from lakestream.data.typed.format_codecs import codec_of
from lakestream.data.typed.kernels.values import PREFIX_SIZE, differing
from lakestream.data.typed.projection import Projection, bound_ids
from lakestream.data.typed.wire_format import (
    BYTES_MAX,
    VALUE_BYTES_MAX,
    MissingWriter,
    SplitValues,
    Unconvertible,
    WriterGroup,
)
from lakestream.errors import LakestreamError, Rejected
from lakestream.model import MiB
from lakestream.schemas.columns import Column, all_columns, inner_columns, pruned
from lakestream.schemas.model import Format
from lakestream.schemas.value_format import (
    ConversionErrorCounts,
    ConversionErrors,
    ConversionSettings,
    FieldConversion,
    InferredSchema,
    MissingSchema,
    OnInvalid,
    SchemaMode,
    SchemasMissingError,
    ValuePart,
)
from lakestream.schemas.writer_schema import CODECS_WEIGHT_MAX, WriterSchema, weight_of

ROWS_MAX: Final = 32_768
"""Of a chunk. Larger chunks are not faster and need more memory."""
ROWS_MIN: Final = 256
TOO_LARGE: Final = f"larger than {VALUE_BYTES_MAX // MiB} MiB, the limit for values with columns"
JSON: Final = Format.JSON.value
NO_MEMORY: Final = "its conversion takes more memory than the worker has"
_UNLIMITED: Final = 2**62
NO_SHAPE: Final = "invalid JSON, or JSON without a field that could have a column"
NULL_FIELD: Final = "a field is null in its column, because the column cannot hold its value"

Mask = NDArray[np.bool_]


class ConversionFailure(NamedTuple):
    """Values, or keys, that have no columns, or lack some of them, for one reason."""

    part: ValuePart
    reason: str
    schema_id: int
    """The schema id at their start; 0: they have none."""
    offsets: Longs
    is_invalid: bool
    """They do not match their schema. False: the limits or the columns of the table are the reason."""

    @property
    def message(self) -> str:
        return f"key: {self.reason}" if self.part is ValuePart.KEY else self.reason


@dataclass(slots=True)
class ConversionStats:
    """Counts of converted and unconverted values, and the reasons of failures."""

    converted: int = 0
    """Values that their columns restore."""
    unconverted: int = 0
    """All other values: they keep their bytes, in addition to columns or instead of them."""
    invalid: tuple[int, str] | None = None
    """Offset of the first record that does not match its schema, and the reason."""
    failures: "list[ConversionFailure] | None" = None
    """All failures, if the caller sets a list. The caller must empty it regularly, because it is not bounded."""
    _errors: ConversionErrorCounts = field(default_factory=ConversionErrorCounts)

    def add(self, failure: "ConversionFailure") -> None:
        reason, schema_id, first = failure.message, failure.schema_id, int(failure.offsets.min())
        if failure.is_invalid:
            self.invalid = min((first, reason), self.invalid or (first, reason))
        self._errors.add(reason, schema_id, int(failure.offsets.size), first)
        if self.failures is not None:
            self.failures.append(failure)

    def errors(self) -> tuple[ConversionErrors, ...]:
        return self._errors.most_frequent()


class ValueConverter:
    """Converter of the values and keys of one move."""

    def __init__(
        self,
        columns: Sequence[Column],
        settings: ConversionSettings,
        codecs: Callable[[WriterSchema], Codec] = codec_of,
        stats: ConversionStats | None = None,
    ) -> None:
        self._settings = settings
        self.columns = written_columns(columns, settings)
        """The columns of the converted rows. The Parquet writer must get the same ones."""
        self.stats = stats or ConversionStats()
        width = sum(1 for _ in all_columns(self.columns))
        self._step = min(ROWS_MAX, max(ROWS_MIN, column_buffers.SLOTS_MAX // width))
        self._schema = arrow_schema(self.columns)
        self._values = _FieldConverter(ValuePart.VALUE, settings.value, self.columns, codecs, settings.requests_schemas)
        self._key = _key_column(self.columns, settings.key.writers)
        below = inner_columns(self._key.type) if self._key else ()
        self._keys = _FieldConverter(ValuePart.KEY, settings.key, below, codecs, settings.requests_schemas)

    def convert(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Converts decoded batches into batches with the table's columns.

        SchemasMissingError: the driver has to resolve schemas first; then the move is retried.
        """
        for batch in batches:
            for start, end in pairwise(
                wire_format.chunk_bounds(ByteSpans.of(batch.column(VALUE)).size, self._step, BYTES_MAX)
            ):
                yield from self._chunks(batch.slice(start, end - start))

    def _chunks(self, batch: Any) -> Iterator[Any]:
        """Converts rows; fewer at a time if their lists have too many slots, or memory is short."""
        start, end, keeps_bytes = 0, batch.num_rows, ""
        while start < batch.num_rows:
            rows = batch.slice(start, end - start)
            try:
                made = self._rows(rows, keeps_bytes)
            except _TooManySlots as error:
                assert len(rows) > 1, "a single row has no limit of slots but that of its values"
                end = start + (error.rows or len(rows) // 2)
            except MemoryError:
                if keeps_bytes:
                    raise
                end, keeps_bytes = start + max(1, len(rows) // 2), NO_MEMORY if len(rows) == 1 else ""
            else:
                yield made
                del made  # while the next rows are converted
                start, end, keeps_bytes = end, min(end + 2 * len(rows), batch.num_rows), ""

    def _rows(self, batch: Any, keeps_bytes: str = "") -> Any:
        """Converts a chunk. `keeps_bytes`: the reason why its values and keys are not converted, if there is one."""
        stream, count = batch.column(STREAM), batch.num_rows
        raw, offsets = batch.column(VALUE), numbers(stream.field("offset"), -1)
        slots = _SlotBudget(column_buffers.SLOTS_MAX if count > 1 else _UNLIMITED)
        kept = [(keeps_bytes, np.arange(count))] if keeps_bytes else []
        values = self._values.convert(ByteSpans.of(raw), offsets, slots, [*unreadable_rows(stream), *kept])
        made, failures = dict(values.columns), [*values.failures]
        if self._settings.key.mode is not SchemaMode.NONE:
            # Even if there is no key column yet: this is how the schema of the first key gets requested.
            keys = self._keys.convert(ByteSpans.of(stream.field("key")), offsets, slots, kept)
            failures += keys.failures
            if self._key is not None:
                made[self._key.field_id] = _struct(keys, self._schema.field(self._key.name).type, count)
        # Only now, because a chunk that is too large is converted again in parts.
        self.stats.converted += int(np.count_nonzero(values.is_typed & ~values.is_raw))
        self.stats.unconverted += int(np.count_nonzero(values.is_raw))
        for failure in failures:
            self.stats.add(failure)
        if self._settings.on_invalid is OnInvalid.STOP:
            self._stop()
        if self._settings.value.mode is not SchemaMode.NONE:
            stream = _stream(stream, _raw_bytes_only(raw, values.is_raw), values.numbers)
        elif any(one.field_id == VALUE_ID for one in self.columns):
            made[VALUE_ID] = raw
        else:
            stream = _stream(stream, raw, values.numbers)
        arrays = [
            stream if column.name == STREAM else _or_nulls(made.get(column.field_id), kind.type, count)
            for column, kind in zip(self.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _stop(self) -> None:
        if self.stats.invalid is not None:
            offset, reason = self.stats.invalid
            raise Rejected(
                f"the record at offset {offset} does not match the topic's schema: {reason}"
                " (lakestream.invalid.record.action is stop: set it to keep to store such records as bytes)"
            )


def written_columns(columns: Sequence[Column], settings: ConversionSettings) -> tuple[Column, ...]:
    """Returns the columns that conversion fills: those of values and keys, `_stream` and the bytes column."""
    bound = {
        number for part in (settings.value, settings.key) for one in part.writers for number in bound_ids(one.columns)
    }
    own = tuple(column for column in columns if column.field_id >= FIRST_FREE_ID)
    bytes_column = tuple(column for column in columns if column.field_id == VALUE_ID)
    return (*bytes_column, *pruned(own, bound), PLAIN_COLUMNS[-1])


@dataclass(frozen=True, slots=True, eq=False)
class _ConvertedValues:
    """Columns of all rows of a chunk, by field id."""

    columns: Mapping[int, Any]
    numbers: Longs
    """Numbers of the writer schemas; 0: none."""
    is_raw: Mask
    is_typed: Mask
    failures: Sequence[ConversionFailure]


class _TooManySlots(Exception):
    """The lists of a chunk have too many slots."""

    def __init__(self, rows: int) -> None:
        """`rows`: the number of the first rows that may have few enough; 0: unknown."""
        self.rows = rows


@dataclass(slots=True)
class _SlotBudget:
    """Slots that lists of a chunk may still have."""

    left: int


class _FieldConverter:
    """Converter of either values or keys."""

    def __init__(
        self,
        part: ValuePart,
        typed: FieldConversion,
        columns: Sequence[Column],
        codecs: Callable[[WriterSchema], Codec],
        requests_schemas: bool,
    ) -> None:
        self._part = part
        self._conversion = typed
        self._columns = tuple(columns)
        self._codecs = codecs
        self._requests_schemas = requests_schemas

    def convert(
        self, values: ByteSpans, offsets: Longs, slots: _SlotBudget, unreadable: Sequence[tuple[str, Longs]] = ()
    ) -> _ConvertedValues:
        """Converts the values of a chunk. _TooManySlots: they do not fit `slots`.

        `unreadable`: by reason, rows that are not converted: unreadable record batches (`arrow/unreadable_batches.py`).
        """
        count, is_there = values.size.size, values.size >= 0
        bytes_only = [Unconvertible(reason, 0, places[is_there[places]]) for reason, places in unreadable]
        is_large = values.size > VALUE_BYTES_MAX
        for one in bytes_only:
            is_large[one.places] = False
        bytes_only.append(Unconvertible(TOO_LARGE, 0, np.flatnonzero(is_large)))
        values = _with_nulls(values, [one.places for one in bytes_only])
        split = self._split(values)
        split.unconvertible.extend(bytes_only)
        if split.missing and self._requests_schemas:
            raise SchemasMissingError(tuple(self._missing_schema(one, values) for one in split.missing))
        work = _RowColumns(count, slots)
        if self._conversion.mode is SchemaMode.JSON:
            self._convert_json(work, values, offsets)
        for unconvertible in (*split.unconvertible, *(one.unconvertible for one in split.missing)):
            self._mark_raw(work, unconvertible, offsets)
        for group in split.groups:
            self._convert_group(work, group, offsets, len(split.groups) == 1)
        return _ConvertedValues(work.joined(), work.numbers, work.is_raw & is_there, work.is_typed, work.failures)

    def _split(self, values: ByteSpans) -> SplitValues:
        match self._conversion.mode:
            case SchemaMode.NONE | SchemaMode.JSON:
                return SplitValues()
            case SchemaMode.REGISTRY:
                return wire_format.split_by_schema_id(values, self._conversion.writers)
            case SchemaMode.LATEST | SchemaMode.FIXED:
                writer = next((one for one in self._conversion.writers if one.number == self._conversion.number), None)
                if writer is None:
                    places = np.flatnonzero(values.size >= 0)
                    return SplitValues(unconvertible=[Unconvertible("the topic's schema is unknown", 0, places)])
                return wire_format.single_group(values, writer)

    def _missing_schema(self, missing: MissingWriter, values: ByteSpans) -> MissingSchema:
        """Returns the schema to request; for JSON, with the text style of the values, which encoding needs."""
        payload = wire_format.skip_prefix(values.picked(missing.places), PREFIX_SIZE)
        style = ""
        if wire_format.bytes_at(payload, 0, 1) in (b"{", b"["):
            # Imported late: only JSON needs its kernels.
            from lakestream.data.typed.json.schema_inference import style_of

            style = style_of(payload)
        return MissingSchema(self._part, missing.schema_id, missing.message, style)

    def _convert_group(self, work: "_RowColumns", group: WriterGroup, offsets: Longs, is_alone: bool) -> None:
        writer, places = group.writer, group.places
        conversion = conversion_of(writer, self._columns, self._codecs)
        if isinstance(conversion, str):
            self._mark_raw(work, Unconvertible(conversion, writer.schema_id, places), offsets)
            return
        if is_alone and places.size < work.count:  # one group: its columns need no reordering
            rows = np.arange(work.count)
            whole = work.converted(conversion, _scattered(group.payload, places, work.count), rows)
            made = whole.picked(places)
            work.parts.append((rows, whole.columns))
        else:
            made = work.converted(conversion, group.payload, places)
            work.parts.append((places, made.columns))
        work.slots.left -= made.slots
        self._add_failures(work, conversion, made, places, offsets)
        self._assign(work, made, places, writer)
        if group.is_other_spelling is not None:
            work.is_raw[places] |= group.is_other_spelling

    def _assign(self, work: "_RowColumns", made: "_ConvertedGroup", places: Longs, writer: WriterSchema) -> None:
        work.numbers[places] = writer.number
        work.is_typed[places] = made.problems == 0
        work.is_raw[places] = made.differs

    def _convert_json(self, work: "_RowColumns", values: ByteSpans, offsets: Longs) -> None:
        """Converts JSON without a schema, each value with the first inferred schema that restores it.

        The newest schema is tried first. If no schema restores some values, another schema is requested; if that does
        not help, these values get the columns of the newest schema and keep their bytes.
        """
        writers = sorted(self._conversion.writers, key=lambda one: -one.number)
        left = np.flatnonzero(values.size >= 0)
        if not left.size:
            return
        first: _ConvertedGroup | None = None
        for writer in reversed(writers):
            conversion = conversion_of(writer, self._columns, self._codecs)
            if isinstance(conversion, str) or not left.size:
                continue
            if first is None:
                rows = np.arange(work.count)
                first = made = work.converted(conversion, values, rows)
                work.slots.left -= made.slots
                work.parts.append((rows, made.columns))
                self._assign(work, made.picked(left), left, writer)
                same = ~made.differs[left]
            else:
                made = work.converted(conversion, values.picked(left), left)
                same = ~made.differs
                self._assign(work, made.picked(np.flatnonzero(same)), left[same], writer)
                if same.any():
                    work.slots.left -= made.slots
                    work.parts.append((left[same], made.taken_columns(np.flatnonzero(same))))
            left = left[~same]
        if left.size and self._requests_schemas:
            self._request_shape(values.picked(left), int((values.size >= 0).sum()), writers)
        self._add_json_failures(work, first, left, writers, offsets)

    def _request_shape(self, left: ByteSpans, total: int, writers: Sequence[WriterSchema]) -> None:
        from lakestream.data.typed.json.schema_inference import infer_next

        inferred = infer_next(left, total, writers)
        if inferred is not None:
            raise SchemasMissingError(
                (), (InferredSchema(self._part, JSON, inferred.text, inferred.style, inferred.shape),)
            )

    def _add_json_failures(
        self,
        work: "_RowColumns",
        first: "_ConvertedGroup | None",
        left: Longs,
        writers: Sequence[WriterSchema],
        offsets: Longs,
    ) -> None:
        if first is None:
            self._mark_raw(work, Unconvertible(NO_SHAPE, 0, left), offsets)
            return
        conversion = conversion_of(writers[-1], self._columns, self._codecs)
        if isinstance(conversion, WriterConversion):
            self._add_failures(work, conversion, first.picked(left), left, offsets)

    def _mark_raw(self, work: "_RowColumns", unconvertible: Unconvertible, offsets: Longs) -> None:
        work.numbers[unconvertible.places] = unconvertible.schema_id
        work.is_raw[unconvertible.places] = True
        is_invalid = unconvertible.reason not in (TOO_LARGE, NO_MEMORY)
        self._add_failure(
            work, unconvertible.reason, unconvertible.schema_id, unconvertible.places, offsets, is_invalid=is_invalid
        )

    def _add_failures(
        self,
        work: "_RowColumns",
        conversion: "WriterConversion",
        made: "_ConvertedGroup",
        places: Longs,
        offsets: Longs,
    ) -> None:
        schema_id = conversion.writer.schema_id
        for problem in np.unique(made.problems[made.problems != 0]).tolist():
            here, reason = places[made.problems == problem], conversion.codec.reason(problem)
            self._add_failure(work, reason, schema_id, here, offsets, is_invalid=problem != TOO_MANY)
        lacking = places[made.lacks & (made.problems == 0)]
        self._add_failure(work, NULL_FIELD, schema_id, lacking, offsets, is_invalid=False)
        if names := conversion.projection.without_column:
            lacking = places[made.differs & (made.problems == 0)]
            reason = f"no column fits {', '.join(names[:3])}"
            self._add_failure(work, reason, schema_id, lacking, offsets, is_invalid=False)

    def _add_failure(
        self, work: "_RowColumns", reason: str, schema_id: int, places: Longs, offsets: Longs, *, is_invalid: bool
    ) -> None:
        if places.size:
            work.failures.append(ConversionFailure(self._part, reason, schema_id, offsets[places], is_invalid))


# One writer


@dataclass(frozen=True, slots=True, eq=False)
class _ConvertedGroup:
    columns: dict[int, Any]
    problems: NDArray[np.int32]
    differs: Mask
    lacks: Mask
    """Values with a field that is null because its column cannot hold it."""
    slots: int
    """Slots of their lists."""

    def picked(self, places: Longs) -> "_ConvertedGroup":
        """Returns the results of some values, with the columns of all."""
        rows = (self.problems[places], self.differs[places], self.lacks[places])
        return _ConvertedGroup(self.columns, *rows, self.slots)

    def taken_columns(self, places: Longs) -> dict[int, Any]:
        chosen = pa.array(places)
        return {number: array.take(chosen) for number, array in self.columns.items()}


@dataclass(frozen=True, slots=True, eq=False)
class WriterConversion:
    """How the values of one writer become columns of one table."""

    writer: WriterSchema
    codec: Codec
    projection: Projection

    def convert(self, payload: ByteSpans, slots_max: int) -> _ConvertedGroup:
        """Converts values. _TooManySlots: they have more slots in their lists; with the number of those that fit."""
        decoded = self.codec.decode(payload, slots_max)
        count, layout, problems = len(decoded.buffers), decoded.buffers.layout, decoded.problems
        if count < payload.size.size:
            raise _TooManySlots(count)
        absent = pa.array(decoded.buffers.valid[:count] == 0)
        lacks = np.zeros(count, np.bool_) if decoded.lacks is None else decoded.lacks
        slots = decoded.slots
        columns = self.projection.forward(to_arrow(decoded.buffers, held=(*payload.held, *decoded.held)))
        del decoded  # its buffers are as large as those of the way back
        # From the columns, not from the decoded buffers: the comparison must cover what a reader will get.
        back = from_arrow(self.projection.back(columns, count, absent), layout)
        encoded = self.codec.encode(back.buffers)
        differs = np.empty(count, np.uint8)
        differing(payload.address, payload.size, encoded.address, encoded.size, differs)
        return _ConvertedGroup(columns, problems, differs.astype(np.bool_) | (problems != 0), lacks, slots)


@weighted_cache(CODECS_WEIGHT_MAX, lambda writer, *_: weight_of(writer))
def conversion_of(
    writer: WriterSchema, columns: tuple[Column, ...], codecs: Callable[[WriterSchema], Codec] = codec_of
) -> WriterConversion | str:
    """Returns the conversion of a writer schema into these columns, or the reason why it has none."""
    if not writer.format:
        return writer.text
    try:
        codec = codecs(writer)
    except LakestreamError as error:
        return str(error)
    return WriterConversion(writer, codec, Projection(codec.shape, writer.columns, columns))


# Rows of several writers


class _RowColumns:
    """Columns of the rows of a chunk, put together from the columns of several groups."""

    def __init__(self, count: int, slots: _SlotBudget) -> None:
        self.count = count
        self.slots = slots
        self.failures: list[ConversionFailure] = []
        self.numbers = np.zeros(count, np.int64)
        self.is_raw = np.zeros(count, np.bool_)
        self.is_typed = np.zeros(count, np.bool_)
        self.parts: list[tuple[Longs, dict[int, Any]]] = []

    def converted(self, conversion: WriterConversion, payload: ByteSpans, rows: Longs) -> _ConvertedGroup:
        """Converts values. `rows`: their rows in the chunk. _TooManySlots: the chunk must have fewer rows."""
        try:
            return conversion.convert(payload, self.slots.left)
        except _TooManySlots as error:
            raise _TooManySlots(int(rows[error.rows])) from None

    def joined(self) -> dict[int, Any]:
        """Returns the columns of all rows, in row order. A row of several parts has the columns of the last one."""
        if len(self.parts) == 1 and self.parts[0][0].size == self.count:
            return self.parts[0][1]
        chunks: defaultdict[int, list[Any]] = defaultdict(list)
        places: defaultdict[int, Longs] = defaultdict(lambda: np.full(self.count, -1, np.int64))
        for rows, columns in self.parts:
            for field_id, array in columns.items():
                before = sum(map(len, chunks[field_id]))
                places[field_id][rows] = np.arange(before, before + rows.size)
                chunks[field_id].append(array)
            for field_id in places.keys() - columns.keys():
                places[field_id][rows] = -1
        return {field_id: _take_or_null(arrays, places[field_id]) for field_id, arrays in chunks.items()}


def _take_or_null(arrays: list[Any], places: Longs) -> Any:
    """Returns the element at each place, null at negative places."""
    return pa.concat_arrays(arrays).take(pa.array(places, mask=places < 0))


def _with_nulls(values: ByteSpans, parts: Sequence[Longs]) -> ByteSpans:
    """Returns the values with null at these places."""
    places = np.concatenate(parts)
    if not places.size:
        return values
    size = values.size.copy()
    size[places] = -1
    return ByteSpans(values.address, size, values.held)


def _scattered(values: ByteSpans, places: Longs, count: int) -> ByteSpans:
    """Returns an array of so many values, with these at their places and null elsewhere."""
    address, size = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    address[places], size[places] = values.address, values.size
    return ByteSpans(address, size, values.held)


def _or_nulls(array: Any, kind: Any, count: int) -> Any:
    return pa.nulls(count, kind) if array is None else array


# The columns `_key` and `_stream`


def _key_column(columns: Sequence[Column], writers: Sequence[WriterSchema]) -> Column | None:
    """Returns the column that has the fields of keys. It may have been renamed, so field ids decide."""
    bound = {one.field_id for writer in writers for one in writer.columns if one is not None}
    for column in columns:
        if column.field_id >= FIRST_FREE_ID and any(one.field_id in bound for one in inner_columns(column.type)):
            return column
    return None


def _struct(made: _ConvertedValues, kind: Any, count: int) -> Any:
    fields = [_or_nulls(made.columns.get(field_id_of(one) or 0), one.type, count) for one in kind]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(~made.is_typed))


def _raw_bytes_only(raw: Any, is_raw: Mask) -> Any:
    """Returns the bytes of the raw rows and null for the rest, without copying any."""
    if not is_raw.any():
        return pa.nulls(len(raw), raw.type)
    if is_raw.all():
        return raw
    valid = np.concatenate([np.zeros(raw.offset, np.bool_), is_raw])
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(raw.type, len(raw), [bitmap, *raw.buffers()[1:]], offset=raw.offset)


def _stream(stream: Any, raw: Any, writers: Longs) -> Any:
    made = {"value": raw, "schema_id": pa.array(writers.astype(np.int32), mask=writers == 0)}
    arrays = [made[one.name] if one.name in made else stream.field(one.name) for one in STREAM_TYPE]
    return pa.StructArray.from_arrays(arrays, fields=list(STREAM_TYPE))
