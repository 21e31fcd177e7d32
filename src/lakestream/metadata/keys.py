"""The whole key space on one page. No other module spells a key.

| key                                   | home      | record                                                        |
|---------------------------------------|-----------|---------------------------------------------------------------|
| /topics/{name}                        | /topics   | Topic: id, partition count, settings                          |
| /brokers/{node id:010d}               | /brokers  | Broker: where it listens, its zone; ephemeral                 |
| /cluster/id                           | /cluster  | the cluster's id, made once                                   |
| /cluster/producer_ids                 | /cluster  | the next producer id that nobody has                          |
| /log/{topic id}/{n}/{start:020d}      | that log  | Claim: offsets [start, end) are these bytes                   |
| /log/{topic id}/{n}/floor             | that log  | claims below this offset may be gone; absent: the log is gone |
| /log/{topic id}/{n}/start             | that log  | records below this offset are no longer served; absent: 0     |
| /fold/{topic id}/{n}                  | that log  | the fold of the chain up to some offset                       |
| /table_end/{topic id}/{n}             | that log  | records below this offset are in the table                    |
| /catalog/namespaces/{levels}          | /catalog  | Namespace: properties                                         |
| /catalog/names/{levels}/{name}        | /catalog  | which table has the name, unless the table says otherwise     |
| /catalog/tables/{table id}            | /catalog  | Table: its name and its newest metadata file                  |
| /catalog/purged/{table id}.{uuid}     | /catalog  | where a table was whose files are gone; for a day             |
| /pipeline/report/{driver}             | /pipeline | PipelineReport: how far behind tables are, and why            |
| /pipeline/asked/{ask id}              | /pipeline | Ask: somebody waits until a table has these offsets           |
| /groups/{group}                       | that group | GroupRecord: generation, members, what each has              |
| /offsets/{group}/{topic id}.{n:010d}  | that group | Committed: how far the group has read a partition            |
| /offsets/{group}/owner                | that group | whose turn it is: written last in whatever a coordinator     |
|                                       |            | writes, so that one that was followed by another is refused  |
| /group_names/{group}                  | /group_names | that there is such a group; empty                          |
| /transactions/{id}                    | itself    | Transaction: whose turn it is, what is open, how it ends       |
| /transaction_names/{id}               | /transaction_names | that there is such an id; empty                      |
| /group_transactions/{group}/{id}      | that group | a transaction may hold offsets of the group; empty           |
| /schemas/log/{n:020d}                 | /schemas  | the n-th change of the schema registry                        |
| /schemas/texts/{text id}              | /schemas  | StoredText: a schema as it was registered                     |
| /typed/{topic id}/{number}            | that table | Writer: how values became columns, and become bytes again    |
| /typed/{topic id}/key.{number}        | that table | the same for keys                                            |
| /probe                                | each shard | written by confirmed reads on Oxia; holds nothing            |

All records of one log share a home, so they live in one shard and a scan returns them in order; so do those of a group.
"""

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

from lakestream.metadata.store import Folder, Key
from lakestream.model import PartitionId

LOGS = "/log/"
PROBE = Key("/probe", "/probe")
TOPICS = Folder("/topics", "/topics")
BROKERS = Folder("/brokers", "/brokers")
NODE_IDS = Folder("/node_ids", "/node_ids")
CLUSTER = Folder("/cluster", "/cluster")
CLUSTER_ID = CLUSTER.key("id")
PRODUCER_IDS = CLUSTER.key("producer_ids")
PIPELINE_REPORTS = Folder("/pipeline/report", "/pipeline")
ASKED = Folder("/pipeline/asked", "/pipeline")
CATALOG = "/catalog"
"""One home for all of the catalog: a table is committed to every few seconds at most, and one scan finds them all."""
NAMESPACES = Folder("/catalog/namespaces", CATALOG)
TABLES = Folder("/catalog/tables", CATALOG)
PURGED = Folder("/catalog/purged", CATALOG)
GROUP_NAMES = Folder("/group_names", "/group_names")
TRANSACTION_NAMES = Folder("/transaction_names", "/transaction_names")
TRANSACTIONS = "/transactions/"
SCHEMA_LOG = Folder("/schemas/log", "/schemas")
SCHEMA_TEXTS = Folder("/schemas/texts", "/schemas")

FLOOR_NAME = "floor"
"""Sorts behind the offsets, so a scan of claims can end before it."""
START_NAME = "start"
"""Sorts behind the floor, so no scan of claims meets it."""
_START_END = f"/{START_NAME}"
OWNER_NAME = "owner"
"""Sorts behind the ids of topics, so a scan of offsets can end before it."""


@lru_cache(maxsize=20_000)
def _home(partition: PartitionId) -> str:
    return f"/log/{partition.topic_id}/{partition.number}"


def topic_key(name: str) -> Key:
    return TOPICS.key(name)


def broker_key(node_id: int) -> Key:
    return BROKERS.key(f"{node_id:010d}")


def node_id_key(node_id: int) -> Key:
    return NODE_IDS.key(f"{node_id:010d}")


def node_id_of(path: str) -> int:
    return int(path.rpartition("/")[2])


def claims_folder(partition: PartitionId) -> Folder:
    home = _home(partition)
    return Folder(home, home)


def claim_name(offset_start: int) -> str:
    """Keyed by start: two writers that race for the same offsets collide on one key."""
    return f"{offset_start:020d}"


