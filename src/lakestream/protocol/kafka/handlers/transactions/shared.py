"""Shared by the handlers of transactions: error codes and names of states."""

from typing import Any, Final

from lakestream.coordination.transactions.coordinator import NotCoordinator
from lakestream.coordination.transactions.id_limits import TooManyTransactionalIds
from lakestream.coordination.transactions.state_machine import Busy, TransactionTooLarge, UnknownProducer
from lakestream.errors import Fenced, LakestreamError, Unavailable, WrongTransaction
from lakestream.metadata.transactions import Identity, TransactionState
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of

STATE_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.COMMITTING: "PrepareCommit",
    TransactionState.ABORTING: "PrepareAbort",
    TransactionState.COMMITTED: "CompleteCommit",
    TransactionState.ABORTED: "CompleteAbort",
}
ID_BYTES_MAX: Final = 1_000
IMPLICIT_FROM_PRODUCE: Final = 12
"""From this version of Produce on, brokers add partitions to transactions."""
ABORTABLE_FROM_PRODUCE: Final = 11


def checked_id(transactional_id: str) -> str:
    if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
        raise KafkaError(
            Code.INVALID_REQUEST, f"transactional id of {len(transactional_id.encode())} bytes: use 1 to {ID_BYTES_MAX}"
        )
    return transactional_id


def identity(body: Any) -> Identity:
    return Identity(body.producer_id, body.producer_epoch)


def transaction_code(error: LakestreamError, *, has_fenced: bool = True, has_abortable: bool = False) -> Code:
    """Returns the code for responses of the transaction coordinator.

    `has_fenced`: the version has PRODUCER_FENCED; older ones have INVALID_PRODUCER_EPOCH. `has_abortable`: the version
    has TRANSACTION_ABORTABLE, after which a client only has to abort the transaction.
    """
    if has_abortable and isinstance(error, WrongTransaction):
        return Code.TRANSACTION_ABORTABLE
    if isinstance(error, Fenced):
        return Code.PRODUCER_FENCED if has_fenced else Code.INVALID_PRODUCER_EPOCH
    return _code(error) or (Code.COORDINATOR_NOT_AVAILABLE if isinstance(error, Unavailable) else code_of(error))


def produce_code(error: LakestreamError, version: int) -> Code:
    """Returns the code for a batch. From v11 on, clients abort the transaction on TRANSACTION_ABORTABLE."""
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
    TooManyTransactionalIds: Code.POLICY_VIOLATION,
    TransactionTooLarge: Code.INVALID_REQUEST,
    WrongTransaction: Code.INVALID_TXN_STATE,
}
