"""WriteTxnMarkers (key 27), v1-2.

Aborts a hanging transaction in a partition, as `kafka-transactions.sh abort` requests. In Kafka, brokers also complete
every transaction with it; Lakestream's brokers do not send it, and no transaction hangs.

It aborts an open transaction as a whole, in all its partitions, and fences its producer: a transaction is never aborted
in some of its partitions only. A transaction that is completing is not changed. Markers that commit are rejected (48).
v1 flexible · v2 transaction version
"""

from typing import Any

from lakestream.errors import Fenced, LakestreamError, Rejected
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import TransactionsContext
from lakestream.records.batch import RecordBatch, control_batch


@handles(27, versions=range(1, 3))
async def write_txn_markers(call: Call, context: TransactionsContext) -> Body:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {
                                "partition_index": number,
                                "error_code": await _code(marker, topic.name, number, context),
                            }
                            for number in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in call.body.markers
        ]
    }


async def _code(marker: Any, name: str, number: int, context: TransactionsContext) -> Code:
    try:
        await _write(marker, await context.metadata_cache.partition(name, number), context)
    except LakestreamError as error:
        return code_of(error)
    return Code.NONE


async def _write(marker: Any, partition: PartitionId, context: TransactionsContext) -> None:
    producer = (await context.log.producers(partition, confirmed=True)).get(marker.producer_id)
    if producer is None or not producer.in_transaction:
        return  # the producer has no open transaction in the partition
    if marker.transaction_result:
        raise KafkaError(Code.INVALID_TXN_STATE, "only the producer commits a transaction, with EndTxn")
    if marker.producer_epoch < producer.epoch:
        raise Fenced(f"producer {marker.producer_id} has epoch {producer.epoch} in {partition}")
    owner = await context.transactions.find_by_producer(marker.producer_id)
    if owner is not None and owner.record.number >= producer.transaction:
        if owner.record.is_open:
            await _abort_all(owner.transactional_id, owner.record.number, context)
        return
    body = control_batch(marker.producer_id, marker.producer_epoch, False, context.clock.now_ms(), 0)
    await context.log.append(partition, RecordBatch.parse(body), producer.transaction)


async def _abort_all(transactional_id: str, number: int, context: TransactionsContext) -> None:
    try:
        await context.transactions.abort(transactional_id, number)
    except Rejected:
        return  # it has just completed
