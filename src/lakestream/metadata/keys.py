"""All keys of the metadata store. No other module builds a key.

| key                                   | home      | record                                                        |
|---------------------------------------|-----------|---------------------------------------------------------------|
| /topics/{name}                        | /topics   | Topic: id, partition count, settings                          |
| /brokers/{node id:010d}               | /brokers  | Broker: its address and zone; ephemeral                       |
| /node_ids/{node id:010d}              | /node_ids | the address that owns the node id                             |
| /cluster/id                           | /cluster  | the cluster's id, created once                                |
| /cluster/producer_ids                 | /cluster  | the next unused producer id                                   |
| /configs/{kind}.{name}                | /configs  | configs set on a group, a broker, or all brokers (named %)    |
| /log/{topic id}/{n}/{start:020d}      | that log  | Claim: offsets [start, end) are these bytes                   |
| /log/{topic id}/{n}/floor             | that log  | claims below it may be deleted; absent: the log is deleted    |
| /log/{topic id}/{n}/start             | that log  | records below this offset are no longer served; absent: 0     |
| /fold/{topic id}/{n}                  | that log  | PartitionState: the state of the chain up to some offset      |
| /table_end/{topic id}/{n}             | that log  | records below this offset are in the table                    |
| /catalog/namespaces/{levels}          | /catalog  | Namespace: properties                                         |
| /catalog/names/{levels}/{name}        | /catalog  | id of the table with the name; the table's record decides     |
| /catalog/tables/{table id}            | /catalog  | Table: its name, metadata file and size                       |
| /catalog/purged/{table id}.{uuid}     | /catalog  | location of a purged table; for a day                         |
| /pipeline/report/{driver}             | /pipeline | PipelineReport: lag and errors of tables                      |
| /pipeline/asked/{request id}          | /pipeline | RefreshRequest: a broker waits until a table has these offsets |
| /groups/{group}                       | that group | GroupRecord: generation, members, assignments                |
| /offsets/{group}/{topic id}.{n:010d}  | that group | Committed: the group's committed offset of a partition       |
| /offsets/{group}/owner                | that group | the coordinator: put last in every write, so that writes of  |
|                                       |            | an earlier coordinator conflict                              |
| /heartbeats/{group}                   | that group | when each member was heard last, for the next coordinator     |
| /group_names/{group}                  | /group_names | the group exists; empty                                    |
| /transactions/{id}                    | itself    | Transaction: producer, open transaction, result               |
| /transaction_names/{id}               | /transaction_names | the transactional id exists; empty                   |
| /group_transactions/{group}/{id}      | that group | the open transaction may have offsets of the group; empty    |
| /schemas/log/{n:020d}                 | /schemas  | the n-th change of the schema registry                        |
| /schemas/texts/{text id}              | /schemas  | StoredText: a schema as it was registered                     |
| /typed/{topic id}/{number}            | that table | WriterSchema: how values were converted to columns           |
| /typed/{topic id}/key.{number}        | that table | the same for keys                                            |
| /probe                                | each shard | written by confirmed reads on Oxia; has no content           |

All records of a log share a home, so they are in one shard and a scan returns them in order. So do those of a group.
"""

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

from lakestream.metadata.store import Folder, Key
from lakestream.model import PartitionId

CONFIGS = Folder("/configs", "/configs")
LOGS = "/log/"
OFFSETS = "/offsets/"
PROBE = Key("/probe", "/probe")
TOPICS = Folder("/topics", "/topics")
BROKERS = Folder("/brokers", "/brokers")
NODE_IDS = Folder("/node_ids", "/node_ids")
CLUSTER = Folder("/cluster", "/cluster")
CLUSTER_ID = CLUSTER.key("id")
PRODUCER_IDS = CLUSTER.key("producer_ids")
PIPELINE_REPORTS = Folder("/pipeline/report", "/pipeline")
REFRESH_REQUESTS = Folder("/pipeline/asked", "/pipeline")
CATALOG = "/catalog"
"""One home for the whole catalog: tables have few commits per second, and one scan returns all tables."""
NAMESPACES = Folder("/catalog/namespaces", CATALOG)
TABLES = Folder("/catalog/tables", CATALOG)
PURGED = Folder("/catalog/purged", CATALOG)
STAGED = Folder("/catalog/staged", CATALOG)
GROUP_NAMES = Folder("/group_names", "/group_names")
TRANSACTION_NAMES = Folder("/transaction_names", "/transaction_names")
TRANSACTIONS = "/transactions/"
SCHEMA_LOG = Folder("/schemas/log", "/schemas")
SCHEMA_TEXTS = Folder("/schemas/texts", "/schemas")

FLOOR_NAME = "floor"
"""Sorts after the offsets, so a scan of claims can end before it."""
START_NAME = "start"
"""Sorts after the floor, so scans of claims do not include it."""
_START_END = f"/{START_NAME}"
OWNER_NAME = "owner"
"""Sorts after the ids of topics, so a scan of offsets can end before it."""


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
    """Named by start, so that two writers of the same offsets conflict on one key."""
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
    """Returns the partition of a changed path under /log/, or None."""
    parts = path.split("/")
    if len(parts) != 5 or parts[1] != "log" or not parts[3].isdecimal():
        return None
    return PartitionId(parts[2], int(parts[3]))


def is_start(path: str) -> bool:
    return path.endswith(_START_END)


