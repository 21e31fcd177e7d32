"""Whose name is whose: a topic's table is called like the topic, and what an older topic of that name left makes room.

It is renamed, with the start of its topic's id behind its name. A table that is no topic's is not touched: then the
topic waits, and says why.
"""

import logging
from collections.abc import Mapping
from typing import Final

from lakestream.catalog.errors import NoSuchTable, TableExists
from lakestream.catalog.names import DEFAULT_NAMESPACE, NAME_BYTES_MAX, Namespace, TableName, check_table_name
from lakestream.catalog.pointers import Pointers

log = logging.getLogger(__name__)

NAMESPACE_SETTING: Final = "lakestream.table.namespace"
ID_SHOWN: Final = 8


def namespace_of(settings: Mapping[str, str]) -> Namespace:
    """Of a topic's table: levels are divided by dots."""
    levels = settings.get(NAMESPACE_SETTING, "")
    return tuple(levels.split(".")) if levels else DEFAULT_NAMESPACE


def name_of(topic: str, settings: Mapping[str, str]) -> TableName:
    return check_table_name(namespace_of(settings), topic)


async def make_room(pointers: Pointers, name: TableName, topic_id: str) -> None:
    """For the table of that topic. TableExists: the name is that of a table which is no topic's."""
    try:
        found = await pointers.find(name)
    except NoSuchTable:
        return
    if found.table_id == topic_id:
        return  # somebody was quicker
    if not found.table.topic_id:
        raise TableExists(
            f"table {name} exists and is no topic's: rename it, or choose another namespace with {NAMESPACE_SETTING}"
        )
    for shown in (ID_SHOWN, len(found.table.topic_id)):
        kept = _left_name(name, found.table.topic_id[:shown])
        try:
            await pointers.rename(found.table_id, kept)
        except TableExists:
            continue
        except NoSuchTable:
            return  # somebody else has made room
        log.warning("catalog.renamed table=%s to=%s: a new topic has its name", name, kept)
        return
    raise TableExists(f"table {name} is that of a deleted topic, and {kept} is taken too: rename one of them")


def _left_name(name: TableName, identity: str) -> TableName:
    room = NAME_BYTES_MAX - len(identity) - 1
    return TableName(name.namespace, f"{name.name[:room]}_{identity}")
