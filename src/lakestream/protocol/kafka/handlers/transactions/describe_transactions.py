"""DescribeTransactions (key 65), v0.

Returns the producer of transactional ids, and the state, start time and partitions of their transactions. Sent to the
coordinator of each id.
"""

from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.transactions import Transaction
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.handlers.transactions.shared import STATE_NAMES, checked_id, transaction_code
from lakestream.protocol.kafka.services import TransactionsContext

NO_TRANSACTION: Final = {"transaction_state": "", "transaction_timeout": 0, "transaction_start_time": 0, "topics": []}


@handles(65, versions=range(0, 1))
async def describe_transactions(call: Call, context: TransactionsContext) -> Body:
    return {"transaction_states": await gather_limited(_describe(one, context) for one in call.body.transactional_ids)}


async def _describe(transactional_id: str, context: TransactionsContext) -> dict[str, Any]:
    try:
        record = await context.transactions.describe(checked_id(transactional_id))
        if record is None:
            raise KafkaError(Code.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {transactional_id} does not exist")
        topics = await _topics(record, context)
    except LakestreamError as error:
        failed = {"error_code": transaction_code(error), "producer_id": -1, "producer_epoch": -1}
        return {"transactional_id": transactional_id, **NO_TRANSACTION, **failed}
    return {
        "error_code": Code.NONE,
        "transactional_id": transactional_id,
        "transaction_state": STATE_NAMES[record.state],
        "transaction_timeout": record.timeout_ms,
        "transaction_start_time": record.started_ms,
        "producer_id": record.producer.producer_id,
        "producer_epoch": record.producer.epoch,
        "topics": topics,
    }


async def _topics(record: Transaction, context: TransactionsContext) -> list[dict[str, Any]]:
    """Returns the partitions by topic, without deleted topics."""
    numbers: dict[str, list[int]] = {}
    for partition in record.partitions:
        numbers.setdefault(partition.topic_id, []).append(partition.number)
    topics = []
    for topic_id, partitions in numbers.items():
        try:
            topics.append({"topic": await context.metadata_cache.name_of_id(topic_id), "partitions": partitions})
        except Missing:
            continue
    return topics
