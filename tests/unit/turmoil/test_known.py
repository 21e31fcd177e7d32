"""A call that never comes back is laid to the client where that is known, and to nobody where it is not."""

import logging
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.turmoil import faces
from tests.integration.turmoil.faces import NO_RETURN, bounded
from tests.integration.turmoil.known import (
    KAFKA_PYTHON_DROPPED,
    KAFKA_PYTHON_TRIES,
    LIBRDKAFKA_DOWN,
    LIBRDKAFKA_GONE,
    UNKNOWN,
    Stuck,
    of_kafka_python,
    of_librdkafka,
)
from tests.integration.turmoil.quiet import quiet_clients, warnings_of

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
ANSWERED = (
    "APIRESULT [moves#producer-1] [thrd:main]: Transactional API begin_transaction (intermediary, calling) result"
)
DOWN = "COORD [moves#producer-1] [thrd:main]: a/0: Coordinator connection is still down: querying for new coordinator"


def handle(number: int, references: int) -> str:
    return (
        f"TERMINATE [moves] [thrd:a/0]: a/0: Handle is terminating in state INIT: {references} refcnts (0x{number}), 0"
    )


def ended(number: int) -> str:
    return f"TERMINATE [moves] [thrd:a/0]: a/0: Handle terminates in state DOWN: 1 refcnts (0x{number}), 0 toppar(s)"


def committing(await_ready: Any) -> tuple[Any, Any, Any]:
    """kafka-python's own sender, which has a commit to send: it, its transactions, and what the caller waits for."""
    manager = TransactionManager(transactional_id="pays", api_version=(2, 5))
    manager._current_state, manager._transaction_started = TransactionState.IN_TRANSACTION, True
    manager._transaction_coordinator = "coordinator-0"
    client = SimpleNamespace(cluster=None, await_ready=await_ready)
    accumulator = SimpleNamespace(has_incomplete=False)
    return Sender(client, None, accumulator, transaction_manager=manager), manager, manager.begin_commit()


def test_kafka_python_forgets_a_request_whose_coordinator_is_away() -> None:
    """When this fails, kafka-python has been mended, and its calls need no bound any more."""

    def refused(node: str, timeout_ms: int) -> bool:
        raise KafkaConnectionError(f"Node {node} not ready after {timeout_ms} ms")

    with quiet_clients():
        sender, manager, result = committing(refused)
        assert sender._maybe_send_pending_request()
        said = warnings_of(threading.get_ident(), 0.0)
    (left,) = [handler for *_, handler in manager._pending_requests]
    assert isinstance(left, FindCoordinatorHandler), "it asks who coordinates, and has nothing to tell them"
    assert not manager.has_in_flight_transactional_request()
    assert not result.is_done
    assert of_kafka_python(said, has_more=False) == KAFKA_PYTHON_DROPPED


def test_a_request_of_kafka_python_that_waits_is_not_lost() -> None:
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
def test_an_idle_kafka_python_that_dropped_nothing_is_a_riddle(lines: list[str]) -> None:
    assert of_kafka_python(lines, has_more=False) == UNKNOWN


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([ANSWERED, ADDED, DOWN, handle(1, 3), handle(1, 2)], LIBRDKAFKA_GONE),
        ([handle(1, 2)], LIBRDKAFKA_GONE),
        ([ANSWERED, ADDED, DOWN, handle(1, 2), ended(1)], LIBRDKAFKA_DOWN),
        ([ANSWERED, ADDED, DOWN, handle(1, 1)], LIBRDKAFKA_DOWN),
        ([DOWN, ANSWERED, ADDED], UNKNOWN),
        ([handle(1, 2), handle(2, 2), ended(1), ended(2), ANSWERED], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_librdkafka_and_the_coordinator_that_is_gone(lines: list[str], cause: str) -> None:
    assert of_librdkafka(lines) == cause


def test_a_call_that_does_not_come_back_is_told_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Stuck] = []
    stuck, over = Stuck("the moon", "and what it said"), threading.Event()
    monkeypatch.setattr(faces, "BOUND_S", 0.05)
    monkeypatch.setattr(faces, "on_no_return", [told.append])
    try:
        with pytest.raises(TimeoutError, match=f"{NO_RETURN}.*the moon"):
            bounded(over.wait, lambda start_s: stuck)
    finally:
        over.set()
    assert told == [stuck]
    bounded(over.wait, lambda start_s: stuck)
    assert told == [stuck]


@pytest.fixture
def quiet() -> Iterator[None]:
    """Before pytest looks for loggers that keep their lines to themselves, to listen there as well."""
    with quiet_clients():
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("logger", LOGGERS)
def test_what_a_library_warns_of_is_kept_by_thread_and_goes_nowhere_else(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.warning("of %s", "this one")
    logger.debug("too much")
    other = threading.Thread(target=logger.warning, args=("of another",))
    other.start()
    other.join()
    (line,) = warnings_of(threading.get_ident(), 0.0)
    assert line.endswith(f"{logger.name}: of this one")
    assert warnings_of(threading.get_ident(), float("inf")) == []
    assert not caplog.records


def test_nothing_is_kept_of_what_is_over() -> None:
    with quiet_clients():
        LOGGERS[0].warning("this")
        assert warnings_of(threading.get_ident(), 0.0)
    LOGGERS[0].warning("that")
    assert warnings_of(threading.get_ident(), 0.0) == []
