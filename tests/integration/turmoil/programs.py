"""What the clients do until they are told to end, each on a thread of its own. Whatever they see goes into the history.

A program outlives its client: when a call fails for good, the client is thrown away and another one is made, as a
program that is started again would do. Only what its answers say is written down as done.
"""

import itertools
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tests.integration.turmoil.faces import PARTITIONS, Library, Polled, Reader, Sender, Told, Writer
from tests.integration.turmoil.history import (
    Commit,
    History,
    Look,
    Outcome,
    Place,
    Poll,
    Position,
    Send,
    Transaction,
    Trouble,
    Write,
)
from tests.integration.turmoil.looks import committed

IN_FLIGHT_MAX: Final = 50
SEND_PAUSE_S: Final = 0.05
TRANSACTION_PAUSE_S: Final = 0.15
POLL_S: Final = 0.2
LOOK_PAUSE_S: Final = 0.4
AGAIN_S: Final = 0.2
WRITES_MAX: Final = 6
ABORT_SHARE: Final = 0.15
CRASH_SHARE: Final = 0.03
ZOMBIE_SHARE: Final = 0.03
AWAY_S_MAX: Final = 12.0
"""Longer than a transaction may last: some are aborted for that."""


class Program:
    def __init__(self, name: str, library: Library, bootstrap: str, history: History) -> None:
        self.name = name
        self.library = library
        self.bootstrap = bootstrap
        self.history = history
        self.luck = random.Random(name)
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, wait_s: float) -> None:
        """Until it has ended, if it was begun."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def join(self, wait_s: float) -> None:
        self.wait(wait_s)
        if self.failure is not None:
            raise self.failure
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _run(self) -> None:
        """One client after the other."""
        try:
            while not self.ended.is_set():
                start_s = self.history.now_s()
                try:
                    self.live()
                except self.library.ERRORS as error:
                    what = f"{type(error).__name__}: {error}"
                    end_s = self.history.now_s()
                    self.history.add(Trouble(client=self.name, start_s=start_s, end_s=end_s, what=what))
                    self.ended.wait(AGAIN_S)
        except BaseException as error:
            self.failure = error

    def live(self) -> None:
        """Until told to end, or until a client's error."""
        raise NotImplementedError

    def let_go(self, client: Sender | Reader | Writer | None) -> None:
        with suppress(*self.library.ERRORS):
            if client is not None:
                client.close()


class Sending(Program):
    """Sends one after the other, some of them in flight, each once: the client may repeat, the program does not."""

    def __init__(self, name: str, library: Library, bootstrap: str, history: History, topic: str) -> None:
        super().__init__(name, library, bootstrap, history)
        self._places = [Place(topic, number) for number in range(PARTITIONS)]
        self._numbers = itertools.count()
        self._in_flight: dict[str, tuple[Place, float]] = {}

    def live(self) -> None:
        sender = self.library.Sender(self.bootstrap, self.name)
        try:
            while not self.ended.is_set():
                if len(self._in_flight) < IN_FLIGHT_MAX:
                    self._send(sender, self.luck.choice(self._places), f"{self.name}.{next(self._numbers)}")
                sender.wait(SEND_PAUSE_S)
        finally:
            self.let_go(sender)
            for value in list(self._in_flight):
                self._told(value, None)

    def _send(self, sender: Sender, place: Place, value: str) -> None:
        self._in_flight[value] = (place, self.history.now_s())
        sender.send(place, value, lambda offset: self._told(value, offset))

    def _told(self, value: str, offset: int | None) -> None:
        place, start_s = self._in_flight.pop(value, (None, 0.0))
        if place is not None:  # not after the sender was given up
            outcome = Outcome.UNKNOWN if offset is None else Outcome.DONE
            write, end_s = Write(place, value, offset), self.history.now_s()
            self.history.add(Send(client=self.name, start_s=start_s, end_s=end_s, write=write, outcome=outcome))


class Draft:
    """A transaction that is under way."""

    def __init__(self, program: Program, name: str, group: str = "") -> None:
        self._program = program
        self._group = group
        self._start_s = program.history.now_s()
        self._writes: list[Write] = []
        self._offsets: dict[str, int] = {}
        self._ending_s: float | None = None
        self.name = name
        self.positions: tuple[Position, ...] = ()

    def send(self, writer: Writer, place: Place, source: Position | None = None) -> None:
        value = f"{self.name}.{len(self._writes)}"
        self._writes.append(Write(place, value, source=source))
        writer.send(place, value, self._teller(value))

    def _teller(self, value: str) -> Told:
        def told(offset: int | None) -> None:
            if offset is not None:
                self._offsets[value] = offset

        return told

    def commit(self, writer: Writer) -> None:
        self._ending_s = self._program.history.now_s()
        try:
            writer.commit()
        except BaseException:
            self.note(Outcome.UNKNOWN)
            raise
        self.note(Outcome.DONE)

    def note(self, outcome: Outcome) -> None:
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


