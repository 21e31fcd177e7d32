"""DescribeLogDirs (key 35), v1-5.

How many bytes each partition has that are not in the table yet. Brokers own no records, so each of them names one
directory that does not exist, and in it the partitions that it would be named leader of: added up over all brokers,
every partition counts once.

The first question after a start counts along the whole chain; later ones only what is new.
v2 flexible · v3 top-level error · v4 total and usable bytes (-1: not known) · v5 cordoned (never)
"""

from collections.abc import Iterable
from typing import Any, Final

from lakestream.coordination import placement
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.parallel import answers
from lakestream.protocol.kafka.services import Services

LOG_DIR: Final = "/lakestream"
NOT_KNOWN: Final = -1


@handles(35, versions=range(1, 6))
async def describe_log_dirs(call: Call, services: Services) -> Body:
    try:
        topics = [
            {"name": name, "partitions": await _sizes(topic, numbers, services)}
            for name, topic, numbers in _wanted(call, services)
        ]
    except LakestreamError as error:
        return {"error_code": code_of(error), "results": [{"error_code": code_of(error), "log_dir": LOG_DIR}]}
    directory = {
        "error_code": Code.NONE,
        "log_dir": LOG_DIR,
        "topics": [topic for topic in topics if topic["partitions"]],
        "total_bytes": NOT_KNOWN,
        "usable_bytes": NOT_KNOWN,
    }
    return {"error_code": Code.NONE, "results": [directory]}


def _wanted(call: Call, services: Services) -> Iterable[tuple[str, Topic, Iterable[int]]]:
    """Topics that exist and their partitions: all, or those that are asked for."""
    if call.body.topics is None:
        return [(name, topic, range(topic.partition_count)) for name, topic in sorted(services.view.topics.items())]
    asked = ((wanted, services.view.known(wanted.topic)) for wanted in call.body.topics)
    return [(wanted.topic, topic, wanted.partitions) for wanted, topic in asked if topic is not None]


async def _sizes(topic: Topic, numbers: Iterable[int], services: Services) -> list[dict[str, Any]]:
    logs = [PartitionId(topic.topic_id, number) for number in numbers if 0 <= number < topic.partition_count]
    brokers, me = services.view.brokers or [services.me], services.me.node_id
    mine = [log for log in logs if placement.chosen(str(log), brokers).node_id == me]
    sizes = await answers(_size(log, services) for log in mine)
    return [
        {"partition_index": log.number, "partition_size": size, "offset_lag": 0, "is_future_key": False}
        for log, size in zip(mine, sizes, strict=True)
        if size is not None
    ]


async def _size(log: PartitionId, services: Services) -> int | None:
    """None: it was deleted meanwhile."""
    try:
        return await services.log.size(log)
    except Missing:
        return None
