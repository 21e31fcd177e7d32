"""WriteTxnMarkers (key 27), v1-2.

Ends a transaction that hangs in a partition: what `kafka-transactions.sh abort` sends. Among brokers of Kafka it ends
every transaction; here no broker asks another one, and none hangs.

An abort of one that is open aborts the whole of it, in all its partitions, and fences its producer: a part of a
transaction is never aborted alone. One that is ending is left to end. A commit is not taken from outside (48).
v1 flexible · v2 transaction version
"""

from typing import Any

from lakestream.batch import RecordBatch, control_batch
from lakestream.errors import Fenced, LakestreamError, Rejected
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import Services


@handles(27, versions=range(1, 3))
async def write_txn_markers(call: Call, services: Services) -> Body:
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
                                "error_code": await _answer(marker, topic.name, number, services),
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


async def _answer(marker: Any, name: str, number: int, services: Services) -> Code:
    try:
        await _write(marker, await services.view.partition(name, number), services)
    except LakestreamError as error:
        return code_of(error)
    return Code.NONE


async def _write(marker: Any, partition: PartitionId, services: Services) -> None:
    producer = (await services.log.producers(partition, confirmed=True)).get(marker.producer_id)
    if producer is None or not producer.in_transaction:
        return  # nothing is open there
    if marker.transaction_result:
        raise KafkaError(Code.INVALID_TXN_STATE, "a transaction is committed by its producer, with EndTxn")
    if marker.producer_epoch < producer.epoch:
        raise Fenced(f"producer {marker.producer_id} has epoch {producer.epoch} in {partition}")
    owner = await services.transactions.writing(marker.producer_id)
    if owner is not None and owner.record.number >= producer.transaction:
        if owner.record.is_open:
            await _abort_all(owner.transactional_id, owner.record.number, services)
        return
    body = control_batch(marker.producer_id, marker.producer_epoch, False, services.clock.now_ms(), 0)
    await services.log.append(partition, RecordBatch.parse(body), producer.transaction)


async def _abort_all(transactional_id: str, number: int, services: Services) -> None:
    try:
        await services.transactions.abort(transactional_id, number)
    except Rejected:
        return  # it has just ended
