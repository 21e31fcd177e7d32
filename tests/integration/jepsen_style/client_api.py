"""Interface of the clients for the programs. Calls block, and return within some seconds or raise an error.

Each library has a module: confluent_client.py, kafka_python_client.py, aiokafka_client.py.
"""

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from tests.integration.jepsen_style.history import Place, Position, Record
from tests.integration.jepsen_style.known_client_bugs import HungCall

CALL_S_MAX: Final = 15.0
BOUND_S: Final = CALL_S_MAX + 3
NO_RETURN: Final = "the client has not returned within"
REQUEST_MS: Final = 5_000
DELIVERY_MS: Final = 30_000
TRANSACTION_MS: Final = 10_000
SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000
POLL_INTERVAL_MS: Final = 20_000
"""A member whose program does not poll for this time is removed from the group."""
METADATA_MS: Final = 2_000
POLLED_MAX: Final = 200
PARTITIONS: Final = 3
"""Partitions of every topic."""

BASE_MS: Final = 1_700_000_000_000

OffsetCallback: TypeAlias = Callable[[int | None], None]
"""Called with the offset of a sent record, or with None if it is unknown, from any thread."""
PolledRecords: TypeAlias = dict[Place, list[Record]]


hung_call_listeners: list[Callable[[HungCall], None]] = []
"""Called with the cause and the state of the client when a call hangs."""


def report_hung_call(hung_call: HungCall) -> None:
    for listener in hung_call_listeners:
        listener(hung_call)


def bounded(call: Callable[[], object], inspect: Callable[[float], HungCall]) -> None:
    """Limits the time of a call: some calls of some clients hang forever if a broker fails at a certain moment.

    `inspect` returns the state of the client; its argument is the start of the call on the monotonic clock."""
    errors: list[BaseException] = []
    start_s = time.monotonic()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND_S)
    if thread.is_alive():
        hung_call = inspect(start_s)
        report_hung_call(hung_call)
        raise TimeoutError(f"{NO_RETURN} {BOUND_S:.0f} s: {hung_call.cause}")
    if errors:
        raise errors[0]


class Content(NamedTuple):
    """Content of a record without its value, from which it follows: so readers can check it."""

    key: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]


def content_of(value: str) -> Content:
    number = zlib.crc32(value.encode())
    key = b"key %d" % (number % 10) if number % 4 else None
    return Content(key, BASE_MS + number % 1_000_000, (("number", b"%d" % number),) if number % 3 == 0 else ())


def text_of(value: bytes | None, content: Content) -> str:
    """Returns the value of a record that was read, with its other content if this is not what was sent."""
    text = (value or b"").decode()
    return text if content == content_of(text) else f"{text} with {content}"


class IdempotentProducer(Protocol):
    """Idempotent producer."""

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None: ...

    def wait(self, wait_s: float) -> None: ...

    def close(self) -> None: ...


class GroupConsumer(Protocol):
    """Member of a consumer group."""

    def poll(self, wait_s: float) -> tuple[int, PolledRecords]:
        """Returns the session, and the records polled in it."""

    def commit(self, positions: Sequence[Position]) -> None: ...

    def rewind(self, positions: Mapping[Place, int]) -> None: ...

    def close(self) -> None: ...


class TransactionalProducer(Protocol):
    """Transactional producer. Its creation fences the previous producer with the same id."""

    def begin(self) -> None: ...

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None: ...

    def send_offsets(self, positions: Sequence[Position], reader: Any, group: str) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Closes the client like a crash: an open transaction stays open."""


class Library(Protocol):
    """Module with these names."""

    ERRORS: tuple[type[Exception], ...]

    def IdempotentProducer(self, bootstrap: str, name: str) -> IdempotentProducer: ...

    def TransactionalProducer(self, bootstrap: str, transactional_id: str) -> TransactionalProducer: ...

    def GroupConsumer(
        self, bootstrap: str, name: str, topics: Sequence[str], group: str, *, committed: bool
    ) -> GroupConsumer: ...
