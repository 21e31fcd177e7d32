"""A transactional id, compared with a model: clients begin, write, end, crash, and repeat requests."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakestream.coordination.transactions import state_machine
from lakestream.coordination.transactions.state_machine import CLASSIC, EPOCH_LAST, IMPLICIT, Busy, UnknownProducer
from lakestream.errors import Fenced, WrongTransaction
from lakestream.metadata.transactions import Identity, Transaction, TransactionState
from lakestream.model import PartitionId

TIMEOUT_MS = 1_000
CLIENTS = st.integers(0, 2)
LOGS = st.sets(st.integers(0, 4).map(lambda number: PartitionId("t", number)), min_size=1, max_size=3)
REFUSED = (Busy, Fenced, UnknownProducer, WrongTransaction)


@dataclass
class Client:
    """A producer with the identity that it has received."""

    protocol: int
    identity: Identity | None = None
    writing: bool = False


@dataclass
class Model:
    """All acknowledged results."""

    owner: Client | None = None
    """The client with the newest identity, until it is fenced."""
    identities: list[Identity] = field(default_factory=list)
    logs: dict[int, set[PartitionId]] = field(default_factory=dict)
    """Transaction → its partitions."""
    outcomes: dict[int, bool] = field(default_factory=dict)
    """Transaction → whether it was committed."""
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
        """Starts near the last epoch sometimes, which would need thirty thousand steps otherwise."""
        if nearly_used_up:
            self.record = Transaction(producer=Identity(1, EPOCH_LAST - 2), timeout_ms=TIMEOUT_MS, changed_ms=0)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(index=CLIENTS, resumes=st.booleans(), lost=st.booleans())
    def init(self, index: int, resumes: bool, lost: bool) -> None:
        client = self.clients[index]
        expected = client.identity if resumes else None
        self.model.fresh_id += 1
        before = self.record
        try:
            self.record = state_machine.init(before, expected, TIMEOUT_MS, self.model.fresh_id, self.now_ms)
        except REFUSED:
            assert before is not None
            assert before.is_ending or client is not self.model.owner
            return
        if expected is not None:
            assert before is None or client is self.model.owner, "only the newest client keeps its producer id"
        if self.record.is_ending:  # the client retries
            self._decided(False)
            if expected is None:
                self.model.owner = None
            return
        if not lost:
            self._received_identity(client)
        elif expected is None:
            self.model.owner = None  # the previous client is fenced, and this one has not received its identity

    @rule(index=CLIENTS, logs=LOGS)
    def add(self, index: int, logs: set[PartitionId]) -> None:
        client = self.clients[index]
        if client.identity is None:
            return
        before = self.record
        try:
            self.record = state_machine.add(before, client.identity, logs, client.protocol, self.now_ms)
        except REFUSED:
            self._check_rejection(client)
            return
        assert client is self.model.owner, "an old client adds no partition"
        self.model.logs.setdefault(self.record.number, set()).update(logs)
        client.writing = True

    @rule(index=CLIENTS, commit=st.booleans(), lost=st.booleans())
    def end(self, index: int, commit: bool, lost: bool) -> None:
        """Ends a transaction. After a lost response the request is repeated, with the effect of one."""
        client = self.clients[index]
        if client.identity is None or not client.writing:
            return
        request = client.identity
        try:
            self._end(client, request, commit)
            if lost:
                ended = self.record
                self._end(client, request, commit)
                assert self.record == ended
        except REFUSED:
            self._check_rejection(client)
            return
        assert client is self.model.owner
        client.writing = False
        self._received_identity(client)

    def _end(self, client: Client, request: Identity, commit: bool) -> None:
        was_open = self.record is not None and self.record.is_open
        self.model.fresh_id += 1
        self.record = state_machine.end(
            self.record,
            request,
            commit=commit,
            protocol=client.protocol,
            fresh_id=self.model.fresh_id,
            now_ms=self.now_ms,
        )
        if was_open:
            self._decided(commit)

    # ── events without a request ─────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.record is not None and self.record.is_ending)
    @rule()
    def finish(self) -> None:
        assert self.record is not None
        assert set(self.record.partitions) == self.model.logs[self.record.number], "every log gets its marker"
        assert self.record.commits == self.model.outcomes[self.record.number]
        self.record = state_machine.completed(self.record, self.now_ms)

    @rule(passed_ms=st.integers(0, 2 * TIMEOUT_MS))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        if self.record is not None and state_machine.is_overdue(self.record, self.now_ms):
            self.record = state_machine.fenced(self.record, self.now_ms)
            self._decided(False)
            self.model.owner = None

    @rule(index=CLIENTS)
    def crash(self, index: int) -> None:
        client = self.clients[index]
        self.clients[index] = Client(client.protocol)
        if self.model.owner is client:
            self.model.owner = None

    @rule(identity=st.integers(0, 50), logs=LOGS, commit=st.booleans(), protocol=st.sampled_from([CLASSIC, IMPLICIT]))
    def old_client_resumes(self, identity: int, logs: set[PartitionId], commit: bool, protocol: int) -> None:
        old = self.model.identities[: -1 if self.model.owner else None]
        if self.record is None or not old:
            return
        zombie = old[identity % len(old)]
        if zombie == self.record.producer or zombie == self.record.last:
            return  # a present identity: other rules test its repeated requests
        before = self.record
        for ask in (
            lambda: state_machine.add(before, zombie, logs, protocol, self.now_ms),
            lambda: state_machine.end(before, zombie, commit=commit, protocol=protocol, fresh_id=9, now_ms=self.now_ms),
            lambda: state_machine.init(before, zombie, TIMEOUT_MS, 9, self.now_ms),
            lambda: state_machine.number_for(before, zombie, logs),
        ):
            try:
                ask()
            except (Fenced, UnknownProducer):
                continue
            raise AssertionError(f"{zombie} is of the past")

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _received_identity(self, client: Client) -> None:
        assert self.record is not None
        identity = self.record.producer
        if identity != client.identity:
            assert identity not in self.model.identities, "identities are unique"
            self.model.identities.append(identity)
            client.identity = identity
            client.writing = False
        self.model.owner = client

    def _decided(self, commit: bool) -> None:
        assert self.record is not None
        number = self.record.number
        assert number not in self.model.outcomes, "a transaction ends once"
        self.model.outcomes[number] = commit

    def _check_rejection(self, client: Client) -> None:
        assert self.record is not None
        knows = client.identity == self.record.producer  # otherwise its response was lost, and it must call init again
        wrong = client is self.model.owner and knows and not self.record.is_ending and not client.writing
        assert not wrong, "the owner is not rejected"

    @invariant()
    def open_partitions_are_those_added(self) -> None:
        record = self.record
        if record is None:
            return
        assert record.producer.epoch <= EPOCH_LAST + 1
        if record.is_open or record.is_ending:
            assert set(record.partitions) == self.model.logs[record.number]
        else:
            assert record.partitions == ()
        if record.state in (TransactionState.COMMITTED, TransactionState.COMMITTING):
            assert self.model.outcomes[record.number]
        assert set(self.model.outcomes) >= set(range(1, record.number)), "every transaction has ended"
        assert record.is_open == (record.number in self.model.logs and record.number not in self.model.outcomes)


TestTransactionalId = TransactionalId.TestCase
TestTransactionalId.settings = settings(max_examples=150, stateful_step_count=40)
