"""DescribeProducers (key 61), v0.

The idempotent and transactional producers that a partition remembers, from the fold of its chain: any broker knows.

A producer's last timestamp is that of its last append. Coordinators have no epoch here: -1.
"""

from typing import Any, Final

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.parallel import answers
from lakestream.protocol.kafka.services import Services

NO_EPOCH: Final = -1


@handles(61, versions=range(0, 1))
async def describe_producers(call: Call, services: Services) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": await answers(_answer(topic.name, n, services) for n in topic.partition_indexes),
            }
            for topic in call.body.topics
        ]
    }


async def _answer(name: str, number: int, services: Services) -> dict[str, Any]:
    try:
        producers = await services.log.producers(await services.view.partition(name, number))
    except LakestreamError as error:
        return {"partition_index": number, "error_code": code_of(error), "error_message": describe(error, services)}
    return {
        "partition_index": number,
        "error_code": Code.NONE,
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.sequence_last,
                "last_timestamp": producer.appended_ms,
                "coordinator_epoch": NO_EPOCH,
                "current_txn_start_offset": producer.transaction_start,
            }
            for producer_id, producer in producers.items()
        ],
    }
