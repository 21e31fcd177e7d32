"""EndTxn (key 26), v0-5.

A transaction is committed or aborted, as a whole. Answered when that is decided and stored: the logs get their markers
a moment later, whatever becomes of this broker, and readers of committed records see it then.

Asked again, it answers again. From v5 on the client goes on with the epoch in the answer, so that what it sent before
can never be taken for a part of its next transaction; with the last epoch there is a new producer id.
v2 producer fenced · v3 flexible · v4 no change here · v5 producer id and epoch
"""

from typing import Final

from lakestream.coordination.transactions.machine import CLASSIC, IMPLICIT
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import checked_id, identity, transaction_code

FENCED_FROM_VERSION: Final = 2
IMPLICIT_FROM_VERSION: Final = 5


@handles(26, versions=range(0, 6))
async def end_txn(call: Call, services: Services) -> Body:
    body = call.body
    protocol = IMPLICIT if call.version >= IMPLICIT_FROM_VERSION else CLASSIC
    try:
        async with call.connection.transaction_turn:
            if protocol == CLASSIC:  # with the same epoch in both, it could end the client's next transaction as well
                await call.connection.still_there()
            producer_id, epoch = await services.transactions.end(
                checked_id(body.transactional_id), identity(body), commit=body.committed, protocol=protocol
            )
    except LakestreamError as error:
        code = transaction_code(error, knows_fenced=call.version >= FENCED_FROM_VERSION)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch}
