"""The life of a transactional id against a plain model: clients begin, write, end, crash, and repeat themselves."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakestream.coordination.transactions import machine
from lakestream.coordination.transactions.machine import CLASSIC, EPOCH_LAST, IMPLICIT, Busy, UnknownProducer
from lakestream.errors import Fenced, WrongTransaction
from lakestream.metadata.transactions import Identity, State, Transaction
from lakestream.model import PartitionId

TIMEOUT_MS = 1_000
CLIENTS = st.integers(0, 2)
LOGS = st.sets(st.integers(0, 4).map(lambda number: PartitionId("t", number)), min_size=1, max_size=3)
REFUSED = (Busy, Fenced, UnknownProducer, WrongTransaction)


@dataclass
class Client:
    """A producer, as it knows itself."""

    protocol: int
    identity: Identity | None = None
    writing: bool = False


@dataclass
class Model:
    """All that anybody was promised."""

    owner: Client | None = None
    """Who was the last to begin, and has not been fenced since."""
    given: list[Identity] = field(default_factory=list)
    logs: dict[int, set[PartitionId]] = field(default_factory=dict)
    """What was added to each transaction."""
    fates: dict[int, bool] = field(default_factory=dict)
    """Whether it was committed."""
    fresh_id: int = 100


class TransactionalId(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.record: Transaction | None = None
        self.now_ms = 0
        self.model = Model()
        self.clients = [Client(CLASSIC), Client(IMPLICIT), Client(IMPLICIT)]

    @initialize(nearly_used_up=st.booleans())
    def begin(self, nearly_used_up: bool) -> None:
        """Epochs end sometimes; not only after thirty thousand steps."""
        if nearly_used_up:
            self.record = Transaction(producer=Identity(1, EPOCH_LAST - 2), timeout_ms=TIMEOUT_MS, changed_ms=0)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(who=CLIENTS, resumes=st.booleans(), lost=st.booleans())
    def init(self, who: int, resumes: bool, lost: bool) -> None:
        client = self.clients[who]
        expected = client.identity if resumes else None
        self.model.fresh_id += 1
        before = self.record
        try:
            self.record = machine.init(before, expected, TIMEOUT_MS, self.model.fresh_id, self.now_ms)
        except REFUSED:
            assert before is not None
            assert before.is_ending or client is not self.model.owner
            return
        if expected is not None:
            assert before is None or client is self.model.owner, "only who was not overtaken goes on"
        if self.record.is_ending:  # it comes again
            self._decided(False)
            if expected is None:
                self.model.owner = None
            return
        if not lost:
            self._given(client)
        elif expected is None:
            self.model.owner = None  # whoever was there before is fenced, and who asked does not know it yet

    @rule(who=CLIENTS, logs=LOGS)
    def add(self, who: int, logs: set[PartitionId]) -> None:
        client = self.clients[who]
        if client.identity is None:
            return
        before = self.record
        try:
            self.record = machine.add(before, client.identity, logs, client.protocol, self.now_ms)
        except REFUSED:
            self._rightly_refused(client)
            return
        assert client is self.model.owner, "nobody of the past adds anything"
        self.model.logs.setdefault(self.record.number, set()).update(logs)
        client.writing = True

    @rule(who=CLIENTS, commit=st.booleans(), lost=st.booleans())
    def end(self, who: int, commit: bool, lost: bool) -> None:
        """An answer may get lost: then it is asked again, and has the same effect as one."""
        client = self.clients[who]
        if client.identity is None or not client.writing:
            return
        asked = client.identity
        try:
            self._end(client, asked, commit)
            if lost:
                ended = self.record
                self._end(client, asked, commit)
                assert self.record == ended
        except REFUSED:
            self._rightly_refused(client)
            return
        assert client is self.model.owner
        client.writing = False
        self._given(client)

    def _end(self, client: Client, asked: Identity, commit: bool) -> None:
        was_open = self.record is not None and self.record.is_open
        self.model.fresh_id += 1
        self.record = machine.end(
            self.record,
            asked,
            commit=commit,
            protocol=client.protocol,
            fresh_id=self.model.fresh_id,
            now_ms=self.now_ms,
        )
        if was_open:
            self._decided(commit)

    # ── what happens by itself ───────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.record is not None and self.record.is_ending)
    @rule()
    def finish(self) -> None:
        assert self.record is not None
        assert set(self.record.partitions) == self.model.logs[self.record.number], "every log gets its marker"
        assert self.record.commits == self.model.fates[self.record.number]
        self.record = machine.ended(self.record, self.now_ms)

    @rule(passed_ms=st.integers(0, 2 * TIMEOUT_MS))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        if self.record is not None and machine.is_overdue(self.record, self.now_ms):
            self.record = machine.fenced(self.record, self.now_ms)
            self._decided(False)
            self.model.owner = None

    @rule(who=CLIENTS)
    def crash(self, who: int) -> None:
        client = self.clients[who]
        self.clients[who] = Client(client.protocol)
        if self.model.owner is client:
            self.model.owner = None

    @rule(identity=st.integers(0, 50), logs=LOGS, commit=st.booleans(), protocol=st.sampled_from([CLASSIC, IMPLICIT]))
    def one_of_the_past_wakes_up(self, identity: int, logs: set[PartitionId], commit: bool, protocol: int) -> None:
        old = self.model.given[: -1 if self.model.owner else None]
        if self.record is None or not old:
            return
        zombie = old[identity % len(old)]
        if zombie == self.record.producer or zombie == self.record.last:
            return  # known still: what it repeats is tested above
        before = self.record
        for ask in (
            lambda: machine.add(before, zombie, logs, protocol, self.now_ms),
            lambda: machine.end(before, zombie, commit=commit, protocol=protocol, fresh_id=9, now_ms=self.now_ms),
            lambda: machine.init(before, zombie, TIMEOUT_MS, 9, self.now_ms),
            lambda: machine.number_for(before, zombie, logs),
        ):
            try:
                ask()
            except (Fenced, UnknownProducer):
                continue
            raise AssertionError(f"{zombie} is of the past")

    # ── what was promised ────────────────────────────────────────────────────────────────────────────────────────────

    def _given(self, client: Client) -> None:
        assert self.record is not None
        identity = self.record.producer
        if identity != client.identity:
            assert identity not in self.model.given, "no identity is given twice"
            self.model.given.append(identity)
            client.identity = identity
            client.writing = False
        self.model.owner = client

    def _decided(self, commit: bool) -> None:
        assert self.record is not None
        number = self.record.number
        assert number not in self.model.fates, "a transaction ends once"
        self.model.fates[number] = commit

    def _rightly_refused(self, client: Client) -> None:
        assert self.record is not None
        knows = client.identity == self.record.producer  # else it has to ask again: an answer was lost
        wrong = client is self.model.owner and knows and not self.record.is_ending and not client.writing
        assert not wrong, "who owns it may go on"

    @invariant()
    def what_is_open_is_what_was_added(self) -> None:
        record = self.record
        if record is None:
            return
        assert record.producer.epoch <= EPOCH_LAST + 1
        if record.is_open or record.is_ending:
            assert set(record.partitions) == self.model.logs[record.number]
        else:
            assert record.partitions == ()
        if record.state in (State.COMMITTED, State.COMMITTING):
            assert self.model.fates[record.number]
        assert set(self.model.fates) >= set(range(1, record.number)), "none is left behind"
        assert record.is_open == (record.number in self.model.logs and record.number not in self.model.fates)


TestTransactionalId = TransactionalId.TestCase
TestTransactionalId.settings = settings(max_examples=150, stateful_step_count=40)
