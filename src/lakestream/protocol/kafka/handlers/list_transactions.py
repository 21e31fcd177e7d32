"""ListTransactions (key 66), v0-2.

The transactional ids that this broker coordinates: clients ask all brokers, which together have all ids, each once.

A state that does not exist is named in the answer.
v1 only those that are open for so long · v2 only ids that match a pattern (RE2)
"""

from typing import Final

from lakestream.coordination.groups import patterns
from lakestream.coordination.groups.refusals import Refused
from lakestream.errors import LakestreamError
from lakestream.metadata.transactions import Transaction
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import STATE_NAMES, transaction_code

STATES: Final = frozenset(STATE_NAMES.values())


@handles(66, versions=range(0, 3))
async def list_transactions(call: Call, services: Services) -> Body:
    unknown = [state for state in call.body.state_filters if state not in STATES]
    pattern = call.get("transactional_id_pattern")
    try:
        found = await services.transactions.mine()
        wanted = set(patterns.matching(pattern, (name for name, _ in found))) if pattern else None
    except Refused:
        return {"error_code": Code.INVALID_REGULAR_EXPRESSION, "transaction_states": []}
    except LakestreamError as error:
        return {"error_code": transaction_code(error), "unknown_state_filters": unknown, "transaction_states": []}
    now_ms = services.clock.now_ms()
    return {
        "error_code": Code.NONE,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": name,
                "producer_id": record.producer.producer_id,
                "transaction_state": STATE_NAMES[record.state],
            }
            for name, record in found
            if _is_wanted(record, call, now_ms) and (wanted is None or name in wanted)
        ],
    }


def _is_wanted(record: Transaction, call: Call, now_ms: int) -> bool:
    states, producers = call.body.state_filters, call.body.producer_id_filters
    longer_than_ms = call.get("duration_filter", -1)
    return (
        (not states or STATE_NAMES[record.state] in states)
        and (not producers or record.producer.producer_id in producers)
        and (longer_than_ms < 0 or (record.started_ms >= 0 and now_ms - record.started_ms > longer_than_ms))
    )
