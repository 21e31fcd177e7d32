"""What the commands that talk to a broker share: over the Kafka protocol, with the same client that users have.

Whoever cannot be reached is one clear line within five seconds; the client library's own log lines stay silent.
"""

import argparse
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata

from lakestream.addresses import parse_address
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable

BOOTSTRAP: Final = "127.0.0.1:9092"
KAFKA_PORT: Final = 9092
CONNECT_S_MAX: Final = 1.5
ANSWER_S_MAX: Final = 3.0
WORK_S_MAX: Final = 30.0

T = TypeVar("T")

_silent = logging.getLogger("lakestream.client")
_silent.propagate = False
_silent.addHandler(logging.NullHandler())


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap", metavar="HOST:PORT[,…]", default=BOOTSTRAP, help=f"brokers to ask ({BOOTSTRAP})")


def config_of(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Settings of a client, after a look whether there is anybody at all."""
    _check_somebody_listens(bootstrap)
    return {"bootstrap.servers": bootstrap, "client.id": "lakestream-cli", "log_level": 0, "logger": _silent, **more}


def admin_of(bootstrap: str) -> AdminClient:
    return AdminClient(config_of(bootstrap))


def topics_of(client: Any, bootstrap: str) -> dict[str, TopicMetadata]:
    """What there is. Also the first question to a broker, so it says when none answers."""
    try:
        return dict(client.list_topics(timeout=ANSWER_S_MAX).topics)
    except KafkaException as error:
        raise Unavailable(f"no Kafka broker answers at {bootstrap} ({why(error)})") from error


def topic_of(client: Any, bootstrap: str, name: str) -> TopicMetadata:
    """Looked up among all topics: asking for one by its name would make it."""
    topics = topics_of(client, bootstrap)
    if name not in topics:
        raise Missing(f"there is no topic {name}: make it with lakestream topic create {name}")
    return topics[name]


def wait_for(future: "Future[T]", what: str) -> T:
    """The answer to an administrative request; what went wrong as one line."""
    try:
        return future.result(timeout=WORK_S_MAX)
    except TimeoutError:
        raise Unavailable(f"{what}: no answer within {WORK_S_MAX:g} s") from None
    except KafkaException as error:
        raise refusal(error, what) from error


def refusal(error: KafkaException, what: str) -> LakestreamError:
    kind = Unavailable if error.args and error.args[0].retriable() else Rejected
    return kind(f"{what}: {why(error)}")


def why(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return str(said.str()) if hasattr(said, "str") else str(said)


def settings_from(pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` words as a mapping."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Rejected(f"--set {pair!r}: write it as name=value")
        found[name] = value
    return found


def _check_somebody_listens(bootstrap: str) -> None:
    """The client would try again and again without a word until its time is over; the system knows at once."""
    reasons = []
    for word in bootstrap.split(","):
        host, port = parse_address(word.strip(), "--bootstrap", KAFKA_PORT)
        try:
            socket.create_connection((host, port), timeout=CONNECT_S_MAX).close()
            return
        except OSError as error:
            reasons.append((error.strerror or str(error)).lower())
    raise Unavailable(
        f"no broker can be reached at {bootstrap} ({', '.join(dict.fromkeys(reasons))}):"
        " start one with lakestream serve, or name another with --bootstrap"
    )
