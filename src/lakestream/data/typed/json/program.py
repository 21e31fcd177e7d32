"""Compiles JSON types and a text style into the integer programs of the kernels, one to decode and one to encode.

Nodes have the numbers of the buffer layout: both walk keys and their variants in the same order. A place is a position
of a value: the whole text, a key, the element of an array, the value of a map.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.column_buffers import TEXT_SIZE, Layout
from lakestream.data.typed.json import read_kernels as read
from lakestream.data.typed.json import write_kernels as write
from lakestream.data.typed.json.text_style import DOUBLES, VOIDS, NumberAndDateFormat, Style, escaped
from lakestream.schemas.field_path import below, cut
from lakestream.schemas.json.json_types import (
    ArrayType,
    Conversion,
    JsonType,
    JsonTypeUnion,
    MapType,
    RecordType,
    ScalarType,
    is_record,
    json_type_of,
    root_of,
)

_SIMPLER: Final = {
    Conversion.FLOAT: Conversion.DOUBLE,
    Conversion.DECIMAL: Conversion.RAW,
    Conversion.BINARY: Conversion.STRING,
}
"""Types that kernels treat as simpler ones; `connect_types.py` does the rest."""
_OWN: Final = {
    one: number for number, one in enumerate((one for one in Conversion if one not in _SIMPLER), read.READ_BOOLEAN)
}
_READS: Final = {one: _OWN[_SIMPLER.get(one, one)] for one in Conversion}
_TYPES: Final = {
    "integer": read.INTEGER,
    "number": read.NUMBER,
    "string": read.STRING,
    "boolean": read.BOOLEAN,
    "object": read.OBJECT,
    "array": read.ARRAY,
    "any": read.RAW,
}
TYPE_NAMES: Final = {number: name for name, number in _TYPES.items()}
_PADDING: Final = b"\0" * 16
"""Kernels read keys in words of eight bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    is_wrapped: bool
    """The value is not a record: it becomes the only column of one."""
    names: tuple[str, ...]
    """Paths of the places, for error messages."""
    places: Longs
    read_nodes: Longs
    read_keys: Longs
    table: Longs
    hints: Longs
    voids: Longs
    write_nodes: Longs
    write_keys: Longs
    forms: Longs
    separators: Longs
    escapes: int
    blob: NDArray[np.uint8]
    weights: Longs
    """The slots that a row of each domain counts as."""


def program_of(part: JsonTypeUnion, style: Style, layout: Layout) -> Program:
    compiler = _Compiler(style)
    root = compiler.add_place("", "null")
    compiler.node(read.RECORD)
    if is_record(part):
        compiler.places[root][read.OBJECT] = compiler.places[root][write.ONLY] = 0
        compiler.record(0, root_of(part), style.root, "")
    else:
        (_, only), *_ = root_of(part).keys
        compiler.variants(root, only, style.root)
    return compiler.built(not is_record(part), layout)


class _Text(NamedTuple):
    """Position and size of a key in the blob, as it is compared and as it is written."""

    read: tuple[int, int]
    written: tuple[int, int]
    hash: int


