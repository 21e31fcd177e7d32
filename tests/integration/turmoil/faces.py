"""What the programs need of a client, whoever made it. Calls block, and end within some seconds or raise an error.

Each library has a module: confluent.py, kafka_python.py, aio.py.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from tests.integration.turmoil.history import Place, Position, Record
from tests.integration.turmoil.known import Stuck

CALL_S_MAX: Final = 15.0
BOUND_S: Final = CALL_S_MAX + 3
NO_RETURN: Final = "the client has not come back in"
REQUEST_MS: Final = 5_000
DELIVERY_MS: Final = 30_000
TRANSACTION_MS: Final = 10_000
SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000
POLL_INTERVAL_MS: Final = 20_000
"""A member whose program has not come back for so long is one no more, and the others go on."""
METADATA_MS: Final = 2_000
POLLED_MAX: Final = 200
PARTITIONS: Final = 3
"""Of every topic."""

Told: TypeAlias = Callable[[int | None], None]
"""Called with the offset, or with None where it is not known, from any thread."""
Polled: TypeAlias = dict[Place, list[Record]]


on_no_return: list[Callable[[Stuck], None]] = []
"""Told why, and what the client said lately, at the moment when a call of it has not come back."""


def tell_all(stuck: Stuck) -> None:
    for tell in on_no_return:
        tell(stuck)


def bounded(call: Callable[[], object], look: Callable[[float], Stuck]) -> None:
    """Some calls of some clients wait for ever when a broker went away at the wrong moment. `look`: into the client,
    which was called at that time of the monotonic clock."""
    failed: list[BaseException] = []
    start_s = time.monotonic()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND_S)
    if thread.is_alive():
        stuck = look(start_s)
        tell_all(stuck)
        raise TimeoutError(f"{NO_RETURN} {BOUND_S:.0f} s: {stuck.cause}")
    if failed:
        raise failed[0]


class Sender(Protocol):
    """An idempotent producer."""

    def send(self, place: Place, value: str, told: Told) -> None: ...

    def wait(self, wait_s: float) -> None: ...

    def close(self) -> None: ...


class Reader(Protocol):
    """A member of a group."""

    def poll(self, wait_s: float) -> tuple[int, Polled]:
        """And the session that it was in."""

    def commit(self, positions: Sequence[Position]) -> None: ...

    def rewind(self, positions: Mapping[Place, int]) -> None: ...

    def close(self) -> None: ...


class Writer(Protocol):
    """A transactional producer. Making one fences whoever wrote under the id before."""

    def begin(self) -> None: ...

    def send(self, place: Place, value: str, told: Told) -> None: ...

    def send_offsets(self, positions: Sequence[Position], reader: Any, group: str) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """As a crash: what is open stays so."""


class Library(Protocol):
    """A module with these names in it."""

    ERRORS: tuple[type[Exception], ...]

    def Sender(self, bootstrap: str, name: str) -> Sender: ...

    def Writer(self, bootstrap: str, transactional_id: str) -> Writer: ...

    def Reader(self, bootstrap: str, name: str, topics: Sequence[str], group: str, *, committed: bool) -> Reader: ...
