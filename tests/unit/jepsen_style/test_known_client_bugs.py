"""Tests that hung calls are attributed to known bugs of clients, and only to those."""

import logging
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.jepsen_style import client_api
from tests.integration.jepsen_style.client_api import NO_RETURN, bounded
from tests.integration.jepsen_style.client_logging import quiet_clients, warnings_of_thread
from tests.integration.jepsen_style.known_client_bugs import (
    KAFKA_PYTHON_DROPPED,
    KAFKA_PYTHON_TRIES,
    LIBRDKAFKA_DOWN,
    LIBRDKAFKA_GONE,
    UNKNOWN,
    HungCall,
    aborts_nothing,
    of_kafka_python,
    of_librdkafka,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.errors import KafkaConnectionError  # type: ignore[import-untyped]
    from kafka.producer.sender import Sender  # type: ignore[import-untyped]
    from kafka.producer.transaction_manager import (  # type: ignore[import-untyped]
        FindCoordinatorHandler,
        TransactionManager,
        TransactionState,
    )

LOGGERS = [logging.getLogger("kafka.cluster"), logging.getLogger("aiokafka.cluster")]
ADDED = "ADDOFFSETS [moves#producer-1] [thrd:main]: AddOffsetsToTxn response from TxnCoordinator/1: NO_ERROR ()"
RESULT = "APIRESULT [moves#producer-1] [thrd:main]: Transactional API begin_transaction (intermediary, calling) result"
DOWN = "COORD [moves#producer-1] [thrd:main]: a/0: Coordinator connection is still down: querying for new coordinator"


def handle(number: int, references: int) -> str:
    return (
        f"TERMINATE [moves] [thrd:a/0]: a/0: Handle is terminating in state INIT: {references} refcnts (0x{number}), 0"
    )


def ended(number: int) -> str:
    return f"TERMINATE [moves] [thrd:a/0]: a/0: Handle terminates in state DOWN: 1 refcnts (0x{number}), 0 toppar(s)"


def committing(await_ready: Any) -> tuple[Any, Any, Any]:
    """Returns a sender of kafka-python with a pending commit, its transaction manager, and the result of the commit."""
    manager = TransactionManager(transactional_id="pays", api_version=(2, 5))
    manager._current_state, manager._transaction_started = TransactionState.IN_TRANSACTION, True
    manager._transaction_coordinator = "coordinator-0"
    client = SimpleNamespace(cluster=None, await_ready=await_ready)
    accumulator = SimpleNamespace(has_incomplete=False)
    return Sender(client, None, accumulator, transaction_manager=manager), manager, manager.begin_commit()


def test_kafka_python_drops_a_request_when_its_coordinator_is_unavailable() -> None:
    """If this fails, the bug of kafka-python is fixed, and its calls need no time limit."""

    def refused(node: str, timeout_ms: int) -> bool:
        raise KafkaConnectionError(f"Node {node} not ready after {timeout_ms} ms")

    with quiet_clients():
        sender, manager, result = committing(refused)
        assert sender._maybe_send_pending_request()
        warnings_logged = warnings_of_thread(threading.get_ident(), 0.0)
    (pending,) = [handler for *_, handler in manager._pending_requests]
    assert isinstance(pending, FindCoordinatorHandler), "only a FindCoordinator request is pending"
    assert not manager.has_in_flight_transactional_request()
    assert not result.is_done
    assert of_kafka_python(warnings_logged, has_more=False) == KAFKA_PYTHON_DROPPED


def test_cause_is_a_retry_when_a_request_of_kafka_python_is_pending() -> None:
    assert of_kafka_python([], has_more=True) == KAFKA_PYTHON_TRIES


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["kafka.cluster: No node available for metadata refresh - backoff/retry"],
        ["Got an exception when trying to find a node to send a transactional request to: Node 0 not ready"],
        [
            "Got an exception when trying to find a node to send a transactional request to: Node coordinator-0 not",
            "kafka.future: Error processing callback: KeyError('a')",
        ],
    ],
)
def test_cause_is_unknown_when_kafka_python_is_idle_and_dropped_no_request(lines: list[str]) -> None:
    assert of_kafka_python(lines, has_more=False) == UNKNOWN


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([RESULT, ADDED, DOWN, handle(1, 3), handle(1, 2)], LIBRDKAFKA_GONE),
        ([handle(1, 2)], LIBRDKAFKA_GONE),
        ([RESULT, ADDED, DOWN, handle(1, 2), ended(1)], LIBRDKAFKA_DOWN),
        ([RESULT, ADDED, DOWN, handle(1, 1)], LIBRDKAFKA_DOWN),
        ([DOWN, RESULT, ADDED], UNKNOWN),
        ([handle(1, 2), handle(2, 2), ended(1), ended(2), RESULT], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_cause_of_librdkafka_follows_from_its_log(lines: list[str], cause: str) -> None:
    assert of_librdkafka(lines) == cause


BEGUN = "TXNAPI [moves#producer-1] [thrd:app]: Transactional API called: begin_transaction (in txn state Ready)"
REJECTED = (
    'ADDPARTS [moves#producer-1] [thrd:main]: TxnCoordinator/1: AddPartitionsToTxn response: partition "a": [0]:'
    " Broker: Not coordinator"
)
REGISTERED = "ADDPARTS [moves#producer-1] [thrd:main]: a [0] registered with transaction"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([BEGUN, REGISTERED, BEGUN, REJECTED], True),
        ([BEGUN, REJECTED, REGISTERED], False),
        ([BEGUN, REJECTED, BEGUN], False),
        ([], False),
    ],
)
def test_librdkafka_aborts_nothing_when_its_partitions_were_only_rejected(lines: list[str], expected: bool) -> None:
    assert aborts_nothing(lines) == expected


def test_hung_call_is_reported_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[HungCall] = []
    hung_call, over = HungCall("a cause", "details"), threading.Event()
    monkeypatch.setattr(client_api, "BOUND_S", 0.05)
    monkeypatch.setattr(client_api, "hung_call_listeners", [reported.append])
    try:
        with pytest.raises(TimeoutError, match=f"{NO_RETURN}.*a cause"):
            bounded(over.wait, lambda start_s: hung_call)
    finally:
        over.set()
    assert reported == [hung_call]
    bounded(over.wait, lambda start_s: hung_call)
    assert reported == [hung_call]


@pytest.fixture
def quiet() -> Iterator[None]:
    """Captures the logs before pytest adds its handlers to loggers that do not propagate."""
    with quiet_clients():
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("logger", LOGGERS)
def test_warnings_of_a_library_are_kept_by_thread_and_not_passed_to_other_handlers(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.warning("of %s", "this one")
    logger.debug("too much")
    other = threading.Thread(target=logger.warning, args=("of another",))
    other.start()
    other.join()
    (line,) = warnings_of_thread(threading.get_ident(), 0.0)
    assert line.endswith(f"{logger.name}: of this one")
    assert warnings_of_thread(threading.get_ident(), float("inf")) == []
    assert not caplog.records


def test_warnings_are_dropped_at_the_end_of_the_block() -> None:
    with quiet_clients():
        LOGGERS[0].warning("this")
        assert warnings_of_thread(threading.get_ident(), 0.0)
    LOGGERS[0].warning("that")
    assert warnings_of_thread(threading.get_ident(), 0.0) == []
