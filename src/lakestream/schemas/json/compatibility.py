"""Compatibility of two JSON Schemas by Confluent's rules, as a list of incompatibilities with their paths.

`old` is the schema that values were written with, `new` the schema of the reader. A change that allows more values is
compatible; a change that may reject a value that was valid is an incompatibility. `compare_objects.py`,
`compare_arrays.py` and `compare_scalars.py` compare schemas of one kind. This module compares kinds and combinations,
and limits the work.

Definitions may be recursive. A pair of schemas whose comparison is in progress is assumed to be compatible. If a pair
was assumed compatible and incompatible pairs were found, the comparison is repeated, starting with the incompatible
pairs found so far, until no pair is added.
"""

from typing import Final

from lakestream.errors import Rejected
from lakestream.schemas.json import compare_arrays, compare_objects, compare_scalars
from lakestream.schemas.json.incompatibilities import INCOMPATIBILITIES_MAX, Incompatibility, below
from lakestream.schemas.json.references import Subschema
from lakestream.schemas.json.schema_kind import ALL, ANY, ONE, AnySchema, ClassifiedSchema, SchemaKind, classify

PAIRS_MAX: Final = 50_000
"""Real schemas need far fewer comparisons."""

DEPTH_MAX: Final = 150
"""Of nested pairs. Each takes up to five of Python's 1,000 stack frames. A stack overflow inside `referencing` is a
panic of its Rust part, which is not an Exception."""

_Pair = tuple[tuple[int, str], tuple[int, str]]


def find_incompatibilities(old: Subschema, new: Subschema) -> list[str]:
    """Returns the incompatibilities. Rejected if the schemas are too complex to compare."""
    incompatible: dict[_Pair, list[Incompatibility]] = {}
    try:
        while True:
            comparison = Comparison(incompatible)
            found = comparison.between(old, new)
            added = {pair: why for pair, why in comparison.done.items() if why and pair not in incompatible}
            if not comparison.has_assumed or not added:
                return [str(incompatibility) for incompatibility in found]
            incompatible |= added
    except RecursionError:
        raise Rejected("the schemas are nested too deeply to be compared") from None


