"""EndTxn (key 26), v0-5.

Commits or aborts a whole transaction. The response is sent when the decision is stored: the partitions get their
markers a moment later, also if this broker fails, and read_committed consumers see the records then.

A retry gets the same response. From v5 on the client continues with the epoch in the response, so that its earlier
requests can never become part of its next transaction; after the last epoch it gets a new producer id.
v2 producer fenced · v3 flexible · v4 no change here · v5 producer id and epoch
"""

from typing import Final

from lakestream.coordination.transactions.state_machine import CLASSIC, IMPLICIT
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.transactions.shared import checked_id, identity, transaction_code
from lakestream.protocol.kafka.services import TransactionsContext

FENCED_FROM_VERSION: Final = 2
IMPLICIT_FROM_VERSION: Final = 5


@handles(26, versions=range(0, 6))
async def end_txn(call: Call, context: TransactionsContext) -> Body:
    body = call.body
    protocol = IMPLICIT if call.version >= IMPLICIT_FROM_VERSION else CLASSIC
    try:
        async with call.connection.transaction_lock:
            if protocol == CLASSIC:  # with the same epoch, a late request could end the client's next transaction
                await call.connection.check_connected()
            producer_id, epoch = await context.transactions.end(
                checked_id(body.transactional_id), identity(body), commit=body.committed, protocol=protocol
            )
    except LakestreamError as error:
        code = transaction_code(error, has_fenced=call.version >= FENCED_FROM_VERSION)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch}
