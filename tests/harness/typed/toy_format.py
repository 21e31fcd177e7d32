"""Minimal value format in plain Python, which tests conversion independently of the real formats.

A value is JSON, `[name, number, [number, …]]`, without spaces; null for missing fields. Any other value has a problem.
`named` has only the first field, `turned` has the first two in reverse order.
"""

import ctypes
import json
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.codec import Codec, Decoded
from lakestream.data.typed.column_buffers import ColumnBuffers, Layout
from lakestream.errors import Rejected
from lakestream.schemas.types import Field, Kind, ListOf, Primitive, Struct
from lakestream.schemas.writer_schema import WriterSchema

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

    def problems(self, values: ByteSpans) -> NDArray[np.int32]:
        return self.decode(values).problems

    def decode(self, values: ByteSpans, slots_max: int | None = None) -> Decoded:
        rows, problems = [], np.zeros(values.size.size, np.int32)
        for row, data in enumerate(bytes_of(values)):
            rows.append(None if data is None else self._row(data))
            problems[row] = PROBLEM if data is not None and rows[-1] is None else 0
        made = pa.array(rows, pa.struct([pa.field(field.name, _KINDS[field.name]) for field in self.shape.fields]))
        framed = from_arrow(made, self._layout)
        return Decoded(framed.buffers, 0, problems, framed.held)

    def encode(self, buffers: ColumnBuffers) -> ByteSpans:
        rows = to_arrow(buffers).to_pylist()
        made = [
            None if row is None else json.dumps([row[name] for name in self._names], separators=(",", ":")).encode()
            for row in rows
        ]
        return ByteSpans.of(pa.array(made, pa.binary()))

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


def tiny_codec(writer: WriterSchema) -> Codec:
    if writer.text not in SHAPES:
        raise Rejected(f"{writer.text} is no schema")
    return TinyCodec(SHAPES[writer.text])


def bytes_of(values: ByteSpans) -> list[bytes | None]:
    pairs = zip(values.address.tolist(), values.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in pairs]


def value(schema_id: int, *fields: Any) -> bytes:
    """Returns a value with the prefix, as a serializer writes it."""
    return b"\0" + schema_id.to_bytes(4, "big") + json.dumps(fields, separators=(",", ":")).encode()
