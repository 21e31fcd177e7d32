"""InitProducerId (key 22), v0-5.

Gives an idempotent producer its id. Ids are never given twice; they come in blocks from the metadata store.

A transactional id is refused until transactions are served.
v2 flexible · v3 producer id and epoch, to go on with · v4 producer fenced · v5 no change here
"""

from typing import Final

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.services import Services

EPOCH_MAX: Final = 2**15 - 1


@handles(22, versions=range(0, 6))
async def init_producer_id(call: Call, services: Services) -> Body:
    if call.body.transactional_id is not None:
        return {"error_code": Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "producer_id": -1, "producer_epoch": -1}
    producer_id, epoch = call.get("producer_id", -1), call.get("producer_epoch", -1)
    if producer_id >= 0 and 0 <= epoch < EPOCH_MAX:
        return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch + 1}
    try:
        return {"error_code": Code.NONE, "producer_id": await services.cluster.producer_id(), "producer_epoch": 0}
    except LakestreamError as error:
        return {"error_code": code_of(error), "producer_id": -1, "producer_epoch": -1}
