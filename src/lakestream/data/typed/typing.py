"""Values to columns without losing a byte: between `table/decode.py` and `table/parquet.py`, for typed tables.

    framing.py  which writer  →  its codec  →  project.py  the table's columns
        →  back  →  the codec again  →  the same bytes?  →  `_stream.value` stays empty

Whatever does not come back byte for byte keeps its bytes in `_stream.value`, with its columns or without. Runs in a
Spark worker. Python runs per writer and per column, never per value; rows are worked on some at a time, so that what is
in memory is bounded.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.topic_layout import FIRST_FREE_ID, STREAM, VALUE, VALUE_ID
from lakestream.data.table.arrow import PLAIN_COLUMNS, STREAM_TYPE, arrow_schema, field_id_of
from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located, numbers
from lakestream.data.typed import framing
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.codec import Codec
from lakestream.data.typed.codecs import codec_of
from lakestream.data.typed.framing import BYTES_MAX, VALUE_BYTES_MAX, Group, Missed, Split, Unknown
from lakestream.data.typed.kernels_values import FRAME_SIZE, differing
from lakestream.data.typed.project import Projection, bound_ids
from lakestream.errors import LakestreamError, Rejected
from lakestream.model import MiB
from lakestream.schemas.columns import Column, all_columns, inner_columns, pruned
from lakestream.schemas.model import Format
from lakestream.schemas.typing import Inferred, Misfits, Mode, OnInvalid, Part, Typed, Typing, Wanted, WantedSchema
from lakestream.schemas.writers import Writer

ROWS_MAX: Final = 32_768
"""Worked on at a time. More are not faster, and need more memory."""
ROWS_MIN: Final = 256
SLOTS_MAX: Final = 8_000_000
"""Rows times columns, of which each takes 17 bytes in a frame, and then some in Arrow: wide tables take fewer rows."""
TOO_LARGE: Final = f"it is larger than {VALUE_BYTES_MAX // MiB} MiB, which no value with columns may be"
CODECS_MAX: Final = 256
MISFITS_MAX: Final = 20
JSON: Final = Format.JSON.value
NO_SHAPE: Final = "it is no JSON that could have columns"
NULL_FIELD: Final = "a field is null in its column, which cannot have what stands there"

Mask = NDArray[np.bool_]


class Note(NamedTuple):
    """Values, or keys, that have no columns, or not all of theirs, for one reason."""

    part: Part
    reason: str
    schema_id: int
    """That stands in front of them; 0: none does."""
    offsets: Longs

    @property
    def said(self) -> str:
        return f"key: {self.reason}" if self.part is Part.KEY else self.reason


@dataclass(slots=True)
class Tally:
    """What became of the values."""

    typed: int = 0
    """Whose columns give them back."""
    raw: int = 0
    """All others: they keep their bytes, beside columns or instead of them."""
    invalid: tuple[int, str] | None = None
    """The first record that is not what its topic says at all, and why."""
    notes: "list[Note] | None" = None
    """Which values are misfits, each of them, where somebody wants to know; who does takes them away in time."""
    _misfits: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def misfit(self, note: "Note", *, is_invalid: bool) -> None:
        reason, schema_id, first = note.said, note.schema_id, int(note.offsets.min())
        if is_invalid:
            self.invalid = min((first, reason), self.invalid or (first, reason))
        known, offset = self._misfits.get((reason, schema_id), (0, first))
        self._misfits[reason, schema_id] = known + int(note.offsets.size), min(first, offset)
        if self.notes is not None:
            self.notes.append(note)

    def misfits(self) -> tuple[Misfits, ...]:
        found = [Misfits(reason, number, *facts) for (reason, number), facts in self._misfits.items()]
        return tuple(sorted(found, key=lambda one: (-one.count, one.offset))[:MISFITS_MAX])


class Typist:
    """Of one move."""

    def __init__(
        self,
        columns: Sequence[Column],
        typing: Typing,
        codecs: Callable[[Writer], Codec] = codec_of,
        tally: Tally | None = None,
    ) -> None:
        self._typing = typing
        self.columns = written_columns(columns, typing)
        """Those that the rows have which come out: parquet.py is to be told the same."""
        self.tally = tally or Tally()
        self._step = min(ROWS_MAX, max(ROWS_MIN, SLOTS_MAX // sum(1 for _ in all_columns(self.columns))))
        self._schema = arrow_schema(self.columns)
        self._values = _Typing(Part.VALUE, typing.value, self.columns, self.tally, codecs, typing.asks)
        self._key = _key_column(self.columns, typing.key.writers)
        below = inner_columns(self._key.type) if self._key else ()
        self._keys = _Typing(Part.KEY, typing.key, below, self.tally, codecs, typing.asks)

    def typed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The rows that `decode.py` made, in the table's columns. Wanted: somebody has to be asked first."""
        for batch in batches:
            for start, end in pairwise(framing.cuts(Located.of(batch.column(VALUE)).size, self._step, BYTES_MAX)):
                yield self._rows(batch.slice(start, end - start))

    def _rows(self, batch: Any) -> Any:
        stream, count = batch.column(STREAM), batch.num_rows
        raw, offsets = batch.column(VALUE), numbers(stream.field("offset"), -1)
        values = self._values.typed(Located.of(raw), offsets)
        made = dict(values.columns)
        if self._typing.key.mode is not Mode.NONE:
            keys = self._keys.typed(Located.of(stream.field("key")), offsets)  # asks, too: the first key has no column
            if self._key is not None:
                made[self._key.field_id] = _struct(keys, self._schema.field(self._key.name).type, count)
        if self._typing.on_invalid is OnInvalid.STOP:
            self._stop()
        if self._typing.value.mode is not Mode.NONE:
            stream = _stream(stream, _kept(raw, values.is_raw), values.numbers)
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
        if self.tally.invalid is not None:
            offset, reason = self.tally.invalid
            raise Rejected(
                f"the record at offset {offset} is not what the topic's schema says: {reason}"
                " (lakestream.on.invalid is stop: set it to keep, and it is kept as bytes)"
            )