class Comparison:
    def __init__(self, incompatible: dict[_Pair, list[Incompatibility]]) -> None:
        """`incompatible`: pairs that are known to be incompatible, with the reasons."""
        self.done: dict[_Pair, list[Incompatibility]] = {}
        self.has_assumed = False
        """Whether a pair was assumed compatible while its comparison was in progress."""
        self._incompatible = incompatible
        self._under_way: set[_Pair] = set()

    def between(self, old_schema: AnySchema | None, new_schema: AnySchema | None) -> list[Incompatibility]:
        """Compares two schemas. The result is empty if the new schema allows every value of the old one."""
        if new_schema is None:
            return []
        if old_schema is None:
            return [] if classify(new_schema).kind is SchemaKind.ANYTHING else [Incompatibility("SCHEMA_ADDED")]
        old, new = classify(old_schema), classify(new_schema)
        pair = old.key, new.key
        if pair in self.done:
            return self.done[pair]
        if pair in self._under_way:
            self.has_assumed = True
            return self._incompatible.get(pair, [])
        if len(self.done) + len(self._under_way) >= PAIRS_MAX:
            raise Rejected(f"comparing the schemas takes more than {PAIRS_MAX} pairs of subschemas: make them smaller")
        if len(self._under_way) >= DEPTH_MAX:
            raise Rejected(
                f"the schemas are nested deeper than {DEPTH_MAX} levels and cannot be compared: reduce the nesting"
            )
        self._under_way.add(pair)
        found = self._compared(old, new)[:INCOMPATIBILITIES_MAX]
        self._under_way.discard(pair)
        self.done[pair] = found
        return found

    def _compared(self, old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
        if old.kind is not SchemaKind.COMBINED and new.kind is SchemaKind.COMBINED and self._fits_some_part(old, new):
            return []
        if old.kind is SchemaKind.COMBINED and new.kind is not SchemaKind.COMBINED and self._some_part_fits(old, new):
            return []
        if old.kind is not new.kind:
            return [] if _is_exempt(old, new) else [Incompatibility("TYPE_CHANGED")]
        match old.kind:
            case SchemaKind.COMBINED:
                return self._combined(old, new)
            case SchemaKind.OBJECT:
                return compare_objects.compare(self, old, new)
            case SchemaKind.ARRAY:
                return compare_arrays.compare(self, old, new)
            case SchemaKind.NOT:
                fits = not self.between(new.below("not"), old.below("not"))
                return [] if fits else [Incompatibility("NOT_TYPE_EXTENDED", ("not",))]
            case _:
                return compare_scalars.compare(old, new)

    def _fits_some_part(self, old: ClassifiedSchema, new: ClassifiedSchema) -> bool:
        if len(new.parts) > 1 and new.criterion == ALL:
            return False
        return any(not self.between(old, part) for part in new.parts)

    def _some_part_fits(self, old: ClassifiedSchema, new: ClassifiedSchema) -> bool:
        if len(old.parts) > 1 and old.criterion != ALL:
            return False
        return any(not self.between(part, new) for part in old.parts)

    def _combined(self, old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
        if old.criterion != new.criterion and not _may_become(old, new):
            return [Incompatibility("COMBINED_TYPE_CHANGED")]
        olds, news = _distinct(old), _distinct(new)
        found = []
        if len(olds) < len(news) and new.criterion == ALL:
            found.append(Incompatibility("PRODUCT_TYPE_EXTENDED"))
        if len(olds) > len(news) and old.criterion != ALL:
            found.append(Incompatibility("SUM_TYPE_NARROWED"))
        fitting = [[position for position, part in enumerate(news) if not self.between(one, part)] for one in olds]
        if _maximum_matching(fitting) < min(len(olds), len(news)):
            if len(olds) == len(news) == 1:
                found += below(self.between(olds[0], news[0]), f"{old.criterion}/0")
            found.append(Incompatibility("COMBINED_TYPE_SUBSCHEMAS_CHANGED"))
        return found


def _is_exempt(old: ClassifiedSchema, new: ClassifiedSchema) -> bool:
    """Returns whether two kinds are compatible although they differ. Two encodings of bytes by Kafka Connect are."""
    if old.kind is SchemaKind.NOTHING or new.kind is SchemaKind.ANYTHING:
        return True
    return all(
        isinstance(one.subschema.contents, dict) and one.keyword("connect.type") == "bytes" for one in (old, new)
    )


def _may_become(old: ClassifiedSchema, new: ClassifiedSchema) -> bool:
    """Returns whether the new combination allows all values of the old one, provided that their schemas are
    compatible."""
    if new.criterion == ANY:
        return True
    if len(old.parts) == 1 and (len(new.parts) == 1 or new.criterion == ONE):
        return True
    return len(new.parts) == 1 and old.criterion == ALL


def _distinct(combined: ClassifiedSchema) -> list[ClassifiedSchema]:
    """Returns the schemas of a combination without duplicates."""
    kept: list[ClassifiedSchema] = []
    for part in map(classify, combined.parts):
        if not any(one.aspect == part.aspect and one.subschema.contents == part.subschema.contents for one in kept):
            kept.append(part)
    return kept


def _maximum_matching(fitting: list[list[int]]) -> int:
    """Returns the size of a maximum bipartite matching. `fitting` lists, for each left node, its right neighbours."""
    matched: dict[int, int] = {}

    def augment(left: int, tried: set[int]) -> bool:
        for right in fitting[left]:
            if right not in tried:
                tried.add(right)
                if right not in matched or augment(matched[right], tried):
                    matched[right] = left
                    return True
        return False

    return sum(augment(left, set()) for left in range(len(fitting)))
