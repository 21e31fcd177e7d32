"""What the handlers of transactions share: which code a refusal becomes, and how states are called."""

from typing import Any, Final

from lakestream.coordination.transactions.coordinator import NotCoordinator
from lakestream.coordination.transactions.machine import Busy, TooLarge, UnknownProducer
from lakestream.errors import Fenced, LakestreamError, Unavailable, WrongTransaction
from lakestream.metadata.transactions import Identity, State
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of

STATE_NAMES: Final = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.COMMITTING: "PrepareCommit",
    State.ABORTING: "PrepareAbort",
    State.COMMITTED: "CompleteCommit",
    State.ABORTED: "CompleteAbort",
}
ID_BYTES_MAX: Final = 1_000
IMPLICIT_FROM_PRODUCE: Final = 12
"""From this version of Produce on, a transactional client is one that leaves it to us to add partitions."""
ABORTABLE_FROM_PRODUCE: Final = 11


def checked_id(transactional_id: str) -> str:
    if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
        raise KafkaError(
            Code.INVALID_REQUEST, f"a transactional id has 1 to {ID_BYTES_MAX} bytes, not {len(transactional_id)}"
        )
    return transactional_id


def identity(body: Any) -> Identity:
    return Identity(body.producer_id, body.producer_epoch)


def transaction_code(error: LakestreamError, *, knows_fenced: bool = True, knows_abortable: bool = False) -> Code:
    """Of the coordinator. `knows_fenced`: an older version calls a fenced producer one with an invalid epoch;
    `knows_abortable`: a newer one is told that all it has to do is to abort the transaction."""
    if knows_abortable and isinstance(error, WrongTransaction):
        return Code.TRANSACTION_ABORTABLE
    if isinstance(error, Fenced):
        return Code.PRODUCER_FENCED if knows_fenced else Code.INVALID_PRODUCER_EPOCH
    return _code(error) or (Code.COORDINATOR_NOT_AVAILABLE if isinstance(error, Unavailable) else code_of(error))


def produce_code(error: LakestreamError, version: int) -> Code:
    """Of a batch. Newer clients are told that all they have to do is to abort the transaction."""
    if isinstance(error, WrongTransaction) and version >= ABORTABLE_FROM_PRODUCE:
        return Code.TRANSACTION_ABORTABLE
    return _code(error) or code_of(error)


def _code(error: LakestreamError) -> Code | None:
    if isinstance(error, KafkaError):
        return error.code
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


_CODES: Final[dict[type[LakestreamError], Code]] = {
    NotCoordinator: Code.NOT_COORDINATOR,
    Busy: Code.CONCURRENT_TRANSACTIONS,
    UnknownProducer: Code.INVALID_PRODUCER_ID_MAPPING,
    TooLarge: Code.INVALID_REQUEST,
    WrongTransaction: Code.INVALID_TXN_STATE,
}
