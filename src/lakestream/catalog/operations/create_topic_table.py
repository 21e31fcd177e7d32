"""Creates the table of a topic when its first records are moved, and drops it with the topic.

The table has the topic's name (topic_table_names.py), but it is found by the topic's id.
"""

import logging
from collections.abc import Mapping
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import NoSuchTable, TableExists
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.table_metadata.builder import NewTable
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.checks import ORDER, SPEC
from lakestream.catalog.topic_table.columns import VALUE_ID, iceberg_schema
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, TOPIC, TOPIC_ID, text_of
from lakestream.catalog.topic_table.properties import DEFAULTS
from lakestream.catalog.topic_table_names import name_of, rename_previous_table
from lakestream.errors import LakestreamError, Unavailable

log = logging.getLogger(__name__)

ON_DELETE_SETTING: Final = "lakestream.table.on.delete"
VALUE_SCHEMA_SETTING: Final = "lakestream.value.schema"
NO_SCHEMA: Final = "none"
TRIES_MAX: Final = 10


async def ensure_table(catalog: Catalog, topic: str, topic_id: str, settings: Mapping[str, str]) -> LoadedTable:
    """Returns the topic's table; creates it if necessary. TableExists: a table of no topic has its name."""
    name = name_of(topic, settings)
    for _ in range(TRIES_MAX):
        try:
            return await catalog.load_id(topic_id)
        except NoSuchTable:
            await rename_previous_table(catalog.pointers, name, topic_id)
        try:
            await _create(catalog, name, topic, topic_id, _first_schema(settings))
        except TableExists:
            continue  # another driver created it, or the table of another topic was registered: try again
        if settings.get(ON_DELETE_SETTING) == "drop" and await catalog.topics.is_deleted(topic_id):
            # The deletion of the topic may have read the table's record before it existed.
            await topic_deleted(catalog, topic_id, drop=True)
            raise NoSuchTable(f"topic {topic} is being deleted with its table")
    raise Unavailable(f"table {name} of topic {topic}: created and dropped repeatedly: retry")


async def topic_created(catalog: Catalog, topic: str, topic_id: str, settings: Mapping[str, str]) -> None:
    """Renames the table left by an older topic of the same name, so that queries by name do not read its rows.

    If that fails, `ensure_table` does it, or reports the error, when the first records are moved.
    """
    try:
        await rename_previous_table(catalog.pointers, name_of(topic, settings), topic_id)
    except LakestreamError as error:
        log.warning("catalog.rename_failed topic=%s error=%s", topic, error)


async def topic_deleted(catalog: Catalog, topic_id: str, *, drop: bool) -> None:
    """Drops the topic's table with its files if `drop` is set; otherwise the table stays."""
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
    """Returns the first schema. update_schema.py adds the columns of values with the first values."""
    schema = iceberg_schema()
    if settings.get(VALUE_SCHEMA_SETTING, NO_SCHEMA) == NO_SCHEMA:
        return schema
    return {**schema, "fields": [field for field in schema["fields"] if field["id"] != VALUE_ID]}


async def _create(catalog: Catalog, name: TableName, topic: str, topic_id: str, schema: Json) -> None:
    for depth in range(1, len(name.namespace) + 1):
        await catalog.namespaces.ensure(name.namespace[:depth])
    await catalog.create(
        name,
        NewTable(
            schema,
            spec=SPEC,
            order=ORDER,
            properties={**DEFAULTS, TOPIC: topic, TOPIC_ID: topic_id, NEXT_OFFSETS: text_of({})},
        ),
        topic_id=topic_id,
    )
