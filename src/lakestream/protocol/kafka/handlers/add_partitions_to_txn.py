"""AddPartitionsToTxn (key 24), v0-5.

Partitions become part of a transaction, before a client of the older protocol writes to them; the first ones begin it.
If one of them is unknown, none is added. While the transaction before is just ending, this waits for a moment.

From v4 on brokers of Kafka ask it of one another, for many transactions at once, also only to verify (else 120); nobody
does here.
v2 producer fenced · v3 flexible · v4 several transactions · v5 no change here
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.transactions import Identity
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import checked_id, identity, transaction_code

FENCED_FROM_VERSION: Final = 2
SEVERAL_FROM_VERSION: Final = 4


@handles(24, versions=range(0, 6))
async def add_partitions_to_txn(call: Call, services: Services) -> Body:
    async with call.connection.transaction_turn:
        return await _answer(call, services)


async def _answer(call: Call, services: Services) -> Body:
    body = call.body
    if call.version >= SEVERAL_FROM_VERSION:
        return {
            "error_code": Code.NONE,
            "results_by_transaction": [
                {
                    "transactional_id": one.transactional_id,
                    "topic_results": await _added(
                        one.transactional_id, identity(one), one.topics, call, services, verify=one.verify_only
                    ),
                }
                for one in body.transactions
            ],
        }
    who = Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    results = await _added(body.v3_and_below_transactional_id, who, body.v3_and_below_topics, call, services)
    return {"results_by_topic_v3_and_below": results}


async def _added(
    transactional_id: str, who: Identity, topics: Sequence[Any], call: Call, services: Services, *, verify: bool = False
) -> list[dict[str, Any]]:
    named = [(topic.name, number) for topic in topics for number in topic.partitions]
    codes: dict[tuple[str, int], Code] = {}
    partitions: list[PartitionId] = []
    try:
        checked_id(transactional_id)
        for name, number in named:
            try:
                partitions.append(await services.view.partition(name, number))
            except Missing:
                codes[name, number] = Code.UNKNOWN_TOPIC_OR_PARTITION
        if not codes and verify:
            await services.transactions.verify(transactional_id, who, partitions)
        elif not codes:
            await services.transactions.add_partitions(transactional_id, who, partitions)
        others = Code.OPERATION_NOT_ATTEMPTED if codes else Code.NONE
    except LakestreamError as error:
        others = transaction_code(error, knows_fenced=call.version >= FENCED_FROM_VERSION, knows_abortable=verify)
        codes = {}
    return _results(topics, codes, others)


def _results(topics: Sequence[Any], codes: Mapping[tuple[str, int], Code], others: Code) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": codes.get((topic.name, number), others)}
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]
