"""The table of a topic: made when its first records are moved, named like the topic, found by the topic's id.

Names are for people (topic_names.py); who is whose table is decided by ids.
"""

import logging
from collections.abc import Mapping
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import NoSuchTable, TableExists
from lakestream.catalog.names import TableName
from lakestream.catalog.next_offsets import NEXT_OFFSETS, TOPIC_ID, text_of
from lakestream.catalog.shapes import Json
from lakestream.catalog.table_properties import DEFAULTS
from lakestream.catalog.topic_layout import VALUE_ID, iceberg_schema
from lakestream.catalog.topic_names import make_room, name_of
from lakestream.catalog.topic_shape import ORDER, SPEC
from lakestream.errors import LakestreamError, Unavailable

log = logging.getLogger(__name__)

ON_DELETE_SETTING: Final = "lakestream.table.on.delete"
VALUE_SCHEMA_SETTING: Final = "lakestream.value.schema"
NO_SCHEMA: Final = "none"
TOPIC: Final = "lakestream.topic"
TRIES_MAX: Final = 10


async def ensure_table(catalog: Catalog, topic: str, topic_id: str, settings: Mapping[str, str]) -> LoadedTable:
    """The table of the topic, whoever makes it. TableExists: its name is that of a table which is no topic's."""
    name = name_of(topic, settings)
    for _ in range(TRIES_MAX):
        try:
            return await catalog.load_id(topic_id)
        except NoSuchTable:
            await make_room(catalog.pointers, name, topic_id)
        try:
            await _create(catalog, name, topic, topic_id, _first_schema(settings))
        except TableExists:
            continue  # another driver made it, or another topic's came back: look again
        if settings.get(ON_DELETE_SETTING) == "drop" and await catalog.topics.is_going(topic_id):
            # Who deletes the topic may have looked for its table before it was there.
            await topic_deleted(catalog, topic_id, drop=True)
            raise NoSuchTable(f"topic {topic} is being deleted, and its table with it")
    raise Unavailable(f"table {name} of topic {topic} comes and goes: try again")


async def topic_made(catalog: Catalog, topic: str, topic_id: str, settings: Mapping[str, str]) -> None:
    """What an older topic of that name left makes room at once: whoever looks for the new one's table before it has
    records would see the old one's. Where that fails, it is done, or told, when the first records are moved."""
    try:
        await make_room(catalog.pointers, name_of(topic, settings), topic_id)
    except LakestreamError as error:
        log.warning("catalog.no_room topic=%s error=%s", topic, error)


async def topic_deleted(catalog: Catalog, topic_id: str, *, drop: bool) -> None:
    """What becomes of its table: it stays where it is, or it goes, with its files."""
    if not drop:
        return
    try:
        await catalog.drop(topic_id, purge=True)
    except NoSuchTable:
        return
    finally:
        await catalog.writers.remove(topic_id)
    log.info("catalog.dropped topic_id=%s", topic_id)


def _first_schema(settings: Mapping[str, str]) -> Json:
    """Columns of values come with the first values (evolve.py)."""
    schema = iceberg_schema()
    if settings.get(VALUE_SCHEMA_SETTING, NO_SCHEMA) == NO_SCHEMA:
        return schema
    return {**schema, "fields": [field for field in schema["fields"] if field["id"] != VALUE_ID]}


async def _create(catalog: Catalog, name: TableName, topic: str, topic_id: str, schema: Json) -> None:
    for depth in range(1, len(name.namespace) + 1):
        await catalog.namespaces.ensure(name.namespace[:depth])
    await catalog.create(
        name,
        schema,
        spec=SPEC,
        order=ORDER,
        properties={**DEFAULTS, TOPIC: topic, TOPIC_ID: topic_id, NEXT_OFFSETS: text_of({})},
        topic_id=topic_id,
    )
