"""Table names of topics. A table left by a deleted topic of the same name is renamed.

The start of the old topic's id is appended to its name. A table that belongs to no topic is not renamed: then the new
topic's table cannot be created, and the pipeline reports the error.
"""

import logging
from collections.abc import Mapping
from typing import Final

from lakestream.catalog.errors import NoSuchTable, TableExists
from lakestream.catalog.identifiers import DEFAULT_NAMESPACE, NAME_BYTES_MAX, Namespace, TableName, check_table_name
from lakestream.catalog.pointers import Pointers

log = logging.getLogger(__name__)

NAMESPACE_SETTING: Final = "lakestream.table.namespace"
ID_SHOWN: Final = 8


def namespace_of(settings: Mapping[str, str]) -> Namespace:
    """Returns the namespace of a topic's table. The setting separates levels with dots."""
    levels = settings.get(NAMESPACE_SETTING, "")
    return tuple(levels.split(".")) if levels else DEFAULT_NAMESPACE


def name_of(topic: str, settings: Mapping[str, str]) -> TableName:
    return check_table_name(namespace_of(settings), topic)


async def rename_previous_table(pointers: Pointers, name: TableName, topic_id: str) -> None:
    """Renames the table of another topic that has this name. TableExists: the table belongs to no topic."""
    try:
        found = await pointers.find(name)
    except NoSuchTable:
        return
    if found.table_id == topic_id:
        return  # another process created the topic's table
    if not found.table.topic_id:
        raise TableExists(
            f"Table {name} already exists and belongs to no topic: rename it, or choose another namespace with"
            f" {NAMESPACE_SETTING}"
        )
    for shown in (ID_SHOWN, len(found.table.topic_id)):
        kept = _previous_name(name, found.table.topic_id[:shown])
        try:
            await pointers.rename(found.table_id, kept)
        except TableExists:
            continue
        except NoSuchTable:
            return  # another process renamed or dropped it
        log.warning("catalog.renamed table=%s to=%s: a new topic has its name", name, kept)
        return
    raise TableExists(f"Table {name} belongs to a deleted topic, and {kept} already exists too: rename one of them")


def _previous_name(name: TableName, identity: str) -> TableName:
    room = NAME_BYTES_MAX - len(identity) - 1
    return TableName(name.namespace, f"{name.name[:room]}_{identity}")