def offset_of(path: str) -> int | None:
    """Returns the offset of a changed claim under /log/, or None for the floor and the start."""
    name = path.rpartition("/")[2]
    return int(name) if name.isdecimal() else None


def catalog_name(text: str) -> str:
    """Encodes any text as a name without slashes and dots, which sorts before `AFTER_NAMES`."""
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


def catalog_text(name: str) -> str:
    return unquote(name)


def levels_name(levels: Sequence[str]) -> str:
    return ".".join(catalog_name(level) for level in levels)


def levels_of(name: str) -> tuple[str, ...]:
    return tuple(catalog_text(level) for level in name.split("."))


AFTER_NAMES = "~"
"""Sorts after every result of `catalog_name`."""
NEXT_NAME = "!"
"""A name with this suffix sorts directly after the name, before all longer names."""


def namespace_key(levels: Sequence[str]) -> Key:
    return NAMESPACES.key(levels_name(levels))


def table_names_folder(levels: Sequence[str]) -> Folder:
    return Folder(f"/catalog/names/{levels_name(levels)}", CATALOG)


def table_name_key(levels: Sequence[str], name: str) -> Key:
    return table_names_folder(levels).key(catalog_name(name))


def table_key(table_id: str) -> Key:
    return TABLES.key(table_id)


def purged_key(table_id: str, uuid: str) -> Key:
    """With the uuid, because a table id may be used again for another table at another location."""
    return PURGED.key(f"{table_id}.{catalog_name(uuid)}")


def staged_key(uuid: str) -> Key:
    return STAGED.key(catalog_name(uuid))


NAMELESS = "%"
"""Encoded name of the group with an empty name, to which old clients commit. No other name is encoded like this."""


def group_name(group: str) -> str:
    return catalog_name(group) or NAMELESS


def group_text(name: str) -> str:
    return "" if name == NAMELESS else catalog_text(name)


def config_key(kind: str, name: str) -> Key:
    """`kind`: without a dot."""
    return CONFIGS.key(f"{kind}.{group_name(name)}")


def config_resource(name: str) -> tuple[str, str]:
    """Returns kind and name of a config record."""
    kind, _, encoded = name.partition(".")
    return kind, group_text(encoded)


@lru_cache(maxsize=20_000)
def _group_home(group: str) -> str:
    return f"/groups/{group_name(group)}"


def group_key(group: str) -> Key:
    home = _group_home(group)
    return Key(home, home)


def group_name_key(group: str) -> Key:
    return GROUP_NAMES.key(group_name(group))


@lru_cache(maxsize=20_000)
def offsets_folder(group: str) -> Folder:
    return Folder(f"/offsets/{group_name(group)}", _group_home(group))


@lru_cache(maxsize=20_000)
def owner_key(group: str) -> Key:
    return offsets_folder(group).key(OWNER_NAME)


def heartbeats_key(group: str) -> Key:
    return Key(f"/heartbeats/{group_name(group)}", _group_home(group))


def offset_key(group: str, partition: PartitionId) -> Key:
    return offsets_folder(group).key(f"{partition.topic_id}.{partition.number:010d}")


def group_of_offset(path: str) -> str | None:
    """Returns the group of a changed committed offset under /offsets/, or None for the owner."""
    _, _, name, last = path.split("/")
    return None if last == OWNER_NAME else group_text(name)


def offset_partition(name: str) -> PartitionId:
    topic_id, _, number = name.rpartition(".")
    return PartitionId(topic_id, int(number))


_BLOCK = ".block"


def offset_block_key(group: str, topic_id: str, number: int) -> Key:
    return offsets_folder(group).key(f"{topic_id}{_BLOCK}.{number:010d}")


def offset_block(name: str) -> tuple[str, int] | None:
    """Returns the topic id and the number of a block of offsets, or None for the offset of one partition."""
    topic_id, _, number = name.rpartition(".")
    return (topic_id.removesuffix(_BLOCK), int(number)) if topic_id.endswith(_BLOCK) else None


def transaction_name(transactional_id: str) -> str:
    return catalog_name(transactional_id)


def transaction_text(name: str) -> str:
    return catalog_text(name)


def transaction_key(transactional_id: str) -> Key:
    path = f"/transactions/{transaction_name(transactional_id)}"
    return Key(path, path)


def transaction_of(path: str) -> str:
    """Returns the transactional id of a changed path under /transactions/."""
    return transaction_text(path.rpartition("/")[2])


def transaction_name_key(transactional_id: str) -> Key:
    return TRANSACTION_NAMES.key(transaction_name(transactional_id))


def group_transactions_folder(group: str) -> Folder:
    return Folder(f"/group_transactions/{group_name(group)}", _group_home(group))


def group_transaction_key(group: str, transactional_id: str) -> Key:
    return group_transactions_folder(group).key(transaction_name(transactional_id))


def schema_change_key(number: int) -> Key:
    """Named by number, so that two brokers that append the next change conflict on one key."""
    return SCHEMA_LOG.key(schema_change_name(number))


def schema_change_name(number: int) -> str:
    return f"{number:020d}"


def schema_text_key(text_id: str) -> Key:
    return SCHEMA_TEXTS.key(text_id)


def writers_folder(topic_id: str) -> Folder:
    home = f"/typed/{topic_id}"
    return Folder(home, home)


def writer_key(topic_id: str, part: str, number: int) -> Key:
    """`part`: `value` or `key`. Names of values and keys have different prefixes, so one scan can separate them."""
    return writers_folder(topic_id).key(f"{number}" if part == "value" else f"{part}.{number}")
