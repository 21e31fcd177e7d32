"""DescribeTransactions (key 65), v0.

What is known of transactional ids: who writes, whether a transaction is open, since when, and where. Asked of the
coordinator of each.
"""

from typing import Any, Final

from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.transactions import Transaction
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.parallel import answers
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import STATE_NAMES, checked_id, transaction_code

NOTHING: Final = {"transaction_state": "", "transaction_timeout": 0, "transaction_start_time": 0, "topics": []}


@handles(65, versions=range(0, 1))
async def describe_transactions(call: Call, services: Services) -> Body:
    return {"transaction_states": await answers(_answer(one, services) for one in call.body.transactional_ids)}


async def _answer(transactional_id: str, services: Services) -> dict[str, Any]:
    try:
        record = await services.transactions.describe(checked_id(transactional_id))
        if record is None:
            raise KafkaError(Code.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id}")
        topics = await _topics(record, services)
    except LakestreamError as error:
        refused = {"error_code": transaction_code(error), "producer_id": -1, "producer_epoch": -1}
        return {"transactional_id": transactional_id, **NOTHING, **refused}
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


async def _topics(record: Transaction, services: Services) -> list[dict[str, Any]]:
    """Those that still are."""
    numbers: dict[str, list[int]] = {}
    for partition in record.partitions:
        numbers.setdefault(partition.topic_id, []).append(partition.number)
    topics = []
    for topic_id, partitions in numbers.items():
        try:
            topics.append({"topic": await services.view.name_of_id(topic_id), "partitions": partitions})
        except Missing:
            continue
    return topics
