"""InitProducerId (key 22), v0-5.

Assigns a producer id and epoch. Ids are never assigned twice; brokers reserve them in blocks from the metadata store.

With a transactional id, the previous producer is fenced, and its open transaction is aborted first; until that is
complete, the client has to retry (51). A producer that sends its id and epoch gets the next epoch, unless another
producer has used the transactional id since. After the last epoch it gets a new id. A new transactional id beyond the
limits of the store or of the client's address is rejected (44).
v2 flexible · v3 producer id and epoch, to continue with · v4 producer fenced · v5 no change here
"""

from typing import Final

from lakestream.errors import LakestreamError
from lakestream.metadata.transactions import Identity
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.handlers.groups.shared import milliseconds
from lakestream.protocol.kafka.handlers.transactions.shared import checked_id, transaction_code
from lakestream.protocol.kafka.services import TransactionsContext

EPOCH_MAX: Final = 2**15 - 1
FENCED_FROM_VERSION: Final = 4


@handles(22, versions=range(0, 6))
async def init_producer_id(call: Call, context: TransactionsContext) -> Body:
    producer_id, epoch = call.get("producer_id", -1), call.get("producer_epoch", -1)
    if call.body.transactional_id is not None:
        return await _transactional(call, Identity(producer_id, epoch) if producer_id >= 0 else None, context)
    if producer_id >= 0 and 0 <= epoch < EPOCH_MAX:
        return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch + 1}
    try:
        return {"error_code": Code.NONE, "producer_id": await context.cluster.producer_id(), "producer_epoch": 0}
    except LakestreamError as error:
        return _error(code_of(error))


async def _transactional(call: Call, expected: Identity | None, context: TransactionsContext) -> Body:
    try:
        transactional_id = checked_id(call.body.transactional_id)
        timeout_ms = _checked_timeout(milliseconds(call.body.transaction_timeout), context)
        async with call.connection.transaction_lock:
            producer_id, epoch = await context.transactions.init(
                transactional_id, timeout_ms, expected, call.connection.address
            )
    except LakestreamError as error:
        return _error(transaction_code(error, has_fenced=call.version >= FENCED_FROM_VERSION))
    return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch}


def _checked_timeout(timeout_ms: int, context: TransactionsContext) -> int:
    max_ms = context.settings.transaction_timeout_ms_max
    if not 0 < timeout_ms <= max_ms:
        raise KafkaError(Code.INVALID_TRANSACTION_TIMEOUT, f"transaction timeout {timeout_ms} ms: use 1 to {max_ms} ms")
    return timeout_ms


def _error(code: Code) -> Body:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