@dataclass(slots=True)
class _Compiler:
    style: Style
    names: list[str] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    voids: list[int] = field(default_factory=list)
    read_nodes: list[list[int]] = field(default_factory=list)
    read_keys: list[list[int]] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    after: dict[int, int] = field(default_factory=dict)
    """The key expected after each key; at minus a node, minus 1: the first key of its record."""
    write_nodes: list[list[int]] = field(default_factory=list)
    write_keys: list[list[int]] = field(default_factory=list)
    forms: list[Sequence[int]] = field(default_factory=list)
    blob: bytearray = field(default_factory=bytearray)
    texts: dict[str, "_Text"] = field(default_factory=dict)
    key_slots: dict[int, int] = field(default_factory=dict)
    """Slots of all keys of a record: a style may write them, for nulls, where the value has none."""

    def add_place(self, name: str, void: str) -> int:
        self.names.append(name)
        self.places.append([-1] * read.PLACE_WIDTH)
        self.voids.append(VOIDS[void])
        return len(self.places) - 1

    def node(self, what: int, child: int = -1, form: Sequence[int] = ()) -> int:
        self.read_nodes.append([what, 0, 0, 0, child, 0, 0, 0])
        self.write_nodes.append([what, 0, 0, child, len(self.forms), 0, 0, 0])
        if form:
            self.forms.append([*map(int, form), *[0] * (write.FORM_WIDTH - len(form))])
        return len(self.read_nodes) - 1

    def variants(self, place: int, part: JsonTypeUnion, place_format: NumberAndDateFormat) -> None:
        nodes = []
        for variant in part.variants:
            node = self._variant(variant, place_format, self.names[place])
            self.places[place][_type_of(variant)] = node
            nodes.append(node)
        self.places[place][write.ONLY] = nodes[0] if len(nodes) == 1 else -1

    def _variant(self, variant: JsonType, place_format: NumberAndDateFormat, name: str) -> int:
        match variant:
            case ScalarType(one):
                form: Sequence[Any] = ()
                if one in (Conversion.DOUBLE, Conversion.FLOAT):
                    form = DOUBLES[place_format.double]
                elif one in (Conversion.TIME, Conversion.TIMESTAMP):
                    form = place_format.moment
                return self.node(_READS[one], form=form)
            case RecordType():
                node = self.node(read.RECORD)
                self.record(node, variant, place_format, name)
                return node
            case ArrayType(element):
                return self._each(self.node(read.MANY), element, place_format, cut(f"{name}[]"))
            case MapType(value):
                node = self.node(read.NAMED)
                self.node(read.READ_STRING)
                return self._each(node, value, place_format, cut(f"{name}{{}}"))

    def _each(self, node: int, part: JsonTypeUnion, place_format: NumberAndDateFormat, name: str) -> int:
        place = self.add_place(name, "null")
        self.read_nodes[node][read.CHILD] = self.write_nodes[node][write.CHILD] = place
        element_format = place_format.each or next(iter(place_format.keys.values()), NumberAndDateFormat())
        self.variants(place, part, element_format)
        return node

    def record(self, node: int, record: RecordType, place_format: NumberAndDateFormat, name: str) -> None:
        of_key: dict[str, tuple[int, int]] = {}
        for key, part in record.keys:
            inner = place_format.keys.get(key) or NumberAndDateFormat()
            place = self.add_place(below(name, key), inner.void)
            of_key[key] = (self._read_key(key, place), place)
            self.variants(place, part, inner)
        self._table(node, {key: number for key, (number, _) in of_key.items()})
        rank = {key: at for at, key in enumerate(place_format.keys)}
        ordered = sorted(of_key, key=lambda key: rank.get(key, len(rank)))
        self.write_nodes[node][write.FIRST_KEY] = len(self.write_keys)
        self.write_nodes[node][write.KEY_COUNT] = len(ordered)
        before = -1 - node
        for key in ordered:
            number, place = of_key[key]
            self.after[before], before = number, number
            self._write_key(key, place)
        self.key_slots[node] = sum(self._text(key).written[1] // TEXT_SIZE for key in ordered)

    def _read_key(self, key: str, place: int) -> int:
        self.read_keys.append([*self._text(key).read, place, 0])
        return len(self.read_keys) - 1

    def _write_key(self, key: str, place: int) -> None:
        self.write_keys.append([*self._text(key).written, len(self.style.comma), place])

    def _text(self, key: str) -> "_Text":
        """Cached: a definition may be used thousands of times, and its keys may be as long as the schema."""
        if key not in self.texts:
            read_as = key.encode("utf-8", "surrogatepass")
            written = f'{self.style.comma}"{escaped(key, self.style.escapes)}"{self.style.colon}'
            self.texts[key] = _Text(
                self._put(read_as), self._put(written.encode("utf-8", "surrogatepass")), _hashed(read_as)
            )
        return self.texts[key]

    def _put(self, text: bytes) -> tuple[int, int]:
        self.blob += text
        return len(self.blob) - len(text), len(text)

    def _table(self, node: int, keys: dict[str, int]) -> None:
        """Adds a hash table with open addressing; at least half of it is empty."""
        size = 1 << (2 * len(keys) + 1).bit_length()
        table = [-1] * size
        for key, number in keys.items():
            slot = self._text(key).hash & (size - 1)
            while table[slot] >= 0:
                slot = (slot + 1) & (size - 1)
            table[slot] = number
        self.read_nodes[node][read.TABLE], self.read_nodes[node][read.MASK] = len(self.table), size - 1
        self.table += table

    def built(self, is_wrapped: bool, layout: Layout) -> Program:
        comma, colon = (self._put(text.encode()) for text in (self.style.comma, self.style.colon))
        read_nodes = _rows(self.read_nodes, read.NODE_WIDTH)
        read_nodes[:, read.DOMAIN], read_nodes[:, read.OPENED] = layout.domains, layout.opened
        hints = np.full(len(self.read_keys) + len(self.read_nodes), -1, np.int64)
        for before, key in self.after.items():
            hints[before if before >= 0 else len(self.read_keys) - 1 - before] = key
        return Program(
            is_wrapped=is_wrapped,
            names=tuple(self.names),
            places=_rows(self.places, read.PLACE_WIDTH),
            read_nodes=read_nodes,
            read_keys=_rows(self.read_keys, read.KEY_WIDTH),
            table=np.array(self.table or [-1], np.int64),
            hints=hints,
            voids=np.array(self.voids, np.int64),
            write_nodes=_rows(self.write_nodes, read.NODE_WIDTH),
            write_keys=_rows(self.write_keys, read.KEY_WIDTH),
            forms=_rows(self.forms, write.FORM_WIDTH),
            separators=np.array([*comma, *colon], np.int64),
            escapes=self.style.escape_bits,
            blob=np.frombuffer(bytes(self.blob) + _PADDING, np.uint8),
            weights=layout.weights(self.key_slots),
        )


def _type_of(variant: JsonType) -> int:
    return _TYPES[json_type_of(variant)]


def _rows(rows: Sequence[Sequence[int]], width: int) -> Longs:
    return np.array(rows, np.int64).reshape(-1, width) if rows else np.zeros((0, width), np.int64)


def _hashed(key: bytes) -> int:
    """Hashes a key as the kernel does."""
    value = 0xCBF29CE484222325
    for byte in key:
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value & (2**63 - 1)
