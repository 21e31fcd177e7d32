"""ListTransactions (key 66), v0-2.

Lists the transactional ids that this broker coordinates. Clients send it to all brokers, which together return each id
once.

The response names filtered states that do not exist.
v1 filter by duration · v2 filter by pattern of ids (RE2)
"""

import asyncio
from typing import Final

from lakestream.coordination.groups import regex_subscription
from lakestream.coordination.groups.errors import GroupRequestFailed
from lakestream.errors import LakestreamError
from lakestream.metadata.transactions import Transaction
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.transactions.shared import STATE_NAMES, transaction_code
from lakestream.protocol.kafka.services import TransactionsContext

STATES: Final = frozenset(STATE_NAMES.values())


@handles(66, versions=range(0, 3))
async def list_transactions(call: Call, context: TransactionsContext) -> Body:
    unknown = [state for state in call.body.state_filters if state not in STATES]
    pattern = call.get("transactional_id_pattern")
    try:
        transactions = await context.transactions.list_coordinated()
        names = tuple(name for name, _ in transactions)
        matching_ids = (
            set(await asyncio.to_thread(regex_subscription.matching_in_time, pattern, names)) if pattern else None
        )
    except GroupRequestFailed:
        return {"error_code": Code.INVALID_REGULAR_EXPRESSION, "transaction_states": []}
    except LakestreamError as error:
        return {"error_code": transaction_code(error), "unknown_state_filters": unknown, "transaction_states": []}
    now_ms = context.clock.now_ms()
    return {
        "error_code": Code.NONE,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": name,
                "producer_id": record.producer.producer_id,
                "transaction_state": STATE_NAMES[record.state],
            }
            for name, record in transactions
            if _matches(record, call, now_ms) and (matching_ids is None or name in matching_ids)
        ],
    }


def _matches(record: Transaction, call: Call, now_ms: int) -> bool:
    states, producers = call.body.state_filters, call.body.producer_id_filters
    duration_ms_min = call.get("duration_filter", -1)
    return (
        (not states or STATE_NAMES[record.state] in states)
        and (not producers or record.producer.producer_id in producers)
        and (duration_ms_min < 0 or (record.started_ms >= 0 and now_ms - record.started_ms > duration_ms_min))
    )
