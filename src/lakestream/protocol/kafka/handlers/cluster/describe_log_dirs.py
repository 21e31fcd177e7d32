"""DescribeLogDirs (key 35), v1-5.

Returns for each partition the bytes of its log and its share of the table. Brokers own no records, so each returns one
virtual directory with the partitions of which it is the leader in the metadata: the sum over all brokers counts every
partition once, and is the size of the log and of the table's current snapshot.

No table is read: the bytes of a table are in its record in the metadata store, and its partitions share them by the
number of offsets that each has moved there. The first request after a start reads the whole claim chain; later ones
read only new claims.
v2 flexible · v3 top-level error · v4 total and usable bytes (-1: not known) · v5 cordoned (never)
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.pointers import NO_ROWS, TableSize
from lakestream.coordination import placement
from lakestream.data.log.log import LogSize
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.services import ClusterContext

LOG_DIR: Final = "/lakestream"
NOT_KNOWN: Final = -1


@handles(35, versions=range(1, 6))
async def describe_log_dirs(call: Call, context: ClusterContext) -> Body:
    topics = {name: _own(topic, numbers, context) for name, topic, numbers in _requested(call, context)}
    try:
        sizes = await _sizes([log for logs in topics.values() for log in logs], context)
    except LakestreamError as error:
        return {"error_code": code_of(error), "results": [{"error_code": code_of(error), "log_dir": LOG_DIR}]}
    directory = {
        "error_code": Code.NONE,
        "log_dir": LOG_DIR,
        "topics": [
            {"name": name, "partitions": parts}
            for name, logs in topics.items()
            if (parts := [_partition(log, sizes[log]) for log in logs if log in sizes])
        ],
        "total_bytes": NOT_KNOWN,
        "usable_bytes": NOT_KNOWN,
    }
    return {"error_code": Code.NONE, "results": [directory]}


def _requested(call: Call, context: ClusterContext) -> Iterable[tuple[str, Topic, Iterable[int]]]:
    """Returns the existing topics and partitions: all, or the requested ones."""
    if call.body.topics is None:
        return [
            (name, topic, range(topic.partition_count)) for name, topic in sorted(context.metadata_cache.topics.items())
        ]
    requested = ((request, context.metadata_cache.cached_topic(request.topic)) for request in call.body.topics)
    return [(request.topic, topic, request.partitions) for request, topic in requested if topic is not None]


def _own(topic: Topic, numbers: Iterable[int], context: ClusterContext) -> list[PartitionId]:
    """Returns the partitions of which this broker is the leader in the metadata."""
    logs = [PartitionId(topic.topic_id, number) for number in numbers if 0 <= number < topic.partition_count]
    brokers, own_id = context.metadata_cache.brokers or [context.broker], context.broker.node_id
    return [log for log in logs if placement.chosen(str(log), brokers).node_id == own_id]


def _partition(log: PartitionId, size: int) -> dict[str, Any]:
    return {"partition_index": log.number, "partition_size": size, "offset_lag": 0, "is_future_key": False}


async def _sizes(logs: Sequence[PartitionId], context: ClusterContext) -> dict[PartitionId, int]:
    """Returns the sizes of partitions, without those that have been deleted since."""
    # The tables after the logs: records that are moved in between may count twice, but are not left out.
    sizes = dict(zip(logs, await gather_limited(_size(log, context) for log in logs), strict=True))
    with_table = list({log.topic_id: None for log, size in sizes.items() if size is not None and size.floor})
    found = await gather_limited(context.table_size(topic_id) for topic_id in with_table)
    tables = dict(zip(with_table, found, strict=True))
    return {
        log: size.bytes + table_share(tables.get(log.topic_id, NO_ROWS), size.floor)
        for log, size in sizes.items()
        if size is not None
    }


def table_share(table: TableSize, floor: int) -> int:
    """Returns the bytes of one partition. Claims that are in the table may still be in the chain, but not reversely."""
    return table.bytes * min(floor, table.moved) // table.moved if table.moved else 0


async def _size(log: PartitionId, context: ClusterContext) -> LogSize | None:
    """Returns None if the partition has been deleted since."""
    try:
        return await context.log.size(log)
    except Missing:
        return None
