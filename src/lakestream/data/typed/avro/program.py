"""Compiles an Avro schema into the program of the kernels that read and write its values; `kernels.py` describes it.

Types with columns are compiled in place. Types without columns (recursive or empty ones) must still be skipped when a
value is read: records without columns become routines, called from each place that uses them, so a program does not
grow beyond its schema and its columns.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.avro import kernels as k
from lakestream.data.typed.column_buffers import TEXT_SIZE, Layout
from lakestream.errors import Rejected
from lakestream.schemas.avro.analysis import TypeProperties
from lakestream.schemas.avro.to_types import DIGITS_MAX, Columns, columns_of, only_branch
from lakestream.schemas.avro.types import (
    Array,
    AvroType,
    EnumOf,
    Fixed,
    Logical,
    Map,
    Plain,
    Record,
    Union,
    is_null,
)
from lakestream.schemas.field_path import below, cut
from lakestream.schemas.types import Struct

_NOTHING: Final = -1
_LENGTH_PREFIXED: Final = -1
_PLAIN: Final = {
    "boolean": k.BOOLEAN,
    "int": k.INT,
    "long": k.LONG,
    "float": k.FLOAT,
    "double": k.DOUBLE,
    "bytes": k.BYTES,
    "string": k.STRING,
}
CODE_MAX: Final = 1 << 22
"""Integers of a program. A schema that uses each of its types once needs fewer, however large it is."""
_DAY_MS: Final = 86_400_000
_MS_MAX: Final = (2**63 - 1) // 1000
_SCALED: Final = {
    "time-millis": (1, 1000, 0, _DAY_MS - 1),
    "time-micros": (0, 1, 0, 1000 * _DAY_MS - 1),
    "timestamp-millis": (0, 1000, -_MS_MAX, _MS_MAX),
    "local-timestamp-millis": (0, 1000, -_MS_MAX, _MS_MAX),
    "timestamp-nanos": (0, -1000, -(2**63), 2**63 - 1),
    "local-timestamp-nanos": (0, -1000, -(2**63), 2**63 - 1),
}
"""Whether it is an int; the factor to microseconds (negative: divisor); the range of numbers that fit the column."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    layout: Layout
    code: Longs
    symbols: tuple[bytes, ...]
    """Symbols of all enums."""
    symbols_sorted: Longs
    """For each enum, the numbers of its symbols sorted by size and text, at the same position as its symbols."""
    rooms: tuple[int, ...]
    """The domain of each node that needs 16 bytes for every row (UUIDs)."""
    paths: dict[int, str]
    """Path of the field that an instruction belongs to, by position in the code."""
    weights: Longs
    """The slots that a row of each domain counts as."""


def program_of(type_: AvroType) -> Program:
    columns = columns_of(type_)
    shape = columns.type
    assert isinstance(shape, Struct), "a value is a struct of columns"
    layout = Layout.of(shape)
    compiler = _Compiler(layout, TypeProperties.of(type_))
    compiler.whole(type_, columns)
    return Program(
        layout,
        np.array(compiler.code, np.int64),
        tuple(compiler.symbols),
        np.array(compiler.symbols_sorted, np.int64),
        tuple(compiler.rooms),
        compiler.paths,
        layout.weights(compiler.texts),
    )


