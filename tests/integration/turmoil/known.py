"""Why a call of a client never comes back, where that is known to be the client's own fault.

Read by: confluent.py, kafka_python.py and aio.py, when a call is overdue. Whatever is not recognised here has no name,
and the run fails for it: a broker may hold a request, or have given an answer that its client cannot live with.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

KAFKA_PYTHON_DROPPED: Final = "kafka-python dropped the request: its coordinator was not ready"
"""Seen in 3.0.12. `Sender._maybe_send_pending_request` takes a request out of the queue and waits for the coordinator's
connection. `await_ready` raises when that fails, where the caller expects False, and the caller puts a request back
only if it has no node: this one is forgotten, and nobody ends the wait of commit_transaction, abort_transaction or
send_offsets_to_transaction. Any broker that is gone for a moment does it."""
KAFKA_PYTHON_TRIES: Final = "kafka-python still tries: it knows no time-out for this call"
AIOKAFKA_TRIES: Final = "aiokafka was given up: it knows no time-out for this call"
LIBRDKAFKA_GONE: Final = "librdkafka waits for a coordinator that has left the metadata (librdkafka issue 5511)"
"""Nobody asks for the next one: the thread of that broker has ended, and only it would have woken the request."""
LIBRDKAFKA_DOWN: Final = "librdkafka still asks for a coordinator beyond the call's time-out (librdkafka issue 5456)"
UNKNOWN: Final = "nobody knows why"
CLIENTS_FAULTS: Final = frozenset({KAFKA_PYTHON_DROPPED, LIBRDKAFKA_GONE})
"""Nothing is left to look into."""

_DROPS: Final = "Got an exception when trying to find a node to send a transactional request to"
_COORDINATOR: Final = " coordinator-"
"""So kafka-python calls a connection to one. Whoever is to say which broker that is has another name, and that question
is repeated."""
_CALLBACK_FAILED: Final = "Error processing"
_LINGERS: Final = re.compile(r"Handle is terminating in state \w+: (\d+) refcnts \((0x[0-9a-f]+)\)")
_ENDS: Final = re.compile(r"Handle terminates in state \w+: \d+ refcnts \((0x[0-9a-f]+)\)")
_HELD: Final = 2
"""References to a broker that is gone: its thread's own, and at least that of somebody who waits for it."""
_DOWN: Final = "Coordinator connection is still down: querying for new coordinator"


class Stuck(NamedTuple):
    cause: str
    said: str
    """All that the client has to say about it."""


def of_kafka_python(lines: Sequence[str], *, has_more: bool) -> str:
    """`lines`: warnings of the client since the call began. `has_more`: a request waits to be sent or answered."""
    if has_more:
        return KAFKA_PYTHON_TRIES
    if any(_CALLBACK_FAILED in line for line in lines):
        return UNKNOWN  # an answer that it could not handle
    dropped = any(_DROPS in line and _COORDINATOR in line for line in lines)
    return KAFKA_PYTHON_DROPPED if dropped else UNKNOWN


def of_librdkafka(lines: Sequence[str]) -> str:
    """Of send_offsets_to_transaction. `lines`: what the client said with debug=eos,broker."""
    if _lingering(lines):
        return LIBRDKAFKA_GONE
    return LIBRDKAFKA_DOWN if any(_DOWN in line for line in _since_last_answer(lines)) else UNKNOWN


def _lingering(lines: Sequence[str]) -> set[str]:
    """Handles of brokers that are gone and still waited for."""
    references: dict[str, int] = {}
    for line in lines:
        if found := _LINGERS.search(line):
            references[found[2]] = int(found[1])
        elif found := _ENDS.search(line):
            references.pop(found[1], None)
    return {handle for handle, count in references.items() if count >= _HELD}


def _since_last_answer(lines: Sequence[str]) -> Sequence[str]:
    answered = [number for number, line in enumerate(lines) if line.startswith("APIRESULT ")]
    return lines[answered[-1] + 1 :] if answered else lines
