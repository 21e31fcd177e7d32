"""AddPartitionsToTxn (key 24), v0-5.

Adds partitions to a transaction, before a client of the older protocol writes to them; the first ones begin the
transaction. If one of them does not exist, none is added. While the previous transaction completes, this waits for a
moment.

From v4 on, Kafka's brokers send it to each other, for several transactions in one request, also only to verify them
(else 120). Lakestream's brokers never send it.
v2 producer fenced · v3 flexible · v4 several transactions · v5 no change here
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.transactions import Identity
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.transactions.shared import checked_id, identity, transaction_code
from lakestream.protocol.kafka.services import TransactionsContext

FENCED_FROM_VERSION: Final = 2
SEVERAL_FROM_VERSION: Final = 4


@handles(24, versions=range(0, 6))
async def add_partitions_to_txn(call: Call, context: TransactionsContext) -> Body:
    async with call.connection.transaction_lock:
        return await _response(call, context)


async def _response(call: Call, context: TransactionsContext) -> Body:
    body = call.body
    if call.version >= SEVERAL_FROM_VERSION:
        return {
            "error_code": Code.NONE,
            "results_by_transaction": [
                {
                    "transactional_id": one.transactional_id,
                    "topic_results": await _add(
                        one.transactional_id, identity(one), one.topics, call, context, verify=one.verify_only
                    ),
                }
                for one in body.transactions
            ],
        }
    producer = Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    results = await _add(body.v3_and_below_transactional_id, producer, body.v3_and_below_topics, call, context)
    return {"results_by_topic_v3_and_below": results}


async def _add(
    transactional_id: str,
    producer: Identity,
    topics: Sequence[Any],
    call: Call,
    context: TransactionsContext,
    *,
    verify: bool = False,
) -> list[dict[str, Any]]:
    named = [(topic.name, number) for topic in topics for number in topic.partitions]
    codes: dict[tuple[str, int], Code] = {}
    partitions: list[PartitionId] = []
    try:
        checked_id(transactional_id)
        for name, number in named:
            try:
                partitions.append(await context.metadata_cache.partition(name, number))
            except Missing:
                codes[name, number] = Code.UNKNOWN_TOPIC_OR_PARTITION
        if not codes and verify:
            await context.transactions.verify(transactional_id, producer, partitions)
        elif not codes:
            await context.transactions.add_partitions(transactional_id, producer, partitions)
        other = Code.OPERATION_NOT_ATTEMPTED if codes else Code.NONE
    except LakestreamError as error:
        other = transaction_code(error, has_fenced=call.version >= FENCED_FROM_VERSION, has_abortable=verify)
        codes = {}
    return _results(topics, codes, other)


def _results(topics: Sequence[Any], codes: Mapping[tuple[str, int], Code], other: Code) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": codes.get((topic.name, number), other)}
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]
