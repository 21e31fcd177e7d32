"""AddOffsetsToTxn (key 25), v0-4.

Offsets of a group become part of a transaction, before a client of the older protocol commits them with
TxnOffsetCommit. Asked of the transaction's coordinator; the offsets themselves go to the group's.

v2 producer fenced · v3 flexible · v4 no change here
"""

from typing import Final

from lakestream.coordination.groups.coordinator import check_name
from lakestream.coordination.groups.refusals import Refused
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import group_code
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import checked_id, identity, transaction_code

FENCED_FROM_VERSION: Final = 2


@handles(25, versions=range(0, 5))
async def add_offsets_to_txn(call: Call, services: Services) -> Body:
    body = call.body
    try:
        group = check_name(body.group_id)
        async with call.connection.transaction_turn:
            await services.transactions.add_group(checked_id(body.transactional_id), identity(body), group)
    except Refused as refusal:
        return {"error_code": group_code(refusal)}
    except LakestreamError as error:
        return {"error_code": transaction_code(error, knows_fenced=call.version >= FENCED_FROM_VERSION)}
    return {"error_code": Code.NONE}
