"""AddOffsetsToTxn (key 25), v0-4.

Adds a group to a transaction, before a client of the older protocol commits offsets of the group with TxnOffsetCommit.
Sent to the transaction coordinator; the offsets themselves are sent to the group coordinator.

v2 producer fenced · v3 flexible · v4 no change here
"""

from typing import Final

from lakestream.coordination.groups.coordinator import check_name
from lakestream.coordination.groups.errors import GroupRequestFailed
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import group_code
from lakestream.protocol.kafka.handlers.transactions.shared import checked_id, identity, transaction_code
from lakestream.protocol.kafka.services import TransactionsContext

FENCED_FROM_VERSION: Final = 2


@handles(25, versions=range(0, 5))
async def add_offsets_to_txn(call: Call, context: TransactionsContext) -> Body:
    body = call.body
    try:
        group = check_name(body.group_id)
        async with call.connection.transaction_lock:
            await context.transactions.add_group(checked_id(body.transactional_id), identity(body), group)
    except GroupRequestFailed as refusal:
        return {"error_code": group_code(refusal)}
    except LakestreamError as error:
        return {"error_code": transaction_code(error, has_fenced=call.version >= FENCED_FROM_VERSION)}
    return {"error_code": Code.NONE}
