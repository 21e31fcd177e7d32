"""Kafka clients of the commands: librdkafka with its usual settings, and errors as one line.

A broker that cannot be reached is an error within five seconds; log lines of the library are suppressed.
"""

import logging
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types export nothing
    AdminClient,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

from lakestream.aio.progress import reported
from lakestream.cli.exit_status import fail
from lakestream.config.parsing import format_address, parse_address
from lakestream.config.suggestions import suggest
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable

KAFKA_PORT: Final = 9092
CONNECT_S_MAX: Final = 1.5
RESPONSE_S_MAX: Final = 3.0
WORK_S_MAX: Final = 30.0
ADVERTISED_S_MAX: Final = 2.0
ADVERTISED_MAX: Final = 16
"""Brokers whose addresses are checked."""

T = TypeVar("T")

_silent = logging.getLogger("lakestream.client")
_silent.propagate = False
_silent.addHandler(logging.NullHandler())


class _Reasons:
    """The last error that librdkafka reported: it retries silently, and the final error is only a timeout."""

    def __init__(self) -> None:
        self._clients: list[Any] = []
        self._last = ""

    def note(self, error: Any) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # the errors before it have the reasons
            self._last = str(error.str())

    def add_client(self, client: Any) -> None:
        self._clients.append(client)

    def last(self) -> str:
        for client in self._clients:  # errors are reported while a client is polled
            client.poll(0)
        return self._last


_reasons = _Reasons()


def config_of(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Returns the configuration of a client. Unavailable if no broker accepts connections."""
    _check_reachable(bootstrap)
    fixed = {"client.id": "lakestream-cli", "log_level": 0, "logger": _silent, "error_cb": _reasons.note}
    return {"bootstrap.servers": bootstrap, **fixed, **more}


def admin_of(bootstrap: str) -> AdminClient:
    admin = AdminClient(config_of(bootstrap))
    _reasons.add_client(admin)
    return admin


def cluster_of(client: Any, bootstrap: str) -> ClusterMetadata:
    """Returns brokers and topics. Also the first request to a broker: Unavailable if none responds, or if clients
    cannot connect to the addresses that it returns."""
    try:
        with reported(f"connecting to {bootstrap}"):
            cluster: ClusterMetadata = client.list_topics(timeout=RESPONSE_S_MAX)
    except KafkaException as error:
        _reasons.add_client(client)
        raise Unavailable(with_reason(f"no Kafka broker responds at {bootstrap} ({message_of(error)})")) from error
    check_advertised(bootstrap, tuple(sorted((one.host, one.port) for one in cluster.brokers.values())))
    return cluster


def topics_of(client: Any, bootstrap: str) -> dict[str, TopicMetadata]:
    """Returns all topics; raises as `cluster_of`."""
    return dict(cluster_of(client, bootstrap).topics)


@cache
def check_advertised(bootstrap: str, addresses: Sequence[tuple[str, int]]) -> None:
    """Checks that the addresses which brokers return to clients accept connections.

    Unavailable if none does; a warning if some do not, because a broker that was stopped is listed for seconds."""
    checked = addresses[:ADVERTISED_MAX]
    with reported(f"connecting to {', '.join(format_address(*at) for at in checked)}"):
        reasons = _connect_all(checked)
    failed = {at: reason for at, reason in zip(checked, reasons, strict=True) if reason}
    if not failed:
        return
    listed = ", ".join(f"{format_address(*at)} ({reason})" for at, reason in failed.items())
    text = (
        f"the broker at {bootstrap} returns {'these addresses' if len(failed) > 1 else 'this address'} to clients,"
        f" and no connection is possible: {listed}"
    )
    action = "start the broker with --advertise HOST:PORT, an address that clients can reach"
    if len(failed) == len(checked):
        raise Unavailable(f"{text}; {action}")
    fail(f"warning: {text}; if it persists, {action}", 0)


def _connect_all(addresses: Sequence[tuple[str, int]]) -> list[str]:
    """Returns for each address why no connection is possible; empty if it is. Daemon threads: DNS has no timeout."""
    reasons = [f"no response within {ADVERTISED_S_MAX:g} s"] * len(addresses)

    def connect(place: int) -> None:
        reasons[place] = _connect_error(*addresses[place], ADVERTISED_S_MAX)

    threads = [threading.Thread(target=connect, args=(place,), daemon=True) for place in range(len(addresses))]
    until_s = time.monotonic() + ADVERTISED_S_MAX
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return list(reasons)


def _connect_error(host: str, port: int, wait_s: float) -> str:
    try:
        socket.create_connection((host, port), timeout=wait_s).close()
    except socket.gaierror as error:
        return f"the name does not resolve: {(error.strerror or str(error)).lower()}"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def with_reason(text: str) -> str:
    """Adds the last error that librdkafka reported, unless the text has it."""
    reason = _reasons.last()
    return f"{text}; the client's last error: {reason}" if reason and reason not in text else text


def topic_settings(admin: AdminClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the settings of each topic, in one request."""
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources)
    found: dict[str, dict[str, str]] = {}
    for resource, future in futures.items():
        entries = wait_for(future, f"topic {resource.name} cannot be described")
        found[resource.name] = {entry.name: entry.value or "" for entry in entries.values()}
    return found


def topic_of(client: Any, bootstrap: str, name: str) -> TopicMetadata:
    """Returns a topic, found among all topics: a metadata request for its name would create it."""
    topics = topics_of(client, bootstrap)
    if name not in topics:
        near = suggest(name, topics)
        advice = f"did you mean {' or '.join(near)}?" if near else "lakestream topic list prints all topics"
        raise Missing(f"topic {name} does not exist; {advice}")
    return topics[name]


def wait_for(future: "Future[T]", what: str) -> T:
    """Waits for the response to an admin request; raises its error as one line."""
    try:
        with reported("waiting for the response of a broker"):
            return future.result(timeout=WORK_S_MAX)
    except TimeoutError:
        raise Unavailable(with_reason(f"{what}: the request timed out after {WORK_S_MAX:g} s")) from None
    except KafkaException as error:
        raise error_of(error, what) from error


def error_of(error: KafkaException, what: str) -> LakestreamError:
    kind = Unavailable if error.args and error.args[0].retriable() else Rejected
    text = f"{what}: {message_of(error)}"
    return kind(text if kind is Rejected else with_reason(text))


def message_of(error: Exception) -> str:
    kafka_error = error.args[0] if error.args else error
    return str(kafka_error.str()) if hasattr(kafka_error, "str") else str(kafka_error)


def settings_from(pairs: Sequence[str]) -> dict[str, str]:
    """Parses `name=value` pairs."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Rejected(f"--set {pair!r}: write it as name=value")
        settings[name] = value
    return settings


def _check_reachable(bootstrap: str) -> None:
    """Checks that one of the brokers accepts connections. The client library would retry silently until its timeout."""
    reasons = []
    for word in bootstrap.split(","):
        host, port = parse_address(word.strip(), "--bootstrap", KAFKA_PORT)
        if not (reason := _connect_error(host, port, CONNECT_S_MAX)):
            return
        reasons.append(reason)
    raise Unavailable(
        f"no broker can be reached at {bootstrap} ({', '.join(dict.fromkeys(reasons))}):"
        " start one with lakestream serve, or name another with --server"
    )