def claim_key(partition: PartitionId, offset_start: int) -> Key:
    home = _home(partition)
    return Key(f"{home}/{offset_start:020d}", home)


def floor_key(partition: PartitionId) -> Key:
    home = _home(partition)
    return Key(f"{home}/{FLOOR_NAME}", home)


def start_key(partition: PartitionId) -> Key:
    home = _home(partition)
    return Key(f"{home}/{START_NAME}", home)


def fold_key(partition: PartitionId) -> Key:
    return Key(f"/fold/{partition.topic_id}/{partition.number}", _home(partition))


def table_end_key(partition: PartitionId) -> Key:
    return Key(f"/table_end/{partition.topic_id}/{partition.number}", _home(partition))


def partition_of(path: str) -> PartitionId | None:
    """The log that a changed path under /log/ belongs to."""
    parts = path.split("/")
    if len(parts) != 5 or parts[1] != "log" or not parts[3].isdecimal():
        return None
    return PartitionId(parts[2], int(parts[3]))


def moves_start(path: str) -> bool:
    return path.endswith(_START_END)


def offset_of(path: str) -> int | None:
    """The offset that a changed path under /log/ claims; None for the floor and the start."""
    name = path.rpartition("/")[2]
    return int(name) if name.isdecimal() else None


def catalog_name(text: str) -> str:
    """Any text as a name that holds neither a slash nor a dot, nor anything that sorts behind `BEHIND_NAMES`."""
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


def catalog_text(name: str) -> str:
    return unquote(name)


def levels_name(levels: Sequence[str]) -> str:
    return ".".join(catalog_name(level) for level in levels)


def levels_of(name: str) -> tuple[str, ...]:
    return tuple(catalog_text(level) for level in name.split("."))


BEHIND_NAMES = "~"
"""Sorts behind everything that `catalog_name` gives."""
NEXT_NAME = "!"
"""Added to a name it sorts right behind it, before every longer one."""


def namespace_key(levels: Sequence[str]) -> Key:
    return NAMESPACES.key(levels_name(levels))


def table_names_folder(levels: Sequence[str]) -> Folder:
    return Folder(f"/catalog/names/{levels_name(levels)}", CATALOG)


def table_name_key(levels: Sequence[str], name: str) -> Key:
    return table_names_folder(levels).key(catalog_name(name))


def table_key(table_id: str) -> Key:
    return TABLES.key(table_id)


def purged_key(table_id: str, uuid: str) -> Key:
    """Of each life of a table: its id may be given again, to a table elsewhere."""
    return PURGED.key(f"{table_id}.{catalog_name(uuid)}")


NAMELESS = "%"
"""The name of the group that has none: old clients commit to it. No other name is quoted like this."""


def group_name(group: str) -> str:
    return catalog_name(group) or NAMELESS


def group_text(name: str) -> str:
    return "" if name == NAMELESS else catalog_text(name)


@lru_cache(maxsize=20_000)
def _group_home(group: str) -> str:
    return f"/groups/{group_name(group)}"


def group_key(group: str) -> Key:
    home = _group_home(group)
    return Key(home, home)


def group_name_key(group: str) -> Key:
    return GROUP_NAMES.key(group_name(group))


def offsets_folder(group: str) -> Folder:
    return Folder(f"/offsets/{group_name(group)}", _group_home(group))


def owner_key(group: str) -> Key:
    return offsets_folder(group).key(OWNER_NAME)


def offset_key(group: str, partition: PartitionId) -> Key:
    return offsets_folder(group).key(f"{partition.topic_id}.{partition.number:010d}")


def offset_partition(name: str) -> PartitionId:
    topic_id, _, number = name.rpartition(".")
    return PartitionId(topic_id, int(number))


def transaction_name(transactional_id: str) -> str:
    return catalog_name(transactional_id)


def transaction_text(name: str) -> str:
    return catalog_text(name)


def transaction_key(transactional_id: str) -> Key:
    path = f"/transactions/{transaction_name(transactional_id)}"
    return Key(path, path)


def transaction_of(path: str) -> str:
    """The transactional id that a changed path under /transactions/ belongs to."""
    return transaction_text(path.rpartition("/")[2])


def transaction_name_key(transactional_id: str) -> Key:
    return TRANSACTION_NAMES.key(transaction_name(transactional_id))


def group_transactions_folder(group: str) -> Folder:
    return Folder(f"/group_transactions/{group_name(group)}", _group_home(group))


def group_transaction_key(group: str, transactional_id: str) -> Key:
    return group_transactions_folder(group).key(transaction_name(transactional_id))


def schema_change_key(number: int) -> Key:
    """Keyed by place: two brokers that race to be the next collide on one key."""
    return SCHEMA_LOG.key(schema_change_name(number))


def schema_change_name(number: int) -> str:
    return f"{number:020d}"


def schema_text_key(text_id: str) -> Key:
    return SCHEMA_TEXTS.key(text_id)


def writers_folder(topic_id: str) -> Folder:
    home = f"/typed/{topic_id}"
    return Folder(home, home)


def writer_key(topic_id: str, part: str, number: int) -> Key:
    """`part`: `value` or `key`. No name of a value's begins with what keys' do, so one scan divides them."""
    return writers_folder(topic_id).key(f"{number}" if part == "value" else f"{part}.{number}")
