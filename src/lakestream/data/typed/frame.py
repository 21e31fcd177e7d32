"""Decoded values in plain arrays that kernels can fill and read: between the bytes of a format and Arrow's columns.

The types of a shape become *nodes*, numbered in pre-order; node 0 is the struct of the whole value. Every list and
every map opens a *domain* of its own, numbered in the order of their nodes; domain 0 has one row for each value,
another has one row for each element of any of the lists. A node has one slot for every row of its domain: slot
`base[node] + row` of three arrays.

| node                                      | valid  | bits                        | more                             |
|-------------------------------------------|--------|-----------------------------|----------------------------------|
| BOOLEAN INT LONG DATE TIME TIMESTAMP(TZ)  | 1 or 0 | the number, Iceberg's unit  |                                  |
| FLOAT                                     | 1 or 0 | its 32 bits                 |                                  |
| DOUBLE                                    | 1 or 0 | its 64 bits                 |                                  |
| STRING UUID FIXED BINARY                  | 1 or 0 | address of the bytes        | how many they are                |
| DECIMAL                                   | 1 or 0 | low 64 bits                 | high 64 bits, two's complement   |
| STRUCT                                    | 1 or 0 |                             |                                  |
| LIST MAP                                  | 1 or 0 | first row in its domain     | how many rows                    |

Where `valid` is 0 the rest means nothing, and so it does in all nodes below (kernels leave `valid` 0 there, too).
STRING is UTF-8: a kernel looks before it says so. A list's element is the node behind it; a map's key is the node
behind it, its value the one behind that.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.schemas.shape import Kind, ListOf, MapOf, Primitive, Struct, Type, children

STRUCT: Final = 0
LIST: Final = 1
MAP: Final = 2
KINDS: Final = {kind: number for number, kind in enumerate(Kind, 3)}
"""Of nodes, as kernels number them."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The nodes of a shape. One array a column of the table of nodes."""

    shape: Struct
    types: tuple[Type, ...]
    kinds: Longs
    domains: Longs
    """The domain that a node's slots belong to."""
    opened: Longs
    """The domain that a list or map opens; -1: none."""
    ends: Longs
    """The node behind the last one below this."""
    domain_count: int

    @classmethod
    def of(cls, shape: Struct) -> "Layout":
        walk = _Walk()
        walk.visit(shape, 0)
        kinds, domains, opened, ends = (
            np.array(row, np.int64) for row in (walk.kinds, walk.domains, walk.opened, walk.ends)
        )
        return cls(shape, tuple(walk.types), kinds, domains, opened, ends, walk.domain_count)

    def __len__(self) -> int:
        return len(self.types)


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
class Frame:
    layout: Layout
    counts: Longs
    """Rows of each domain."""
    base: Longs
    """The first slot of each node."""
    valid: NDArray[np.uint8]
    bits: Longs
    more: Longs

    @classmethod
    def empty(cls, layout: Layout, counts: Longs) -> "Frame":
        """With room for so many rows in each domain, all of them null."""
        sizes = counts[layout.domains]
        slots = int(sizes.sum())
        base = np.cumsum(sizes) - sizes
        # From Arrow's pool, which keeps pages: fresh ones cost as much as filling them.
        bits, more = (np.frombuffer(pa.allocate_buffer(8 * slots), np.int64) for _ in range(2))
        return cls(layout, counts, base, np.zeros(slots, np.uint8), bits, more)

    def __len__(self) -> int:
        return int(self.counts[0])

    def values_at(self, slots: Longs) -> Longs:
        """The value that each of these slots belongs to, if rows stand in the order of their values."""
        nodes = np.searchsorted(self.base, slots, side="right") - 1
        rows, domains = slots - self.base[nodes], self.layout.domains[nodes]
        found = np.empty(slots.size, np.int64)
        for domain in np.unique(domains).tolist():
            here = domains == domain
            found[here] = self._owners(domain)[rows[here]]
        return found

    def _owners(self, domain: int) -> Longs:
        """The value that each row of a domain belongs to."""
        if domain == 0:
            return np.arange(len(self))
        (node,) = np.flatnonzero(self.layout.opened == domain).tolist()
        above = int(self.layout.domains[node])
        slots = slice(int(self.base[node]), int(self.base[node] + self.counts[above]))
        return np.repeat(self._owners(above), np.where(self.valid[slots], self.more[slots], 0))