class Transacting(Program):
    """Writes several keys to several partitions at once. Some are aborted, some left open, and some of its writers are
    replaced while they write."""

    def __init__(self, name: str, library: Library, bootstrap: str, history: History, topics: Sequence[str]) -> None:
        super().__init__(name, library, bootstrap, history)
        self._places = [Place(topic, number) for topic in topics for number in range(PARTITIONS)]
        self._numbers = itertools.count()

    def live(self) -> None:
        writer = self.library.Writer(self.bootstrap, self.name)
        try:
            while not self.ended.wait(TRANSACTION_PAUSE_S):
                draft = self._written(writer)
                fate = self.luck.random()
                if fate < CRASH_SHARE:
                    draft.note(Outcome.NOT)
                    self.ended.wait(self.luck.uniform(0, AWAY_S_MAX))
                    return
                if fate < CRASH_SHARE + ZOMBIE_SHARE:
                    writer, zombie = self.library.Writer(self.bootstrap, self.name), writer
                    self._try_in_vain(zombie, draft)
                elif fate < CRASH_SHARE + ZOMBIE_SHARE + ABORT_SHARE:
                    draft.note(Outcome.NOT)
                    writer.abort()
                else:
                    draft.commit(writer)
        finally:
            self.let_go(writer)

    def _written(self, writer: Writer) -> Draft:
        writer.begin()
        draft = Draft(self, f"{self.name}.{next(self._numbers)}")
        try:
            for place in self.luck.choices(self._places, k=self.luck.randint(1, WRITES_MAX)):
                draft.send(writer, place)
        except BaseException:
            draft.note(Outcome.NOT)
            raise
        return draft

    def _try_in_vain(self, zombie: Writer, draft: Draft) -> None:
        with suppress(*self.library.ERRORS):
            draft.commit(zombie)
        self.let_go(zombie)


class Reading(Program):
    """A member of a group, or somebody alone: reads, and commits what it has read."""

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
        self._topics = topics
        self._group = group
        self._committed = committed
        self._lives = itertools.count()

    def live(self) -> None:
        life = next(self._lives)
        reader = self.library.Reader(self.bootstrap, self.name, self._topics, self._group, committed=self._committed)
        try:
            while not self.ended.is_set():
                polled = self.poll(reader, life)
                if polled:
                    self._commit(reader, _behind(polled))
        finally:
            self.let_go(reader)

    def poll(self, reader: Reader, life: int) -> Polled:
        start_s = self.history.now_s()
        session, polled = reader.poll(POLL_S)
        end_s = self.history.now_s()
        for place, records in polled.items():
            poll = Poll(
                client=self.name,
                start_s=start_s,
                end_s=end_s,
                session=1000 * life + session,
                group=self._group,
                committed=self._committed,
                place=place,
                records=tuple(records),
            )
            self.history.add(poll)
        return polled

    def _commit(self, reader: Reader, positions: tuple[Position, ...]) -> None:
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
                    group=self._group,
                    positions=positions,
                    outcome=outcome,
                )
            )


class Moving(Reading):
    """Reads, writes what it makes of it, and commits its offsets, all in one transaction."""

    def __init__(
        self, name: str, library: Library, bootstrap: str, history: History, source: str, target: str, group: str
    ) -> None:
        super().__init__(name, library, bootstrap, history, [source], group, committed=True)
        self._target = target
        self._numbers = itertools.count()

    def live(self) -> None:
        """The writer is made first: what its forerunner left open has ended before the group's offsets are read."""
        life = next(self._lives)
        make: Any = getattr(self.library, "Alone", self.library.Reader)
        writer, reader = self.library.Writer(self.bootstrap, self.name), None
        try:
            reader = make(self.bootstrap, self.name, self._topics, self._group, committed=True)
            while not self.ended.is_set():
                polled = self.poll(reader, life)
                if polled:
                    self._move(reader, writer, polled)
        finally:
            self.let_go(reader)
            self.let_go(writer)

    def _move(self, reader: Reader, writer: Writer, polled: Polled) -> None:
        writer.begin()
        draft = Draft(self, f"{self.name}.{next(self._numbers)}", self._group)
        try:
            for place, records in polled.items():
                for record in records:
                    draft.send(writer, Place(self._target, place.number), Position(place, record.offset))
            draft.positions = _behind(polled)
            writer.send_offsets(draft.positions, reader, self._group)
            if self.luck.random() < ABORT_SHARE:
                writer.abort()
                raise _Aborted
        except BaseException as error:
            draft.note(Outcome.NOT)
            if not isinstance(error, _Aborted):
                raise
            reader.rewind({place: records[0].offset for place, records in polled.items()})
            return
        draft.commit(writer)


class _Aborted(Exception):
    """On purpose."""


class Looking(Program):
    """Asks for the offsets that groups have committed, as somebody who is no member of them."""

    def __init__(
        self, name: str, library: Library, bootstrap: str, history: History, groups: Sequence[tuple[str, str]]
    ) -> None:
        super().__init__(name, library, bootstrap, history)
        self._groups = groups

    def live(self) -> None:
        while not self.ended.wait(LOOK_PAUSE_S):
            for group, topic in self._groups:
                self.look(group, topic)

    def look(self, group: str, topic: str) -> tuple[Position, ...]:
        """Nothing, if nobody answered."""
        start_s = self.history.now_s()
        try:
            positions = committed(self.bootstrap, group, topic, self.luck)
        except OSError:
            return ()
        end_s = self.history.now_s()
        self.history.add(Look(client=self.name, start_s=start_s, end_s=end_s, group=group, positions=positions))
        return positions


def _behind(polled: Polled) -> tuple[Position, ...]:
    return tuple(Position(place, records[-1].offset + 1) for place, records in polled.items())
