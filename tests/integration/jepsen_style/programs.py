"""Programs that use the clients until they are stopped, each on a thread of its own. All calls go into the history.

When a call of a client fails, the program closes the client and creates another one, like a restarted program. A call
is recorded as done only if its response says so.
"""

import itertools
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tests.integration.jepsen_style.client_api import (
    PARTITIONS,
    GroupConsumer,
    IdempotentProducer,
    Library,
    OffsetCallback,
    PolledRecords,
    TransactionalProducer,
)
from tests.integration.jepsen_style.committed_offsets import read_committed_offsets
from tests.integration.jepsen_style.history import (
    ClientFailure,
    Commit,
    History,
    OffsetRead,
    Outcome,
    Place,
    Poll,
    Position,
    Send,
    Transaction,
    Write,
)

IN_FLIGHT_MAX: Final = 50
SEND_PAUSE_S: Final = 0.05
TRANSACTION_PAUSE_S: Final = 0.15
POLL_S: Final = 0.2
OFFSET_READ_PAUSE_S: Final = 0.4
RETRY_S: Final = 0.2
WRITES_MAX: Final = 6
ABORT_SHARE: Final = 0.15
CRASH_SHARE: Final = 0.03
ZOMBIE_SHARE: Final = 0.03
CRASH_S_MAX: Final = 12.0
"""Longer than the transaction timeout: some transactions are aborted by it."""


