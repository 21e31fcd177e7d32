"""`lakestream table accept-rollback`, `register`, `set-next-offsets`: resume a topic after a rollback of its table.

`register` and `set-next-offsets` also serve after a restore of a table or the metadata store from an older backup. The
commands open the stores: the catalog rejects these changes from its clients, because a wrong value loses records or
duplicates them in the table.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.commit_checks.topic_table import stated_offsets
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.identifiers import DEFAULT_NAMESPACE, TableName, check_table_name
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.updates import SetProperties, Update
from lakestream.catalog.topic_table.live_file import by_partition
from lakestream.catalog.topic_table.offsets import (
    ACCEPT_ROLLBACK,
    NEXT_OFFSETS,
    ancestors,
    main_of,
    next_offsets,
    text_of,
)
from lakestream.cli.options import add_options, settings_of
from lakestream.cli.server import add_server_of_stores
from lakestream.config.settings import Settings
from lakestream.errors import Rejected
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic
from lakestream.server.node import Access, Node, open_node

OFFSETS: Final = "PARTITION=OFFSET"


def configure_accept(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Resumes a topic whose table was rolled back: the records that are missing in the table are lost. To get them"
        " back instead, move main forward again (CALL system.set_current_snapshot)."
    )
    parser.add_argument("topic")
    parser.add_argument("--snapshot", metavar="ID", type=int, help="accept only if the table is at this snapshot")
    _add_stores(parser)
    parser.set_defaults(run=accept)


def configure_set(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sets the next offset of each given partition: the table has the records before it, which are removed from the"
        " log; records from it on are moved into the table. Other partitions keep their offsets."
    )
    parser.add_argument("topic")
    parser.add_argument("offsets", metavar=OFFSETS, nargs="+", help="as 0=1200, for each partition to set")
    _add_stores(parser)
    parser.set_defaults(run=set_offsets)


def configure_register(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Registers a metadata file as a table of the catalog. Clients of the catalog can do so too, unless the table"
        " has records that are still in the log: do so only after a restore of the metadata store from a backup."
    )
    parser.add_argument("table", help="its name, as default.orders")
    parser.add_argument("file", help="URL of the metadata file, under the storage root")
    _add_stores(parser)
    parser.set_defaults(run=register)


def _add_stores(parser: argparse.ArgumentParser) -> None:
    add_server_of_stores(parser)
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def accept(arguments: argparse.Namespace) -> int:
    main = asyncio.run(_accept(settings_of(arguments), arguments.topic, arguments.snapshot))
    if arguments.json:
        print(json.dumps({"topic": arguments.topic, "snapshot": main}))
    else:
        print(f"topic {arguments.topic} continues from snapshot {main} of its table")
    return 0


def set_offsets(arguments: argparse.Namespace) -> int:
    changes = parsed_offsets(arguments.offsets)
    offsets = asyncio.run(_set(settings_of(arguments), arguments.topic, changes))
    if arguments.json:
        print(json.dumps({"topic": arguments.topic, "next_offsets": {str(one): offsets[one] for one in offsets}}))
    else:
        print(f"topic {arguments.topic}: its table has the records before {text_of(offsets)}")
    return 0


def register(arguments: argparse.Namespace) -> int:
    *levels, table = arguments.table.split(".")
    name = check_table_name(levels or DEFAULT_NAMESPACE, table)
    asyncio.run(_register(settings_of(arguments), name, arguments.file))
    if arguments.json:
        print(json.dumps({"table": str(name)}))
    else:
        print(f"table {name} is registered")
    return 0


def parsed_offsets(texts: list[str]) -> dict[int, int]:
    """Parses PARTITION=OFFSET words. Rejected if one is malformed, or a partition occurs twice."""
    found: dict[int, int] = {}
    for text in texts:
        partition, _, offset = text.partition("=")
        if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in (partition, offset)):
            raise Rejected(f"{text!r} is not {OFFSETS}: write two numbers, as 0=1200")
        if int(partition) in found:
            raise Rejected(f"partition {partition} is given twice: give one offset for each")
        found[int(partition)] = int(offset)
    return found


async def _register(settings: Settings, name: TableName, location: str) -> None:
    async with open_node(settings, access=Access.EXISTING) as node:
        await node.catalog.register(name, location)


async def _accept(settings: Settings, topic: str, snapshot: int | None) -> int:
    async with open_node(settings, access=Access.EXISTING) as node:
        topic_id = (await node.topics.get(topic)).topic_id
        changed = await node.catalog.change(topic_id, lambda metadata: accepting(metadata, snapshot))
        main = main_of(changed.metadata)
        assert main is not None
        return main


def accepting(metadata: Json, snapshot: int | None) -> list[Update]:
    """Returns the updates that accept the table's state; none if it is accepted already.

    Rejected if there is nothing to accept, or `main` is not at `snapshot`."""
    main = main_of(metadata)
    if main is None:
        raise Rejected("the table has no snapshot any more: register an older metadata file of it, or delete the topic")
    if snapshot is not None and snapshot != main:
        raise Rejected(f"the table is at snapshot {main}, not {snapshot}: check whether to accept it")
    if metadata["properties"].get(ACCEPT_ROLLBACK) == str(main):
        return []
    accepted = _with_properties(metadata, {ACCEPT_ROLLBACK: str(main)})
    if not _is_altered(metadata):
        raise Rejected(f"the table is at snapshot {main}, which has all moved records: there is nothing to accept")
    next_offsets(accepted)  # raises any other error of the table
    return [SetProperties({ACCEPT_ROLLBACK: str(main)})]


class PartitionBounds(NamedTuple):
    table_end: int
    """Records before it have left the log."""
    rows_end: int
    """The offset after the highest one of a row in the table."""
    end: int
    """Of the log."""


async def _set(settings: Settings, topic: str, changes: Mapping[int, int]) -> dict[int, int]:
    async with open_node(settings, access=Access.EXISTING) as node:
        found = await node.topics.get(topic)
        loaded = await node.catalog.load_id(found.topic_id)
        bounds = await _bounds(node, found, loaded)
        for number in changes.keys() - bounds.keys():
            raise Rejected(f"topic {topic} has no partition {number}, only 0 to {found.partition_count - 1}")
        offsets = {number: 0 for number in bounds} | (stated_offsets(loaded.metadata) or {}) | dict(changes)
        for number, one in sorted(bounds.items()):
            check_offset(number, offsets[number], one)

        def updates(metadata: Json) -> list[Update]:
            if main_of(metadata) != main_of(loaded.metadata):
                raise Rejected(f"table {loaded.name} was changed during this command: retry")
            return setting(metadata, offsets)

        await node.catalog.change(found.topic_id, updates)
        return offsets


def check_offset(partition: int, offset: int, bounds: PartitionBounds) -> None:
    """Rejected if records would be lost, or would be in the table twice."""
    where = f"partition {partition}: offset {offset}"
    if offset < bounds.table_end:
        raise Rejected(
            f"{where} is below {bounds.table_end}, the first record that is still in the log: register a metadata file"
            " of the table that has the earlier records, or delete the topic"
        )
    if offset > bounds.end:
        raise Rejected(f"{where} is above {bounds.end}, the end of the log: choose an offset up to the end")
    if offset < bounds.rows_end:
        raise Rejected(
            f"{where} is not above all rows of the table, which go up to {bounds.rows_end - 1}: records from there on"
            f" would be in it twice; choose {bounds.rows_end}, or delete these rows first"
        )


def setting(metadata: Json, offsets: Mapping[int, int]) -> list[Update]:
    """Returns the updates that set the table's next offsets; if its snapshots disagree, they also accept `main`."""
    properties = {NEXT_OFFSETS: text_of(offsets)}
    main = main_of(metadata)
    if main is not None and _is_altered(_with_properties(metadata, properties)):
        properties[ACCEPT_ROLLBACK] = str(main)
    next_offsets(_with_properties(metadata, properties))
    return [SetProperties(properties)]


def _with_properties(metadata: Json, properties: Mapping[str, str]) -> Json:
    return {**metadata, "properties": {**metadata["properties"], **properties}}


def _is_altered(metadata: Json) -> bool:
    try:
        next_offsets(metadata)
    except IncompatibleTable:
        return True
    return False


async def _bounds(node: Node, topic: Topic, loaded: LoadedTable) -> dict[int, PartitionBounds]:
    claims, rows_ends = Claims(node.stores.metadata), await _rows_ends(node.catalog, loaded)
    bounds = {}
    for partition in topic.partitions():
        end, rows_end = (await node.log.bounds(partition)).end, rows_ends.get(partition.number, 0)
        bounds[partition.number] = PartitionBounds(await claims.table_end(partition), rows_end, end)
    return bounds


async def _rows_ends(catalog: Catalog, loaded: LoadedTable) -> dict[int, int]:
    """Returns, by partition, the offset after the highest one that a manifest names."""
    if next(ancestors(loaded.metadata), None) is None:
        return {}
    listing = await LiveFileReader(catalog.objects, catalog.locations).of_main(loaded.metadata)
    return {
        number: max((file.offset_last or 0) + 1 for file in files)
        for number, files in by_partition(listing.data).items()
    }
