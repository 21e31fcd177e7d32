"""Whether values of one schema are values of another: Confluent's rules for JSON Schema, as troubles with their paths.

`old` is what values were written with, `new` what wants to read them. A change that lets more values through is none of
our business; one that may refuse a value that was fine is a trouble. What each sort says is compared in `objects.py`,
`arrays.py` and `scalars.py`; here stand the types themselves, combinations, and what keeps it finite.

Definitions may refer to one another in circles. A pair that is being compared already is taken to fit; if that was too
kind, all is compared again, with the pairs that were found not to fit known from the start, until nothing is added.
"""

from typing import Final

from lakestream.errors import Rejected
from lakestream.schemas.json import arrays, objects, scalars
from lakestream.schemas.json.changes import Trouble, below
from lakestream.schemas.json.documents import Place
from lakestream.schemas.json.sorts import ALL, ANY, ONE, Look, Sort, Sorted, sort_of

PAIRS_MAX: Final = 50_000
"""Two schemas that need more are not what people write."""
TROUBLES_MAX: Final = 100

_Pair = tuple[tuple[int, str], tuple[int, str]]


def troubles(old: Place, new: Place) -> list[str]:
    """Rejected: they are too intricate to be compared."""
    known: dict[_Pair, list[Trouble]] = {}
    try:
        while True:
            comparison = Comparison(known)
            found = comparison.between(old, new)
            misfits = {pair: parts for pair, parts in comparison.done.items() if parts}
            if not comparison.was_kind or misfits.keys() == known.keys():
                return [str(trouble) for trouble in found]
            known = misfits
    except RecursionError:
        raise Rejected("the schemas are nested too deep to be compared") from None


class Comparison:
    def __init__(self, known: dict[_Pair, list[Trouble]]) -> None:
        self.done: dict[_Pair, list[Trouble]] = {}
        self.was_kind = False
        self._known = known
        self._under_way: set[_Pair] = set()

    def between(self, old_look: Look | None, new_look: Look | None) -> list[Trouble]:
        """Empty: whatever the old schema allows, the new one does."""
        if new_look is None:
            return []
        if old_look is None:
            return [] if sort_of(new_look).sort is Sort.ANYTHING else [Trouble("SCHEMA_ADDED")]
        old, new = sort_of(old_look), sort_of(new_look)
        pair = old.key, new.key
        if pair in self.done:
            return self.done[pair]
        if pair in self._under_way:
            self.was_kind = True
            return self._known.get(pair, [])
        if len(self.done) + len(self._under_way) >= PAIRS_MAX:
            raise Rejected(f"the schemas are too intricate: more than {PAIRS_MAX} pairs of their parts need comparing")
        self._under_way.add(pair)
        found = self._compared(old, new)[:TROUBLES_MAX]
        self._under_way.discard(pair)
        self.done[pair] = found
        return found

    def _compared(self, old: Sorted, new: Sorted) -> list[Trouble]:
        if old.sort is not Sort.COMBINED and new.sort is Sort.COMBINED and self._fits_one(old, new):
            return []
        if old.sort is Sort.COMBINED and new.sort is not Sort.COMBINED and self._one_fits(old, new):
            return []
        if old.sort is not new.sort:
            return [] if _is_fine_anyway(old, new) else [Trouble("TYPE_CHANGED")]
        match old.sort:
            case Sort.COMBINED:
                return self._combined(old, new)
            case Sort.OBJECT:
                return objects.troubles(self, old, new)
            case Sort.ARRAY:
                return arrays.troubles(self, old, new)
            case Sort.NOT:
                fits = not self.between(new.below("not"), old.below("not"))
                return [] if fits else [Trouble("NOT_TYPE_EXTENDED", ("not",))]
            case _:
                return scalars.troubles(old, new)

    def _fits_one(self, old: Sorted, new: Sorted) -> bool:
        if len(new.parts) > 1 and new.criterion == ALL:
            return False
        return any(not self.between(old, part) for part in new.parts)

    def _one_fits(self, old: Sorted, new: Sorted) -> bool:
        if len(old.parts) > 1 and old.criterion != ALL:
            return False
        return any(not self.between(part, new) for part in old.parts)

    def _combined(self, old: Sorted, new: Sorted) -> list[Trouble]:
        if old.criterion != new.criterion and not _may_become(old, new):
            return [Trouble("COMBINED_TYPE_CHANGED")]
        olds, news = _distinct(old), _distinct(new)
        found = []
        if len(olds) < len(news) and new.criterion == ALL:
            found.append(Trouble("PRODUCT_TYPE_EXTENDED"))
        if len(olds) > len(news) and old.criterion != ALL:
            found.append(Trouble("SUM_TYPE_NARROWED"))
        fits = [[place for place, part in enumerate(news) if not self.between(one, part)] for one in olds]
        if _pairs_at_most(fits) < min(len(olds), len(news)):
            if len(olds) == len(news) == 1:
                found += below(self.between(olds[0], news[0]), f"{old.criterion}/0")
            found.append(Trouble("COMBINED_TYPE_SUBSCHEMAS_CHANGED"))
        return found


def _is_fine_anyway(old: Sorted, new: Sorted) -> bool:
    """Also between two ways to write bytes, as Kafka Connect does it."""
    if old.sort is Sort.NOTHING or new.sort is Sort.ANYTHING:
        return True
    return all(isinstance(one.place.contents, dict) and one.word("connect.type") == "bytes" for one in (old, new))


def _may_become(old: Sorted, new: Sorted) -> bool:
    """Whether one way to combine schemas allows all that another does, as long as the schemas fit."""
    if new.criterion == ANY:
        return True
    if len(old.parts) == 1 and (len(new.parts) == 1 or new.criterion == ONE):
        return True
    return len(new.parts) == 1 and old.criterion == ALL


def _distinct(combined: Sorted) -> list[Sorted]:
    """Its schemas without those that say the same as one before."""
    kept: list[Sorted] = []
    for part in map(sort_of, combined.parts):
        if not any(one.aspect == part.aspect and one.place.contents == part.place.contents for one in kept):
            kept.append(part)
    return kept


def _pairs_at_most(fits: list[list[int]]) -> int:
    """How many on the left can have a partner of their own on the right. `fits`: who would fit each."""
    taken: dict[int, int] = {}

    def found_for(one: int, tried: set[int]) -> bool:
        for other in fits[one]:
            if other not in tried:
                tried.add(other)
                if other not in taken or found_for(taken[other], tried):
                    taken[other] = one
                    return True
        return False

    return sum(found_for(one, set()) for one in range(len(fits)))
