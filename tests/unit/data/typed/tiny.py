"""A format as small as can be, one value at a time in plain Python: what typing is tried with, whatever others do.

A value is JSON, `[name, number, [number, …]]`, without a space; null for what is missing. What is no such JSON has a
problem. `named` has only the first field, `wide` a double instead of the number.
"""

import ctypes
import json
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.located import Located
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.codec import Codec, Decoded
from lakestream.data.typed.frame import Frame, Layout
from lakestream.errors import Rejected
from lakestream.schemas.shape import Field, Kind, ListOf, Primitive, Struct
from lakestream.schemas.writers import Writer

NAME = Field("name", Primitive(Kind.STRING))
AGE = Field("age", Primitive(Kind.INT))
SIZES = Field("sizes", ListOf(Primitive(Kind.FLOAT)))
SHAPES = {"full": Struct((NAME, AGE, SIZES)), "named": Struct((NAME,)), "turned": Struct((AGE, NAME))}
PROBLEM = 7


class TinyCodec:
    def __init__(self, shape: Struct) -> None:
        self.shape = shape
        self._layout = Layout.of(shape)
        self._names = [field.name for field in shape.fields]

    def decode(self, values: Located) -> Decoded:
        rows, problems = [], np.zeros(values.size.size, np.int32)
        for row, data in enumerate(bytes_of(values)):
            rows.append(None if data is None else self._row(data))
            problems[row] = PROBLEM if data is not None and rows[-1] is None else 0
        made = pa.array(rows, pa.struct([pa.field(field.name, _KINDS[field.name]) for field in self.shape.fields]))
        framed = from_arrow(made, self._layout)
        return Decoded(framed.frame, problems, framed.held)

    def encode(self, frame: Frame) -> Located:
        rows = to_arrow(frame).to_pylist()
        made = [
            None if row is None else json.dumps([row[name] for name in self._names], separators=(",", ":")).encode()
            for row in rows
        ]
        return Located.of(pa.array(made, pa.binary()))

    def reason(self, problem: int) -> str:
        assert problem == PROBLEM
        return "it is no such list"

    def _row(self, data: bytes) -> dict[str, Any] | None:
        try:
            found = json.loads(data)
            row = dict(zip(self._names, found, strict=True))
            pa.array([row], pa.struct([pa.field(name, _KINDS[name]) for name in self._names]))
        except (ValueError, TypeError, pa.ArrowException):
            return None
        return row


_KINDS = {"name": pa.string(), "age": pa.int32(), "sizes": pa.list_(pa.float32())}


def tiny_codec(writer: Writer) -> Codec:
    if writer.text not in SHAPES:
        raise Rejected(f"{writer.text} is no schema")
    return TinyCodec(SHAPES[writer.text])


def bytes_of(values: Located) -> list[bytes | None]:
    pairs = zip(values.address.tolist(), values.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in pairs]


def value(schema_id: int, *fields: Any) -> bytes:
    """As a serializer sends it."""
    return b"\0" + schema_id.to_bytes(4, "big") + json.dumps(fields, separators=(",", ":")).encode()
