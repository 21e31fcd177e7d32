"""Causes of hung calls that are known bugs of the clients.

Used by the client modules when a call is overdue. The run fails for an unknown cause: a broker may hold a request, or
have sent a response that the client cannot handle.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

KAFKA_PYTHON_DROPPED: Final = "kafka-python dropped the request: its coordinator was not ready"
"""Seen in 3.0.12. `Sender._maybe_send_pending_request` takes a request out of the queue and waits for the coordinator's
connection. If that fails, `await_ready` raises, but the caller expects False, and puts a request back only if it has no
node. So the request is lost, and commit_transaction, abort_transaction or send_offsets_to_transaction waits forever. A
short outage of any broker is enough."""
KAFKA_PYTHON_TRIES: Final = "kafka-python still retries: this call has no timeout"
AIOKAFKA_TRIES: Final = "the call of aiokafka was cancelled: it has no timeout"
LIBRDKAFKA_GONE: Final = "librdkafka waits for a coordinator that has left the metadata (librdkafka issue 5511)"
"""librdkafka does not look for the next coordinator: only the thread of that broker could wake the request, and it has
ended."""
LIBRDKAFKA_DOWN: Final = (
    "librdkafka still queries for a coordinator after the timeout of the call (librdkafka issue 5456)"
)
LIBRDKAFKA_ABORTS_NOTHING: Final = "librdkafka aborted a transaction that the coordinator does not know"
"""librdkafka counts an AddPartitionsToTxn that was rejected with NOT_COORDINATOR as if it may have taken effect. If the
program aborts before the request is repeated, EndTxn is sent for a transaction that does not exist, and the error is
fatal for the client. Apache Kafka's coordinator returns the same error (INVALID_TXN_STATE)."""
UNKNOWN: Final = "unknown cause"
CLIENT_BUGS: Final = frozenset({KAFKA_PYTHON_DROPPED, LIBRDKAFKA_GONE, LIBRDKAFKA_ABORTS_NOTHING})
"""Causes without anything left to investigate."""

_DROPS: Final = "Got an exception when trying to find a node to send a transactional request to"
_COORDINATOR: Final = " coordinator-"
"""Name of a connection to a coordinator in kafka-python. FindCoordinator requests use other connections, and are
retried."""
_CALLBACK_FAILED: Final = "Error processing"
_LINGERS: Final = re.compile(r"Handle is terminating in state \w+: (\d+) refcnts \((0x[0-9a-f]+)\)")
_ENDS: Final = re.compile(r"Handle terminates in state \w+: \d+ refcnts \((0x[0-9a-f]+)\)")
_HELD: Final = 2
"""References to a removed broker: that of its thread, and at least one of a waiting request."""
_DOWN: Final = "Coordinator connection is still down: querying for new coordinator"


class HungCall(NamedTuple):
    cause: str
    details: str
    """State and log lines of the client."""


def of_kafka_python(lines: Sequence[str], *, has_more: bool) -> str:
    """Returns the cause of a hung call of kafka-python.

    `lines` are the client's warnings since the call began. With `has_more` a request is pending or in flight."""
    if has_more:
        return KAFKA_PYTHON_TRIES
    if any(_CALLBACK_FAILED in line for line in lines):
        return UNKNOWN  # a response that kafka-python could not handle
    dropped = any(_DROPS in line and _COORDINATOR in line for line in lines)
    return KAFKA_PYTHON_DROPPED if dropped else UNKNOWN


def of_librdkafka(lines: Sequence[str]) -> str:
    """Returns the cause of a hung send_offsets_to_transaction. `lines` is the log with debug=eos,broker."""
    if _lingering(lines):
        return LIBRDKAFKA_GONE
    return LIBRDKAFKA_DOWN if any(_DOWN in line for line in _since_last_result(lines)) else UNKNOWN


def aborts_nothing(lines: Sequence[str]) -> bool:
    """Returns whether librdkafka ended a transaction whose partitions were never added. `lines` is its log."""
    begins = [number for number, line in enumerate(lines) if "Transactional API called: begin_transaction" in line]
    transaction = lines[begins[-1] :] if begins else lines
    rejected = any(line.startswith("ADDPARTS ") and "Not coordinator" in line for line in transaction)
    return rejected and not any("registered with transaction" in line for line in transaction)


def _lingering(lines: Sequence[str]) -> set[str]:
    """Returns the handles of removed brokers for which requests still wait."""
    references: dict[str, int] = {}
    for line in lines:
        if match := _LINGERS.search(line):
            references[match[2]] = int(match[1])
        elif match := _ENDS.search(line):
            references.pop(match[1], None)
    return {handle for handle, count in references.items() if count >= _HELD}


def _since_last_result(lines: Sequence[str]) -> Sequence[str]:
    results = [number for number, line in enumerate(lines) if line.startswith("APIRESULT ")]
    return lines[results[-1] + 1 :] if results else lines
