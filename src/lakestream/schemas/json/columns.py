"""From a JSON Schema to the parts that columns are made of (`parts.py`).

It asks only what values may *look* like: bounds, patterns and the like narrow values, not columns.
`oneOf` and `anyOf` of records are one record with all their keys, `allOf` too; of scalars, several variants. What a
schema does not say may be anything and is kept as the text it is, and so is what is nested in itself.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from lakestream.schemas.json.arrays import every, in_places
from lakestream.schemas.json.documents import Place
from lakestream.schemas.json.parts import (
    NOTHING,
    RAW,
    Many,
    Named,
    Part,
    Read,
    Record,
    Scalar,
    Variant,
    joined,
    json_of,
    shape_of,
    single,
)
from lakestream.schemas.json.sorts import ALL, ANY, ONE, Sort, Sorted, types_of

DEPTH_MAX: Final = 30
PARTS_MAX: Final = 4_000
"""A schema may name its definitions again and again: they are columns each time."""
KEYS_MAX: Final = 1_000
"""Of one record."""

_FORMATS: Final = {"date": Read.DATE, "time": Read.TIME, "date-time": Read.TIMESTAMP, "uuid": Read.UUID}
_CONNECT: Final = {
    "org.apache.kafka.connect.data.Date": Read.DAYS,
    "org.apache.kafka.connect.data.Time": Read.MILLIS_OF_DAY,
    "org.apache.kafka.connect.data.Timestamp": Read.MILLIS,
}
_INTS: Final = ("int8", "int16", "int32")
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_DIGITS_MAX: Final = 38
_OBJECT_WORDS: Final = ("properties", "additionalProperties", "patternProperties")
_ARRAY_WORDS: Final = ("items", "prefixItems")


def part_of(place: Place) -> Part:
    part = _Walk().part(place, ())
    return RAW if part is None else part


@dataclass(slots=True)
class _Walk:
    count: int = field(default=0)

    def part(self, place: Place, above: tuple[int, ...]) -> Part | None:
        """None: the schema says nothing of it."""
        self.count += 1
        contents = place.contents
        if isinstance(contents, bool):
            return None if contents else NOTHING
        if id(contents) in above or len(above) >= DEPTH_MAX or self.count > PARTS_MAX:
            return RAW
        above = (*above, id(contents))
        if place.ref is None:
            return self._said(place, above)
        led = self.part(place.follow(), above)
        return led if place.is_only_ref else _both(self._said(place.beside_ref(), above), led)

    def _said(self, place: Place, above: tuple[int, ...]) -> Part | None:
        part = self._typed(place, above)
        for one in self._parts(place, ALL, above):
            part = _both(part, one)
        for criterion in (ANY, ONE):
            choices = self._parts(place, criterion, above)
            if choices:
                part = _both(part, _any_of(choices))
        return _bounded(part)

    def _parts(self, place: Place, criterion: str, above: tuple[int, ...]) -> list[Part | None]:
        parts = place.contents.get(criterion)
        return [self.part(place.below(one), above) for one in parts] if isinstance(parts, list) else []

    def _typed(self, place: Place, above: tuple[int, ...]) -> Part | None:
        contents = place.contents
        types = types_of(contents)
        if not types:
            types = _implied(contents)
        if not types:
            return None
        variants: list[Variant] = []
        for kind in types:
            variant = self._variant(place, kind, above)
            if variant == Scalar(Read.RAW):
                return RAW
            if variant is not None and all(json_of(variant) != json_of(other) for other in variants):
                variants.append(variant)
        return Part(tuple(variants))

    def _variant(self, place: Place, kind: str, above: tuple[int, ...]) -> Variant | None:
        match kind:
            case "boolean":
                return Scalar(Read.BOOLEAN)
            case "integer":
                return Scalar(_integer(place.contents))
            case "number":
                return _number(place.contents)
            case "string":
                return Scalar(_string(place.contents))
            case "array":
                return self._array(Sorted(Sort.ARRAY, place), above)
            case "object":
                return self._object(Sorted(Sort.OBJECT, place), above)
            case _:
                return None

    def _array(self, schema: Sorted, above: tuple[int, ...]) -> Variant | None:
        if schema.word("maxItems") == 0:
            return None
        items: list[Place | None] = [*in_places(schema)] or [every(schema)]
        return Many(single(_any_of([None if item is None else self.part(item, above) for item in items]) or RAW))

    def _object(self, schema: Sorted, above: tuple[int, ...]) -> Variant | None:
        if schema.word("maxProperties") == 0:
            return None
        named = schema.named("properties")
        if named and len(named) <= KEYS_MAX:
            keys = [(key, self.part(place, above)) for key, place in named.items()]
            return Record(tuple((key, RAW if part is None else part) for key, part in keys))
        others = list(schema.named("patternProperties").values())
        if isinstance(rest := schema.word("additionalProperties"), dict):
            others.append(schema.place.below(rest))
        if named or not others:
            return Scalar(Read.RAW)
        return Named(single(_any_of([self.part(place, above) for place in others]) or RAW))


def _implied(contents: dict[str, Any]) -> list[str]:
    """Types that a schema has without saying so."""
    if "const" in contents:
        return [_type_of(contents["const"])]
    if isinstance(values := contents.get("enum"), list):
        types = list(dict.fromkeys(_type_of(value) for value in values))
        return [kind for kind in types if kind != "integer" or "number" not in types]
    types = ["object"] if any(word in contents for word in _OBJECT_WORDS) else []
    return types + (["array"] if any(word in contents for word in _ARRAY_WORDS) else [])


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _integer(contents: dict[str, Any]) -> Read:
    """As Kafka Connect's converter hints at it."""
    read = _CONNECT.get(str(contents.get("title")))
    if read is not None and "connect.type" in contents:
        return read
    return Read.INT if contents.get("connect.type") in _INTS else Read.LONG


