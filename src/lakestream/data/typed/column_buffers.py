"""Decoded values in plain arrays that kernels fill and read: between the bytes of a format and Arrow columns.

The types of a shape become *nodes*, numbered in pre-order; node 0 is the struct of the whole value. Every list and
every map opens its own *domain*, numbered in the order of their nodes. Domain 0 has one row for each value; the domain
of a list has one row for each element of all its lists. A node has one slot for every row of its domain: slot
`base[node] + row` of three arrays.

| node                                      | valid  | bits                        | more                             |
|-------------------------------------------|--------|-----------------------------|----------------------------------|
| BOOLEAN INT LONG DATE TIME TIMESTAMP(TZ)  | 1 or 0 | number, in Iceberg's unit   |                                  |
| FLOAT                                     | 1 or 0 | its 32 bits                 |                                  |
| DOUBLE                                    | 1 or 0 | its 64 bits                 |                                  |
| STRING UUID FIXED BINARY                  | 1 or 0 | address of the bytes        | number of bytes                  |
| DECIMAL                                   | 1 or 0 | low 64 bits                 | high 64 bits, two's complement   |
| STRUCT                                    | 1 or 0 |                             |                                  |
| LIST MAP                                  | 1 or 0 | first row in its domain     | number of rows                   |

Where `valid` is 0, `bits` and `more` are undefined, and so are all nodes below (kernels leave `valid` 0 there, too).
STRING is valid UTF-8: kernels check it when they decode. The element of a list is the node after it; the key of a map
is the node after it, its value the node after the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.kernels.compile import Longs
from lakestream.model import MiB
from lakestream.schemas.types import Kind, ListOf, MapOf, Primitive, Struct, Type, children

SLOTS_MAX: Final = 8 * MiB
"""Slots in the lists and maps of one value; a value with more gets no columns. Also those of all values that are
converted in one call, and the slots of their columns outside of lists. A slot takes up to 60 bytes during a conversion,
and an element of one byte may have thousands (docs/types.md, "Limit of lists")."""
TEXT_SIZE: Final = 32
"""Bytes that count as one slot, of texts that a slot may have without taking as many bytes of the value."""

STRUCT: Final = 0
LIST: Final = 1
MAP: Final = 2
KINDS: Final = {kind: number for number, kind in enumerate(Kind, 3)}
"""Numbers of the primitive kinds in the kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Table of the nodes of a shape: one array per column."""

    shape: Struct
    types: tuple[Type, ...]
    kinds: Longs
    domains: Longs
    """The domain that a node's slots belong to."""
    opened: Longs
    """The domain that a list or map opens; -1: none."""
    ends: Longs
    """The first node that is not below this one."""
    domain_count: int
    nodes: Longs
    """The number of nodes of each domain."""

    @classmethod
    def of(cls, shape: Struct) -> "Layout":
        walk = _Walk()
        walk.visit(shape, 0)
        kinds, domains, opened, ends = (
            np.array(row, np.int64) for row in (walk.kinds, walk.domains, walk.opened, walk.ends)
        )
        nodes = np.bincount(domains, minlength=walk.domain_count).astype(np.int64)
        return cls(shape, tuple(walk.types), kinds, domains, opened, ends, walk.domain_count, nodes)

    def __len__(self) -> int:
        return len(self.types)

    @property
    def rows_max(self) -> int:
        """The number of values that are decoded in one call: a tiny one may have thousands of columns."""
        return max(1, SLOTS_MAX // int(self.nodes[0]))

    def weights(self, texts: Mapping[int, int]) -> Longs:
        """Returns for each domain the slots that a row counts as, for SLOTS_MAX.

        `texts`: by node, the slots of the texts that it may have without taking as many bytes of the value: the longest
        symbol of an enum, the keys of an object in JSON. A value itself counts as these texts only, because `rows_max`
        limits its other slots.
        """
        found = self.nodes.copy()
        found[0] = 0
        for node, slots in texts.items():
            found[self.domains[node]] += slots
        return found

    def fitting(self, rooms: Longs) -> Longs:
        """Returns estimated rows of each domain, fewer of lists if all of them have more slots than can be used."""
        share = 2.0 * SLOTS_MAX / max(1.0, float((rooms * self.nodes)[1:].sum()))
        if share >= 1:
            return rooms
        fewer = (rooms * share).astype(np.int64)
        fewer[0] = rooms[0]
        return fewer


@dataclass(slots=True)
class _Walk:
    types: list[Type] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    domains: list[int] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    domain_count: int = 1

    def visit(self, kind: Type, domain: int) -> None:
        node = len(self.types)
        self.types.append(kind)
        self.kinds.append(_number(kind))
        self.domains.append(domain)
        self.opened.append(-1)
        self.ends.append(0)
        if isinstance(kind, ListOf | MapOf):
            domain = self.opened[node] = self.domain_count
            self.domain_count += 1
        for child in children(kind):
            self.visit(child, domain)
        self.ends[node] = len(self.types)


def _number(kind: Type) -> int:
    match kind:
        case Struct():
            return STRUCT
        case ListOf():
            return LIST
        case MapOf():
            return MAP
        case Primitive(one):
            return KINDS[one]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnBuffers:
    layout: Layout
    counts: Longs
    """Number of rows of each domain."""
    base: Longs
    """The first slot of each node."""
    valid: NDArray[np.uint8]
    bits: Longs
    more: Longs

    @classmethod
    def empty(cls, layout: Layout, counts: Longs) -> "ColumnBuffers":
        """Allocates buffers with so many rows in each domain, all null."""
        sizes = counts[layout.domains]
        slots = int(sizes.sum())
        base = np.cumsum(sizes) - sizes
        # From Arrow's pool, which reuses pages: fresh pages cost as much as filling them.
        bits, more = (np.frombuffer(pa.allocate_buffer(8 * slots), np.int64) for _ in range(2))
        return cls(layout, counts, base, np.zeros(slots, np.uint8), bits, more)

    def __len__(self) -> int:
        return int(self.counts[0])

    def values_at(self, slots: Longs) -> Longs:
        """Returns the value that each of these slots belongs to. The rows must be in the order of their values."""
        nodes = np.searchsorted(self.base, slots, side="right") - 1
        rows, domains = slots - self.base[nodes], self.layout.domains[nodes]
        found = np.empty(slots.size, np.int64)
        for domain in np.unique(domains).tolist():
            here = domains == domain
            found[here] = self._owners(domain)[rows[here]]
        return found

    def _owners(self, domain: int) -> Longs:
        """Returns the value that each row of a domain belongs to."""
        if domain == 0:
            return np.arange(len(self))
        (node,) = np.flatnonzero(self.layout.opened == domain).tolist()
        above = int(self.layout.domains[node])
        slots = slice(int(self.base[node]), int(self.base[node] + self.counts[above]))
        return np.repeat(self._owners(above), np.where(self.valid[slots], self.more[slots], 0))