@dataclass(slots=True, eq=False)
class _Compiler:
    layout: Layout
    facts: TypeProperties
    code: list[int] = field(default_factory=list)
    symbols: list[bytes] = field(default_factory=list)
    symbols_sorted: list[int] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)
    routines: dict[int, int] = field(default_factory=dict)
    """Start of the routine of a record."""
    first_symbols: dict[int, int] = field(default_factory=dict)
    """Position of the first symbol of an enum, by identity: thousands of fields may share one enum."""
    longest: dict[int, int] = field(default_factory=dict)
    """Size of the longest symbol of an enum, by identity."""
    texts: dict[int, int] = field(default_factory=dict)
    """Slots of the longest symbol, by node."""
    calls: list[tuple[int, Record]] = field(default_factory=list)
    """Calls whose target is not set yet."""

    def whole(self, type_: AvroType, columns: Columns) -> None:
        if isinstance(type_, Record):
            self._record(type_, columns, 0, "")
        else:
            self._put(k.STRUCT, 0, "")
            self._type(type_, columns.children[0] if columns.children else None, 1, "")
        self._put(k.END, _NOTHING, "")
        while self.calls:
            place, record = self.calls.pop()
            if id(record) not in self.routines:
                self.routines[id(record)] = len(self.code)
                for part in record.fields:
                    self._type(part.type, None, _NOTHING, below(record.name, part.name))
                self._put(k.RETURN, _NOTHING, cut(record.name))
            self.code[place] = self.routines[id(record)]

    def _type(self, type_: AvroType, columns: Columns | None, node: int, path: str) -> None:
        """Compiles a type. `columns`: None if it has none; then `node` is ignored."""
        if self.facts.is_empty(type_):
            return  # no bytes to skip, however large the type is
        if columns is None:
            node = _NOTHING
        match type_:
            case Plain() | Fixed() | EnumOf():
                self._leaf(type_, node, path)
            case Array(items):
                self._list(items, columns, node, node + 1, path, "[]")
            case Map(values):
                self._list(values, columns, node, node + 2, path, "{}")
            case Union():
                self._union(type_, columns, node, path)
            case Record():
                if columns is None:
                    self._put(k.CALL, _NOTHING, path, 0)
                    self.calls.append((len(self.code) - 1, type_))
                else:
                    self._record(type_, columns, node, path)

    def _record(self, record: Record, columns: Columns, node: int, path: str) -> None:
        self._put(k.STRUCT, node, path)
        placed = self._placed(columns, node)
        for place, part in enumerate(record.fields):
            found, child = placed.get(place, (None, _NOTHING))
            self._type(part.type, found, child, below(path, part.name))

    def _placed(self, columns: Columns | None, node: int) -> dict[int, tuple[Columns, int]]:
        """Returns the columns and nodes of the parts of a struct, by place."""
        found = {}
        child = node + 1
        for place, inner in zip(columns.places, columns.children, strict=True) if columns is not None else ():
            found[place] = inner, child
            child = int(self.layout.ends[child])
        return found

    def _union(self, union: Union, columns: Columns | None, node: int, path: str) -> None:
        only = only_branch(union)
        if only is not None:
            placed = {only: (columns, node)} if columns is not None else {}
        else:
            placed = dict(self._placed(columns, node))
        is_struct = only is None and columns is not None
        null = next((place for place, branch in enumerate(union.branches) if is_null(branch)), None)
        bare = [
            place
            for place, branch in enumerate(union.branches)
            if place not in placed and self.facts.is_constant(branch)
        ]
        hollow = next((place for place in bare if place != null), _NOTHING)
        absent = null if null is not None else (_NOTHING if is_struct else hollow)
        at = self._put(k.UNION, node if is_struct else _NOTHING, path, len(union.branches), absent, hollow)
        if columns is not None:
            self.code[at + 2] = int(self.layout.domains[node])
        for place in range(len(union.branches)):
            self.code += (0, placed[place][1] if place in placed else _NOTHING)
        ends = []
        for place, branch in enumerate(union.branches):
            self.code[at + 6 + 2 * place] = len(self.code)
            found, child = placed.get(place, (None, _NOTHING))
            if is_struct and place != null:
                self._put(k.STRUCT, node, path)
            self._type(branch, found, child, path)
            self._put(k.JUMP, _NOTHING, path, 0)
            ends.append(len(self.code) - 1)
        for end in ends:
            self.code[end] = len(self.code)

    def _list(self, items: AvroType, columns: Columns | None, node: int, child: int, path: str, name: str) -> None:
        opened = int(self.layout.opened[node]) if columns is not None else _NOTHING
        is_map = name == "{}"
        at = self._put(k.LIST, node, path, opened, 0, int(not is_map and self.facts.is_empty(items)))
        if is_map:
            self._put(k.STRING, node + 1 if columns is not None else _NOTHING, cut(f"{path}{{key}}"))
        self._type(items, columns.children[0] if columns is not None else None, child, cut(path + name))
        self._put(k.AGAIN, _NOTHING, path)
        self.code[at + 4] = len(self.code)

    def _leaf(self, type_: Plain | Fixed | EnumOf, node: int, path: str) -> None:
        match type_:
            case EnumOf(symbols=symbols):
                self._put(k.ENUM, node, path, self._symbols(symbols), len(symbols))
                if node >= 0:
                    self.texts[node] = self.longest[id(symbols)] // TEXT_SIZE
            case Plain("null"):
                pass
            case Plain(logical=Logical("decimal", digits)) | Fixed(logical=Logical("decimal", digits)) if (
                digits <= DIGITS_MAX
            ):
                size = type_.size if isinstance(type_, Fixed) else _LENGTH_PREFIXED
                limit = 10**digits
                self._put(k.DECIMAL, node, path, size, _signed(limit), limit >> 64)
            case Fixed(size=size):
                self._put(k.FIXED, node, path, size)
            case Plain("string", Logical("uuid")):
                self._put(k.UUID_TEXT, node, path, len(self.rooms))
                self.rooms.append(int(self.layout.domains[node]) if node >= 0 else 0)
            case Plain(_, Logical(name)) if name in _SCALED:
                self._put(k.SCALED, node, path, *_SCALED[name])
            case Plain(kind):
                self._put(_PLAIN[kind], node, path)

    def _symbols(self, symbols: tuple[str, ...]) -> int:
        if id(symbols) not in self.first_symbols:
            self.first_symbols[id(symbols)] = len(self.symbols)
            texts = [symbol.encode() for symbol in symbols]
            self.symbols += texts
            self.longest[id(symbols)] = max(map(len, texts), default=0)
            self.symbols_sorted += sorted(range(len(texts)), key=lambda number: (len(texts[number]), texts[number]))
        return self.first_symbols[id(symbols)]

    def _put(self, operation: int, node: int, path: str, *more: int) -> int:
        at = len(self.code)
        if at > CODE_MAX:
            raise Rejected(
                f"decoding its values takes more than {CODE_MAX} steps: use records and unions of many parts less often"
            )
        self.paths[at] = path
        self.code += (operation, node, int(self.layout.domains[node]) if node >= 0 else 0, *more)
        return at


def _signed(number: int) -> int:
    """Returns the lowest 64 bits as a signed number."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