def written_columns(columns: Sequence[Column], typing: Typing) -> tuple[Column, ...]:
    """Of a table's columns those that values and keys are typed into, the stream's own, and the one of bytes."""
    bound = {number for part in (typing.value, typing.key) for one in part.writers for number in bound_ids(one.columns)}
    own = tuple(column for column in columns if column.field_id >= FIRST_FREE_ID)
    bytes_column = tuple(column for column in columns if column.field_id == VALUE_ID)
    return (*bytes_column, *pruned(own, bound), PLAIN_COLUMNS[-1])


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Of all rows."""

    columns: Mapping[int, Any]
    numbers: Longs
    """Of the writers; 0: none."""
    is_raw: Mask
    is_typed: Mask


class _Typing:
    """Values, or keys."""

    def __init__(
        self,
        part: Part,
        typed: Typed,
        columns: Sequence[Column],
        tally: Tally,
        codecs: Callable[[Writer], Codec],
        asks: bool,
    ) -> None:
        self._part = part
        self._typed = typed
        self._columns = tuple(columns)
        self._tally = tally
        self._codecs = codecs
        self._asks = asks

    def typed(self, values: Located, offsets: Longs) -> _Columns:
        count, is_there = values.size.size, values.size >= 0
        too_large = np.flatnonzero(values.size > VALUE_BYTES_MAX)
        if too_large.size:
            values = Located(values.address, np.where(values.size > VALUE_BYTES_MAX, -1, values.size), values.held)
        split = self._split(values)
        split.unknown.append(Unknown(TOO_LARGE, 0, too_large))
        if split.wanted and self._asks:
            raise Wanted(tuple(self._wanted(one, values) for one in split.wanted))
        work = _Rows(count)
        if self._typed.mode is Mode.JSON:
            self._type_json(work, values, offsets)
        for unknown in (*split.unknown, *(one.unknown for one in split.wanted)):
            self._give_up(work, unknown, offsets)
        for group in split.groups:
            self._type(work, group, offsets, len(split.groups) == 1)
        is_raw = work.is_raw & is_there
        if self._part is Part.VALUE:
            self._tally.typed += int(np.count_nonzero(work.is_typed & ~is_raw))
            self._tally.raw += int(np.count_nonzero(is_raw))
        return _Columns(work.joined(), work.numbers, is_raw, work.is_typed)

    def _split(self, values: Located) -> Split:
        match self._typed.mode:
            case Mode.NONE | Mode.JSON:
                return Split()
            case Mode.REGISTRY:
                return framing.split(values, self._typed.writers)
            case Mode.LATEST | Mode.FIXED:
                writer = next((one for one in self._typed.writers if one.number == self._typed.number), None)
                if writer is None:
                    places = np.flatnonzero(values.size >= 0)
                    return Split(unknown=[Unknown("the topic's schema is not known", 0, places)])
                return framing.whole(values, writer)

    def _wanted(self, missed: Missed, values: Located) -> WantedSchema:
        """If it is JSON, with how it is written, so that it can be written so again."""
        payload = framing.behind(values.picked(missed.places), FRAME_SIZE)
        style = ""
        if framing.bytes_at(payload, 0, 1) in (b"{", b"["):
            # Here and not above: only JSON needs the kernels of it.
            from lakestream.data.typed.json_infer import style_of

            style = style_of(payload)
        return WantedSchema(self._part, missed.schema_id, missed.message, style)

    def _type(self, work: "_Rows", group: Group, offsets: Longs, is_alone: bool) -> None:
        writer, places = group.writer, group.places
        craft = craft_of(writer, self._columns, self._codecs)
        if isinstance(craft, str):
            self._give_up(work, Unknown(craft, writer.schema_id, places), offsets)
            return
        if is_alone and places.size < work.count:  # its columns are those of all rows then, and none is moved
            whole = craft.typed(_spread(group.payload, places, work.count))
            made = whole.picked(places)
            work.parts.append((np.arange(work.count), whole.columns))
        else:
            made = craft.typed(group.payload)
            work.parts.append((places, made.columns))
        self._tell(craft, made, places, offsets)
        self._assign(work, made, places, writer)
        if group.is_odd is not None:
            work.is_raw[places] |= group.is_odd

    def _assign(self, work: "_Rows", made: "_Made", places: Longs, writer: Writer) -> None:
        work.numbers[places] = writer.number
        work.is_typed[places] = made.problems == 0
        work.is_raw[places] = made.differs

    def _type_json(self, work: "_Rows", values: Located, offsets: Longs) -> None:
        """JSON without a schema: of all shapes and styles that are known each value has one that gives it back. Where
        none does, more is asked for; then it has the columns of the newest, and its bytes."""
        writers = sorted(self._typed.writers, key=lambda one: -one.number)
        left = np.flatnonzero(values.size >= 0)
        if not left.size:
            return
        first: _Made | None = None
        for writer in reversed(writers):
            craft = craft_of(writer, self._columns, self._codecs)
            if isinstance(craft, str) or not left.size:
                continue
            made = craft.typed(values if first is None else values.picked(left))
            if first is None:
                first = made
                work.parts.append((np.arange(work.count), made.columns))
                self._assign(work, made.picked(left), left, writer)
                same = ~made.differs[left]
            else:
                same = ~made.differs
                self._assign(work, made.picked(np.flatnonzero(same)), left[same], writer)
                if same.any():
                    work.parts.append((left[same], made.taken(np.flatnonzero(same))))
            left = left[~same]
        if left.size and self._asks:
            self._ask_for_shape(values.picked(left), int((values.size >= 0).sum()), writers)
        self._tell_json(work, first, left, writers, offsets)

    def _ask_for_shape(self, left: Located, total: int, writers: Sequence[Writer]) -> None:
        from lakestream.data.typed.json_infer import wanted

        learnt = wanted(left, total, writers)
        if learnt is not None:
            raise Wanted((), (Inferred(self._part, JSON, learnt.text, learnt.style, learnt.shape),))

    def _tell_json(
        self, work: "_Rows", first: "_Made | None", left: Longs, writers: Sequence[Writer], offsets: Longs
    ) -> None:
        if first is None:
            self._give_up(work, Unknown(NO_SHAPE, 0, left), offsets)
            return
        craft = craft_of(writers[-1], self._columns, self._codecs)
        if isinstance(craft, Craft):
            self._tell(craft, first.picked(left), left, offsets)

    def _give_up(self, work: "_Rows", unknown: Unknown, offsets: Longs) -> None:
        work.numbers[unknown.places] = unknown.schema_id
        work.is_raw[unknown.places] = True
        is_invalid = unknown.reason != TOO_LARGE
        self._note(unknown.reason, unknown.schema_id, unknown.places, offsets, is_invalid=is_invalid)

    def _tell(self, craft: "Craft", made: "_Made", places: Longs, offsets: Longs) -> None:
        schema_id = craft.writer.schema_id
        for problem in np.unique(made.problems[made.problems != 0]).tolist():
            here = places[made.problems == problem]
            self._note(craft.codec.reason(problem), schema_id, here, offsets, is_invalid=True)
        self._note(NULL_FIELD, schema_id, places[made.lacks & (made.problems == 0)], offsets, is_invalid=False)
        if names := craft.projection.without_column:
            lacking = made.differs & (made.problems == 0)
            if lacking.any():
                reason = f"no column fits {', '.join(names[:3])}"
                self._note(reason, schema_id, places[lacking], offsets, is_invalid=False)

    def _note(self, reason: str, schema_id: int, places: Longs, offsets: Longs, *, is_invalid: bool) -> None:
        if places.size:
            self._tally.misfit(Note(self._part, reason, schema_id, offsets[places]), is_invalid=is_invalid)


# One writer


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    columns: dict[int, Any]
    problems: NDArray[np.int32]
    differs: Mask
    lacks: Mask
    """Something of them is null in its column."""

    def picked(self, places: Longs) -> "_Made":
        """What is known of these; the columns stay those of all."""
        return _Made(self.columns, self.problems[places], self.differs[places], self.lacks[places])

    def taken(self, places: Longs) -> dict[int, Any]:
        chosen = pa.array(places)
        return {number: array.take(chosen) for number, array in self.columns.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Craft:
    """How the values of one writer become columns of one table."""

    writer: Writer
    codec: Codec
    projection: Projection

    def typed(self, payload: Located) -> _Made:
        decoded = self.codec.decode(payload)
        columns = self.projection.forward(to_arrow(decoded.frame, held=(*payload.held, *decoded.held)))
        # From the columns themselves, not from the frame: what is compared is what a reader will have.
        absent = pa.array(decoded.frame.valid[: len(decoded.frame)] == 0)
        back = from_arrow(self.projection.back(columns, len(decoded.frame), absent), decoded.frame.layout)
        encoded = self.codec.encode(back.frame)
        differs = np.empty(payload.size.size, np.uint8)
        differing(payload.address, payload.size, encoded.address, encoded.size, differs)
        lacks = np.zeros(payload.size.size, np.bool_) if decoded.lacks is None else decoded.lacks
        return _Made(columns, decoded.problems, differs.astype(np.bool_) | (decoded.problems != 0), lacks)


@lru_cache(maxsize=CODECS_MAX)
def craft_of(writer: Writer, columns: tuple[Column, ...], codecs: Callable[[Writer], Codec] = codec_of) -> Craft | str:
    """Or why there is none."""
    if not writer.format:
        return writer.text
    try:
        codec = codecs(writer)
    except LakestreamError as error:
        return str(error)
    return Craft(writer, codec, Projection(codec.shape, writer.columns, columns))


# Rows of several writers


class _Rows:
    def __init__(self, count: int) -> None:
        self.count = count
        self.numbers = np.zeros(count, np.int64)
        self.is_raw = np.zeros(count, np.bool_)
        self.is_typed = np.zeros(count, np.bool_)
        self.parts: list[tuple[Longs, dict[int, Any]]] = []

    def joined(self) -> dict[int, Any]:
        """The columns of all rows, in their order. Rows of several parts are those of the last one alone."""
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
        return {field_id: _placed(arrays, places[field_id]) for field_id, arrays in chunks.items()}


def _placed(arrays: list[Any], places: Longs) -> Any:
    """Each value at its place; null where there is none."""
    return pa.concat_arrays(arrays).take(pa.array(places, mask=places < 0))


def _spread(values: Located, places: Longs, count: int) -> Located:
    """At their places among others, which are null."""
    address, size = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    address[places], size[places] = values.address, values.size
    return Located(address, size, values.held)


def _or_nulls(array: Any, kind: Any, count: int) -> Any:
    return pa.nulls(count, kind) if array is None else array


# The stream's own columns


def _key_column(columns: Sequence[Column], writers: Sequence[Writer]) -> Column | None:
    """The one whose fields keys are bound to, whatever it is called."""
    bound = {one.field_id for writer in writers for one in writer.columns if one is not None}
    for column in columns:
        if column.field_id >= FIRST_FREE_ID and any(one.field_id in bound for one in inner_columns(column.type)):
            return column
    return None


def _struct(made: _Columns, kind: Any, count: int) -> Any:
    fields = [_or_nulls(made.columns.get(field_id_of(one) or 0), one.type, count) for one in kind]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(~made.is_typed))


def _kept(raw: Any, is_raw: Mask) -> Any:
    """The bytes of those that need them: the same views, with others null."""
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