def _number(contents: dict[str, Any]) -> Scalar:
    """Likewise."""
    match contents.get("connect.type"):
        case "float32":
            return Scalar(Read.FLOAT)
        case "bytes" if contents.get("title") == _DECIMAL:
            return _decimal(contents.get("connect.parameters")) or Scalar(Read.DOUBLE)
        case _:
            return Scalar(Read.DOUBLE)


def _decimal(parameters: Any) -> Scalar | None:
    """Parameters are texts. None: they do not say its scale, or no column has so many digits."""
    if not isinstance(parameters, dict):
        return None
    try:
        scale = int(str(parameters["scale"]))
        precision = int(str(parameters.get("connect.decimal.precision", _DIGITS_MAX)))
    except (KeyError, ValueError):
        return None
    return Scalar(Read.DECIMAL, precision, scale) if 0 <= scale <= precision <= _DIGITS_MAX and precision else None


def _string(contents: dict[str, Any]) -> Read:
    if (read := _FORMATS.get(str(contents.get("format")))) is not None:
        return read
    is_base64 = contents.get("connect.type") == "bytes" or contents.get("contentEncoding") == "base64"
    return Read.BINARY if is_base64 else Read.STRING


def _any_of(parts: list[Part | None]) -> Part | None:
    """None: at least one may be anything."""
    result = NOTHING
    for part in parts:
        if part is None:
            return None
        result = joined(result, part)
    return result


def _both(one: Part | None, other: Part | None) -> Part | None:
    """What has to be both at once: each adds to what the other says."""
    if one is None or other is None:
        return one if other is None else other
    if RAW in (one, other):
        return other if one == RAW else one
    variants: list[Variant] = []
    for variant in one.variants:
        match variant, other.of(json_of(variant)):
            case Record() as mine, Record() as theirs:
                keys = dict(mine.keys)
                for key, part in theirs.keys:
                    keys[key] = (_both(keys[key], part) or part) if key in keys else part
                variants.append(Record(tuple(keys.items())))
            case mine, theirs:
                if theirs is not None or not other.variants or not one.variants:
                    variants.append(mine)
    return Part(tuple(variants)) if variants else one


def _bounded(part: Part | None) -> Part | None:
    """A record without a column, or with too many of them, is no record. A decimal is read alone, or as a double."""
    if part is None:
        return None
    if len(part.variants) > 1:
        part = Part(tuple(Scalar(Read.DOUBLE) if _is_decimal(one) else one for one in part.variants))
    for variant in part.variants:
        if isinstance(variant, Record) and (len(variant.keys) > KEYS_MAX or not _has_columns(variant)):
            return RAW
    return part


def _is_decimal(variant: Variant) -> bool:
    return isinstance(variant, Scalar) and variant.read is Read.DECIMAL


def _has_columns(record: Record) -> bool:
    return bool(shape_of(Part((record,))).fields)
