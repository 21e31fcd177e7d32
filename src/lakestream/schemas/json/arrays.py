"""What two schemas say of arrays, compared. Open, closed and partially open are meant as for properties."""

from lakestream.schemas.json.changes import Trouble, below
from lakestream.schemas.json.documents import Place
from lakestream.schemas.json.objects import Compares, of_the_rest
from lakestream.schemas.json.scalars import bounds
from lakestream.schemas.json.sorts import Sort, Sorted, sort_of


def troubles(comparison: Compares, old: Sorted, new: Sorted) -> list[Trouble]:
    found = below(comparison.between(every(old), every(new)), "items")
    found += _in_places(comparison, old, new)
    for word, name in ((_rest_word, "ADDITIONAL_ITEMS"), (lambda _: "unevaluatedItems", "UNEVALUATED_ITEMS")):
        found += of_the_rest(comparison, old.below(word(old)), new.below(word(new)), word(new), name)
    if new.word("uniqueItems") is True and old.word("uniqueItems") is not True:
        found.append(Trouble("UNIQUE_ITEMS_ADDED", ("uniqueItems",)))
    return found + bounds(old, new, "maxItems", "minItems", "maxContains", "minContains")


def in_places(schema: Sorted) -> list[Place]:
    """The schemas of the first items, each its own."""
    items = schema.word("prefixItems")
    if not isinstance(items, list):
        items = schema.word("items")
    return [schema.place.below(part) for part in items] if isinstance(items, list) else []


def every(schema: Sorted) -> Place | None:
    """The schema of all items."""
    return None if in_places(schema) else schema.below("items")


def _rest_word(schema: Sorted) -> str:
    return "items" if isinstance(schema.word("prefixItems"), list) else "additionalItems"


def _rest(schema: Sorted) -> Place | None:
    """The schema of items behind those that have one of their own."""
    rest = schema.below(_rest_word(schema))
    return rest if rest is not None else schema.below("unevaluatedItems")


def _in_places(comparison: Compares, old: Sorted, new: Sorted) -> list[Trouble]:
    before, after = in_places(old), in_places(new)
    found = []
    for place in range(max(len(before), len(after))):
        if place >= len(after):
            one = _removed(comparison, before[place], _rest(new))
        elif place >= len(before):
            one = _added(comparison, _rest(old), after[place])
        else:
            one = comparison.between(before[place], after[place])
        found += below(one, f"items/{place}")
    return found


def _removed(comparison: Compares, before: Place, rest: Place | None) -> list[Trouble]:
    if rest is None or sort_of(rest).sort is Sort.ANYTHING:
        return []
    if sort_of(rest).sort is Sort.NOTHING:
        return [] if sort_of(before).sort is Sort.NOTHING else [Trouble("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL")]
    misfits = comparison.between(before, rest)
    return [*misfits, Trouble("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")] if misfits else []


def _added(comparison: Compares, rest: Place | None, after: Place) -> list[Trouble]:
    if rest is None or sort_of(rest).sort is Sort.ANYTHING:
        return [] if sort_of(after).sort is Sort.ANYTHING else [Trouble("ITEM_ADDED_TO_OPEN_CONTENT_MODEL")]
    if sort_of(rest).sort is Sort.NOTHING:
        return []
    misfits = comparison.between(rest, after)
    return [*misfits, Trouble("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")] if misfits else []
