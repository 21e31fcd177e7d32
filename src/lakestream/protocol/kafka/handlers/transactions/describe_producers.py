"""DescribeProducers (key 61), v0.

Returns the idempotent and transactional producers in the state of a partition. Any broker can serve it.

A producer's last timestamp is the time of its last append. Coordinators have no epoch: -1.
"""

from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.services import TransactionsContext

NO_EPOCH: Final = -1


@handles(61, versions=range(0, 1))
async def describe_producers(call: Call, context: TransactionsContext) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": await gather_limited(_partition(topic.name, n, context) for n in topic.partition_indexes),
            }
            for topic in call.body.topics
        ]
    }


async def _partition(name: str, number: int, context: TransactionsContext) -> dict[str, Any]:
    try:
        producers = await context.log.producers(await context.metadata_cache.partition(name, number))
    except LakestreamError as error:
        return {
            "partition_index": number,
            "error_code": code_of(error),
            "error_message": error_message(error, context.metadata_cache.cached_name),
        }
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
