"""Schemas of Kafka messages, derived once from kio's dataclasses.

Before: kio's classes, one per message and version.  After: message_writer.py, which generates code from a Shape, and
tagged_fields.py, which traverses bytes by it. kio keeps a field's type in three places (annotation, metadata, class of
the default); here it is one flat value, and durations and times are plain milliseconds.
"""

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

from kio.static.protocol import Entity

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}
"""Kinds of fixed size, with their struct format. All other kinds are "string", "bytes", "records" and "struct"."""

NUMBERS: Final = FIXED.keys() - {"bool", "uuid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One field. `nullable` refers to the field itself: the items of an array are never null."""

    name: str
    kind: str
    shape: "Shape | None"  # of a struct
    array: bool
    nullable: bool
    tag: int | None
    default: Any  # written for a missing value; for a struct, a mapping

    def item(self) -> "Slot":
        """Returns the slot of one item of this array."""
        return replace(self, array=False, nullable=self.kind == "uuid")

    def present(self) -> "Slot":
        """Returns the slot of this tagged field if it is present: then it cannot be null."""
        return replace(self, nullable=self.kind == "uuid" and not self.array)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One message, or one struct of it. Flexible: compact lengths, and a section of tagged fields at the end."""

    name: str
    version: int
    flexible: bool
    slots: tuple[Slot, ...]  # in the order of the wire
    tagged: tuple[Slot, ...]  # by ascending tag


@cache
def shape_of(entity_type: type[Entity]) -> Shape:
    slots = [_slot(field) for field in fields(entity_type)]
    return Shape(
        name=entity_type.__name__,
        version=int(entity_type.__version__),
        flexible=entity_type.__flexible__,
        slots=tuple(slot for slot in slots if slot.tag is None),
        tagged=tuple(sorted((slot for slot in slots if slot.tag is not None), key=lambda slot: slot.tag or 0)),
    )


def _slot(field: Field[Any]) -> Slot:
    inner, nullable = _without_none(field.type)
    array = get_origin(inner) is tuple
    if array:
        inner, _ = _without_none(get_args(inner)[0])
    struct = is_dataclass(inner)
    kind = "struct" if struct else field.metadata["kafka_type"]
    if kind == "uuid" and not array:
        nullable = True  # null is encoded as the zero uuid
    return Slot(
        name=field.name,
        kind=kind,
        shape=shape_of(inner) if struct else None,
        array=array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=_default(field, kind, array=array, nullable=nullable),
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """`X | None` → X, True."""
    if get_origin(annotation) is not UnionType:
        return annotation, False
    (inner,) = (part for part in get_args(annotation) if part is not NoneType)
    return inner, True


def _default(field: Field[Any], kind: str, *, array: bool, nullable: bool) -> Any:
    """Returns the schema's default as a plain value, or else the type's.

    A nullable list without a default is empty, as in Kafka's own code: Kafka's admin client fails on null lists.
    """
    default = field.default
    if default is MISSING:
        return () if array else None if nullable else _IMPLICIT.get(kind, 0)
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    if is_dataclass(default):
        return {}  # kio's default structs have the defaults of their fields
    if isinstance(default, bool) or not isinstance(default, int):
        return default
    return int(default)


_IMPLICIT: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "struct": {},
}
