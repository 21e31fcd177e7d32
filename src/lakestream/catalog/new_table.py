"""A new table as the updates that make it: one way into the metadata for every table, new or old. Pure."""

from collections.abc import Mapping

from lakestream.catalog import updates as u
from lakestream.catalog.draft import FORMAT_VERSION_DEFAULT, LAST_ADDED
from lakestream.catalog.layouts import UNPARTITIONED, UNSORTED, check_order, check_spec, resourced
from lakestream.catalog.schemas import check_schema, with_fresh_ids
from lakestream.catalog.shapes import FORMAT_VERSION_MAX, Json
from lakestream.errors import Rejected

FORMAT_VERSION: str = "format-version"
"""Asked for as a property, kept as a field."""


def creation(
    *,
    uuid: str,
    location: str,
    schema: Json,
    spec: Json | None = None,
    order: Json | None = None,
    properties: Mapping[str, str] | None = None,
    fresh_ids: bool = False,
) -> list[u.Update]:
    """`fresh_ids`: number columns from 1 on, as catalogs do with what clients send; else the given ids are kept."""
    asked = dict(properties or {})
    version = _version(asked.pop(FORMAT_VERSION, ""))
    check_schema(schema, version)
    spec, order = spec or UNPARTITIONED, order or UNSORTED
    if fresh_ids:
        check_spec(spec, schema)
        check_order(order, schema)
        schema, given = with_fresh_ids(schema)
        spec, order = _unnumbered(resourced(spec, given)), resourced(order, given)
    made: list[u.Update] = [
        u.AssignUuid(uuid),
        u.UpgradeFormatVersion(version),
        u.AddSchema(schema),
        u.SetCurrentSchema(LAST_ADDED),
        u.AddSpec(spec),
        u.SetDefaultSpec(LAST_ADDED),
        # Also where there is another: Spark's rewrite of files into some other order looks for it, and fails without.
        u.AddSortOrder(UNSORTED),
        u.AddSortOrder(order),
        u.SetDefaultSortOrder(LAST_ADDED),
        u.SetLocation(location),
    ]
    return [*made, u.SetProperties(asked)] if asked else made


def _version(text: str) -> int:
    if not text:
        return FORMAT_VERSION_DEFAULT
    if not text.isdecimal() or len(text) > 2 or not 1 <= int(text) <= FORMAT_VERSION_MAX:
        raise Rejected(f"format-version is {text[:20]!r}: choose 1 to {FORMAT_VERSION_MAX}")
    return int(text)


def _unnumbered(spec: Json) -> Json:
    return {
        **spec,
        "fields": [{name: part for name, part in field.items() if name != "field-id"} for field in spec["fields"]],
    }