class Program:
    def __init__(self, name: str, library: Library, bootstrap: str, history: History) -> None:
        self.name = name
        self.library = library
        self.bootstrap = bootstrap
        self.history = history
        self.rng = random.Random(name)
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, wait_s: float) -> None:
        """Waits for the end of the thread, if it was started."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def check(self) -> None:
        """Raises the error that ended the program, if any."""
        if self.failure is not None:
            raise self.failure

    def join(self, wait_s: float) -> None:
        self.wait(wait_s)
        self.check()
        assert not self._thread.is_alive(), f"{self.name} did not end within {wait_s:.0f} s"

    def _run(self) -> None:
        """Runs one client after the other."""
        try:
            while not self.ended.is_set():
                start_s = self.history.now_s()
                try:
                    self.run_client()
                except self.library.ERRORS as error:
                    text = f"{type(error).__name__}: {error}"
                    end_s = self.history.now_s()
                    self.history.add(ClientFailure(client=self.name, start_s=start_s, end_s=end_s, what=text))
                    self.ended.wait(RETRY_S)
        except BaseException as error:
            self.failure = error

    def run_client(self) -> None:
        """Uses one client until the program is stopped or the client fails."""
        raise NotImplementedError

    def close(self, client: IdempotentProducer | GroupConsumer | TransactionalProducer | None) -> None:
        with suppress(*self.library.ERRORS):
            if client is not None:
                client.close()


class SendProgram(Program):
    """Sends records with several in flight. The client may retry a record, the program sends it only once."""

    def __init__(self, name: str, library: Library, bootstrap: str, history: History, topic: str) -> None:
        super().__init__(name, library, bootstrap, history)
        self._places = [Place(topic, number) for number in range(PARTITIONS)]
        self._numbers = itertools.count()
        self._in_flight: dict[str, tuple[Place, float]] = {}

    def run_client(self) -> None:
        sender = self.library.IdempotentProducer(self.bootstrap, self.name)
        try:
            while not self.ended.is_set():
                if len(self._in_flight) < IN_FLIGHT_MAX:
                    self._send(sender, self.rng.choice(self._places), f"{self.name}.{next(self._numbers)}")
                sender.wait(SEND_PAUSE_S)
        finally:
            self.close(sender)
            for value in list(self._in_flight):
                self._on_result(value, None)

    def _send(self, sender: IdempotentProducer, place: Place, value: str) -> None:
        self._in_flight[value] = (place, self.history.now_s())
        sender.send(place, value, lambda offset: self._on_result(value, offset))

    def _on_result(self, value: str, offset: int | None) -> None:
        place, start_s = self._in_flight.pop(value, (None, 0.0))
        if place is not None:  # None if the sender was closed before
            outcome = Outcome.UNKNOWN if offset is None else Outcome.DONE
            write, end_s = Write(place, value, offset), self.history.now_s()
            self.history.add(Send(client=self.name, start_s=start_s, end_s=end_s, write=write, outcome=outcome))


class OpenTransaction:
    """Transaction that has not ended yet."""

    def __init__(self, program: Program, name: str, group: str = "") -> None:
        self._program = program
        self._group = group
        self._start_s = program.history.now_s()
        self._writes: list[Write] = []
        self._offsets: dict[str, int] = {}
        self._ending_s: float | None = None
        self.name = name
        self.positions: tuple[Position, ...] = ()

    def send(self, writer: TransactionalProducer, place: Place, source: Position | None = None) -> None:
        value = f"{self.name}.{len(self._writes)}"
        self._writes.append(Write(place, value, source=source))
        writer.send(place, value, self._offset_callback(value))

    def _offset_callback(self, value: str) -> OffsetCallback:
        def set_offset(offset: int | None) -> None:
            if offset is not None:
                self._offsets[value] = offset

        return set_offset

    def commit(self, writer: TransactionalProducer) -> None:
        self._ending_s = self._program.history.now_s()
        try:
            writer.commit()
        except BaseException:
            self.record(Outcome.UNKNOWN)
            raise
        self.record(Outcome.DONE)

    def record(self, outcome: Outcome) -> None:
        writes = tuple(
            Write(write.place, write.value, self._offsets.get(write.value), write.source) for write in self._writes
        )
        self._program.history.add(
            Transaction(
                client=self._program.name,
                start_s=self._start_s,
                end_s=self._program.history.now_s(),
                writes=writes,
                ending_s=self._ending_s,
                outcome=outcome,
                group=self._group,
                positions=self.positions,
            )
        )


class TransactionProgram(Program):
    """Writes to several partitions in transactions.

    Some transactions are aborted. While `crashes` is set, some are left open, and some producers are fenced by a new
    one before their commit."""

    def __init__(
        self,
        name: str,
        library: Library,
        bootstrap: str,
        history: History,
        topics: Sequence[str],
        crashes: threading.Event,
    ) -> None:
        super().__init__(name, library, bootstrap, history)
        self._crashes = crashes
        self._places = [Place(topic, number) for topic in topics for number in range(PARTITIONS)]
        self._numbers = itertools.count()

    def run_client(self) -> None:
        writer = self.library.TransactionalProducer(self.bootstrap, self.name)
        try:
            while not self.ended.wait(TRANSACTION_PAUSE_S):
                transaction = self._write_transaction(writer)
                choice = (
                    self.rng.random() if self._crashes.is_set() else self.rng.uniform(CRASH_SHARE + ZOMBIE_SHARE, 1)
                )
                if choice < CRASH_SHARE:
                    transaction.record(Outcome.NO_EFFECT)
                    self.ended.wait(self.rng.uniform(0, CRASH_S_MAX))
                    return
                if choice < CRASH_SHARE + ZOMBIE_SHARE:
                    writer, zombie = self.library.TransactionalProducer(self.bootstrap, self.name), writer
                    self._commit_fenced(zombie, transaction)
                elif choice < CRASH_SHARE + ZOMBIE_SHARE + ABORT_SHARE:
                    transaction.record(Outcome.NO_EFFECT)
                    writer.abort()
                else:
                    transaction.commit(writer)
        finally:
            self.close(writer)

    def _write_transaction(self, writer: TransactionalProducer) -> OpenTransaction:
        writer.begin()
        transaction = OpenTransaction(self, f"{self.name}.{next(self._numbers)}")
        try:
            for place in self.rng.choices(self._places, k=self.rng.randint(1, WRITES_MAX)):
                transaction.send(writer, place)
        except BaseException:
            transaction.record(Outcome.NO_EFFECT)
            raise
        return transaction

    def _commit_fenced(self, zombie: TransactionalProducer, transaction: OpenTransaction) -> None:
        with suppress(*self.library.ERRORS):
            transaction.commit(zombie)
        self.close(zombie)


class ReadProgram(Program):
    """Reads records, and commits their offsets."""

    def __init__(
        self,
        name: str,
        library: Library,
        bootstrap: str,
        history: History,
        topics: Sequence[str],
        group: str,
        *,
        committed: bool,
    ) -> None:
        super().__init__(name, library, bootstrap, history)
        self.topics = topics
        self.group = group
        self._committed = committed
        self._client_numbers = itertools.count()

    def run_client(self) -> None:
        client_number = next(self._client_numbers)
        reader = self.library.GroupConsumer(
            self.bootstrap, self.name, self.topics, self.group, committed=self._committed
        )
        try:
            while not self.ended.is_set():
                polled = self.poll(reader, client_number)
                if polled:
                    self._commit(reader, _next_offsets(polled))
        finally:
            self.close(reader)

    def poll(self, reader: GroupConsumer, client_number: int) -> PolledRecords:
        start_s = self.history.now_s()
        session, polled = reader.poll(POLL_S)
        end_s = self.history.now_s()
        for place, records in polled.items():
            poll = Poll(
                client=self.name,
                start_s=start_s,
                end_s=end_s,
                session=1000 * client_number + session,
                group=self.group,
                committed=self._committed,
                place=place,
                records=tuple(records),
            )
            self.history.add(poll)
        return polled

    def _commit(self, reader: GroupConsumer, positions: tuple[Position, ...]) -> None:
        start_s, outcome = self.history.now_s(), Outcome.UNKNOWN
        try:
            reader.commit(positions)
            outcome = Outcome.DONE
        finally:
            end_s = self.history.now_s()
            self.history.add(
                Commit(
                    client=self.name,
                    start_s=start_s,
                    end_s=end_s,
                    group=self.group,
                    positions=positions,
                    outcome=outcome,
                )
            )


class CopyProgram(ReadProgram):
    """Reads records, writes a record for each, and commits the offsets in the same transaction."""

    def __init__(
        self, name: str, library: Library, bootstrap: str, history: History, source: str, target: str, group: str
    ) -> None:
        super().__init__(name, library, bootstrap, history, [source], group, committed=True)
        self.target = target
        self._numbers = itertools.count()

    def run_client(self) -> None:
        """Creates the producer first: it ends open transactions of its predecessor before the group's offsets are
        read."""
        client_number = next(self._client_numbers)
        create_reader: Any = getattr(self.library, "AssignedConsumer", self.library.GroupConsumer)
        writer, reader = self.library.TransactionalProducer(self.bootstrap, self.name), None
        try:
            reader = create_reader(self.bootstrap, self.name, self.topics, self.group, committed=True)
            while not self.ended.is_set():
                polled = self.poll(reader, client_number)
                if polled:
                    self._copy(reader, writer, polled)
        finally:
            self.close(reader)
            self.close(writer)

    def _copy(self, reader: GroupConsumer, writer: TransactionalProducer, polled: PolledRecords) -> None:
        writer.begin()
        transaction = OpenTransaction(self, f"{self.name}.{next(self._numbers)}", self.group)
        try:
            for place, records in polled.items():
                for record in records:
                    transaction.send(writer, Place(self.target, place.number), Position(place, record.offset))
            transaction.positions = _next_offsets(polled)
            writer.send_offsets(transaction.positions, reader, self.group)
            if self.rng.random() < ABORT_SHARE:
                writer.abort()
                raise _Aborted
        except BaseException as error:
            transaction.record(Outcome.NO_EFFECT)
            if not isinstance(error, _Aborted):
                raise
            reader.rewind({place: records[0].offset for place, records in polled.items()})
            return
        transaction.commit(writer)


class _Aborted(Exception):
    """The program has aborted the transaction intentionally."""


class OffsetReader(Program):
    """Reads the committed offsets of groups, without being a member."""

    def __init__(
        self, name: str, library: Library, bootstrap: str, history: History, groups: Sequence[tuple[str, str]]
    ) -> None:
        super().__init__(name, library, bootstrap, history)
        self._groups = groups

    def run_client(self) -> None:
        while not self.ended.wait(OFFSET_READ_PAUSE_S):
            for group, topic in self._groups:
                self.read_offsets(group, topic)

    def read_offsets(self, group: str, topic: str) -> tuple[Position, ...]:
        """Returns the offsets, or nothing if the request failed."""
        start_s = self.history.now_s()
        try:
            positions = read_committed_offsets(self.bootstrap, group, topic, self.rng)
        except OSError:
            return ()
        end_s = self.history.now_s()
        self.history.add(OffsetRead(client=self.name, start_s=start_s, end_s=end_s, group=group, positions=positions))
        return positions


def _next_offsets(polled: PolledRecords) -> tuple[Position, ...]:
    return tuple(Position(place, records[-1].offset + 1) for place, records in polled.items())
