"""Compares the keywords of two schemas for arrays. compare_objects.py defines open, closed and partially open."""

from lakestream.schemas.json.compare_objects import SchemaComparison, compare_rest
from lakestream.schemas.json.compare_scalars import bounds
from lakestream.schemas.json.incompatibilities import Incompatibility, below
from lakestream.schemas.json.references import Subschema
from lakestream.schemas.json.schema_kind import ClassifiedSchema, SchemaKind, classify


def compare(comparison: SchemaComparison, old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    found = below(comparison.between(schema_of_items(old), schema_of_items(new)), "items")
    found += _in_places(comparison, old, new)
    for keyword, name in ((_rest_keyword, "ADDITIONAL_ITEMS"), (lambda _: "unevaluatedItems", "UNEVALUATED_ITEMS")):
        found += compare_rest(comparison, old.below(keyword(old)), new.below(keyword(new)), keyword(new), name)
    if new.keyword("uniqueItems") is True and old.keyword("uniqueItems") is not True:
        found.append(Incompatibility("UNIQUE_ITEMS_ADDED", ("uniqueItems",)))
    return found + bounds(old, new, "maxItems", "minItems", "maxContains", "minContains")


def item_schemas(schema: ClassifiedSchema) -> list[Subschema]:
    """Returns the schemas of the first items, where each has its own."""
    items = schema.keyword("prefixItems")
    if not isinstance(items, list):
        items = schema.keyword("items")
    return [schema.subschema.below(part) for part in items] if isinstance(items, list) else []


def schema_of_items(schema: ClassifiedSchema) -> Subschema | None:
    """Returns the schema that all items share."""
    return None if item_schemas(schema) else schema.below("items")


def _rest_keyword(schema: ClassifiedSchema) -> str:
    return "items" if isinstance(schema.keyword("prefixItems"), list) else "additionalItems"


def _rest(schema: ClassifiedSchema) -> Subschema | None:
    """Returns the schema of the items after those with their own schemas."""
    rest = schema.below(_rest_keyword(schema))
    return rest if rest is not None else schema.below("unevaluatedItems")


def _in_places(comparison: SchemaComparison, old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    before, after = item_schemas(old), item_schemas(new)
    found = []
    for position in range(max(len(before), len(after))):
        if position >= len(after):
            one = _removed(comparison, before[position], _rest(new))
        elif position >= len(before):
            one = _added(comparison, _rest(old), after[position])
        else:
            one = comparison.between(before[position], after[position])
        found += below(one, f"items/{position}")
    return found


def _removed(comparison: SchemaComparison, before: Subschema, rest: Subschema | None) -> list[Incompatibility]:
    if rest is None or classify(rest).kind is SchemaKind.ANYTHING:
        return []
    if classify(rest).kind is SchemaKind.NOTHING:
        return (
            []
            if classify(before).kind is SchemaKind.NOTHING
            else [Incompatibility("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL")]
        )
    found = comparison.between(before, rest)
    return [*found, Incompatibility("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")] if found else []


def _added(comparison: SchemaComparison, rest: Subschema | None, after: Subschema) -> list[Incompatibility]:
    if rest is None or classify(rest).kind is SchemaKind.ANYTHING:
        return (
            [] if classify(after).kind is SchemaKind.ANYTHING else [Incompatibility("ITEM_ADDED_TO_OPEN_CONTENT_MODEL")]
        )
    if classify(rest).kind is SchemaKind.NOTHING:
        return []
    found = comparison.between(rest, after)
    return [*found, Incompatibility("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")] if found else []
