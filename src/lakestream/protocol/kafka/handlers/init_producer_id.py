"""InitProducerId (key 22), v0-5.

Gives a producer its id and epoch. Ids are never given twice; they come in blocks from the metadata store.

With a transactional id, whoever wrote under it before is fenced, and what it left open is aborted first: until that is
done, which takes a moment, the client is asked to come again (51). A producer that names its id and epoch goes on with
the next epoch, unless another one has begun under the transactional id since. Used up epochs lead to a new id.
v2 flexible · v3 producer id and epoch, to go on with · v4 producer fenced · v5 no change here
"""

from typing import Final

from lakestream.errors import LakestreamError
from lakestream.metadata.transactions import Identity
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.groups import milliseconds
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import checked_id, transaction_code

EPOCH_MAX: Final = 2**15 - 1
FENCED_FROM_VERSION: Final = 4


@handles(22, versions=range(0, 6))
async def init_producer_id(call: Call, services: Services) -> Body:
    producer_id, epoch = call.get("producer_id", -1), call.get("producer_epoch", -1)
    if call.body.transactional_id is not None:
        return await _transactional(call, Identity(producer_id, epoch) if producer_id >= 0 else None, services)
    if producer_id >= 0 and 0 <= epoch < EPOCH_MAX:
        return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch + 1}
    try:
        return {"error_code": Code.NONE, "producer_id": await services.cluster.producer_id(), "producer_epoch": 0}
    except LakestreamError as error:
        return _refused(code_of(error))


async def _transactional(call: Call, expected: Identity | None, services: Services) -> Body:
    try:
        transactional_id = checked_id(call.body.transactional_id)
        timeout_ms = _checked_timeout(milliseconds(call.body.transaction_timeout), services)
        async with call.connection.transaction_turn:
            producer_id, epoch = await services.transactions.init(transactional_id, timeout_ms, expected)
    except LakestreamError as error:
        return _refused(transaction_code(error, knows_fenced=call.version >= FENCED_FROM_VERSION))
    return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch}


def _checked_timeout(timeout_ms: int, services: Services) -> int:
    most_ms = services.settings.transaction_timeout_ms_max
    if not 0 < timeout_ms <= most_ms:
        raise KafkaError(
            Code.INVALID_TRANSACTION_TIMEOUT, f"a transaction may take up to {most_ms} ms, not {timeout_ms}"
        )
    return timeout_ms


def _refused(code: Code) -> Body:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
