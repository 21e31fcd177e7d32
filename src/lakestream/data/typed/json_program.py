"""Parts and style as the integer programs of the kernels: one to read by, one to write by.

Nodes are numbered as the frame's layout numbers them: both walk keys and their variants in order. Places are where a
value may stand: the whole, a key, the element of a list, the value of a map.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.typed import kernels_json_read as read
from lakestream.data.typed import kernels_json_write as write
from lakestream.data.typed.frame import Layout
from lakestream.data.typed.json_style import DOUBLES, VOIDS, Manner, Style, escaped
from lakestream.schemas.json.parts import Many, Named, Part, Read, Record, Scalar, Variant, is_record, json_of, root_of

_SIMPLER: Final = {Read.FLOAT: Read.DOUBLE, Read.DECIMAL: Read.RAW, Read.BINARY: Read.STRING}
"""What kernels take for what; `json_turned.py` does the rest."""
_OWN: Final = {
    one: number for number, one in enumerate((one for one in Read if one not in _SIMPLER), read.READ_BOOLEAN)
}
_READS: Final = {one: _OWN[_SIMPLER.get(one, one)] for one in Read}
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
"""Kernels take keys eight bytes at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    is_wrapped: bool
    """The value is no record, but the only column of one."""
    names: tuple[str, ...]
    """Of places, for people."""
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


def program_of(part: Part, style: Style, layout: Layout) -> Program:
    building = _Building(style)
    root = building.taken_place("", "null")
    building.node(read.RECORD)
    if is_record(part):
        building.places[root][read.OBJECT] = building.places[root][write.ONLY] = 0
        building.record(0, root_of(part), style.root, "")
    else:
        (_, only), *_ = root_of(part).keys
        building.variants(root, only, style.root)
    return building.built(not is_record(part), layout)


@dataclass(slots=True)
class _Building:
    style: Style
    names: list[str] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    voids: list[int] = field(default_factory=list)
    read_nodes: list[list[int]] = field(default_factory=list)
    read_keys: list[list[int]] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    after: dict[int, int] = field(default_factory=dict)
    """Which key is guessed behind a key; behind minus a node: first in its record."""
    write_nodes: list[list[int]] = field(default_factory=list)
    write_keys: list[list[int]] = field(default_factory=list)
    forms: list[Sequence[int]] = field(default_factory=list)
    blob: bytearray = field(default_factory=bytearray)

    def taken_place(self, name: str, void: str) -> int:
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

    def variants(self, place: int, part: Part, manner: Manner) -> None:
        nodes = []
        for variant in part.variants:
            node = self._variant(variant, manner, self.names[place])
            self.places[place][_type_of(variant)] = node
            nodes.append(node)
        self.places[place][write.ONLY] = nodes[0] if len(nodes) == 1 else -1

    def _variant(self, variant: Variant, manner: Manner, name: str) -> int:
        match variant:
            case Scalar(one):
                form: Sequence[Any] = ()
                if one in (Read.DOUBLE, Read.FLOAT):
                    form = DOUBLES[manner.double]
                elif one in (Read.TIME, Read.TIMESTAMP):
                    form = manner.moment
                return self.node(_READS[one], form=form)
            case Record():
                node = self.node(read.RECORD)
                self.record(node, variant, manner, name)
                return node
            case Many(element):
                return self._each(self.node(read.MANY), element, manner, f"{name}[]")
            case Named(value):
                node = self.node(read.NAMED)
                self.node(read.READ_STRING)
                return self._each(node, value, manner, f"{name}{{}}")

    def _each(self, node: int, part: Part, manner: Manner, name: str) -> int:
        place = self.taken_place(name, "null")
        self.read_nodes[node][read.CHILD] = self.write_nodes[node][write.CHILD] = place
        below = manner.each or next(iter(manner.keys.values()), Manner())
        self.variants(place, part, below)
        return node

    def record(self, node: int, record: Record, manner: Manner, name: str) -> None:
        of_key: dict[str, tuple[int, int]] = {}
        for key, part in record.keys:
            inner = manner.keys.get(key) or Manner()
            place = self.taken_place(f"{name}.{key}" if name else key, inner.void)
            of_key[key] = (self._read_key(key, place), place)
            self.variants(place, part, inner)
        self._table(node, {key: number for key, (number, _) in of_key.items()})
        rank = {key: at for at, key in enumerate(manner.keys)}
        ordered = sorted(of_key, key=lambda key: rank.get(key, len(rank)))
        self.write_nodes[node][write.FIRST_KEY] = len(self.write_keys)
        self.write_nodes[node][write.KEY_COUNT] = len(ordered)
        before = -1 - node
        for key in ordered:
            number, place = of_key[key]
            self.after[before], before = number, number
            self._write_key(key, place)

    def _read_key(self, key: str, place: int) -> int:
        at, size = self._put(key.encode("utf-8", "surrogatepass"))
        self.read_keys.append([at, size, place, 0])
        return len(self.read_keys) - 1

    def _write_key(self, key: str, place: int) -> None:
        text = f'{self.style.comma}"{escaped(key, self.style.escapes)}"{self.style.colon}'
        at, size = self._put(text.encode("utf-8", "surrogatepass"))
        self.write_keys.append([at, size, len(self.style.comma), place])

    def _put(self, text: bytes) -> tuple[int, int]:
        self.blob += text
        return len(self.blob) - len(text), len(text)

    def _table(self, node: int, keys: dict[str, int]) -> None:
        """A hash table with open places: half of them at least are empty."""
        size = 1 << (2 * len(keys) + 1).bit_length()
        table = [-1] * size
        for key, number in keys.items():
            slot = _hashed(key.encode("utf-8", "surrogatepass")) & (size - 1)
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
        )


def _type_of(variant: Variant) -> int:
    return _TYPES[json_of(variant)]


def _rows(rows: Sequence[Sequence[int]], width: int) -> Longs:
    return np.array(rows, np.int64).reshape(-1, width) if rows else np.zeros((0, width), np.int64)


def _hashed(key: bytes) -> int:
    """As the kernel does it."""
    value = 0xCBF29CE484222325
    for byte in key:
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value & (2**63 - 1)
