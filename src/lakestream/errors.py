"""Error classes, by what the caller should do.

LakestreamError
├── Unavailable          the store does not respond: retry later
│   └── Uncertain        the write may have taken effect: read before you retry
├── Conflict             another writer was first: read again, then decide
├── Fenced               a newer owner has taken over: stop
├── Missing              the object does not exist, or no longer
├── Rejected             the request is wrong: correct it
│   ├── OutOfOrder       a producer's sequence does not follow its last one
│   ├── OutOfRange       the offset is outside the log
│   ├── InvalidRecords   records of a batch are invalid: correct these records
│   ├── BatchTooLarge    a batch exceeds its limit: send smaller batches
│   ├── WrongTransaction the transaction is not open, or not here: abort it and begin a new one
│   └── Misconfigured    a setting is wrong: correct it and restart
└── Corrupt              stored bytes are wrong: alert the operator
"""

from collections.abc import Mapping


class LakestreamError(Exception):
    """Base of all errors that are raised on purpose. The text names the object, the problem and the action."""


class Unavailable(LakestreamError): ...


class Uncertain(Unavailable): ...


class Conflict(LakestreamError): ...


class Fenced(LakestreamError): ...


class Missing(LakestreamError): ...


class Rejected(LakestreamError): ...


class OutOfOrder(Rejected): ...


class OutOfRange(Rejected): ...


class InvalidRecords(Rejected):
    """`reasons` by record number in the batch, in order; empty if the batch as a whole is invalid."""

    def __init__(self, reasons: Mapping[int, str], message: str) -> None:
        super().__init__(message)
        self.reasons = reasons

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self.reasons)


class BatchTooLarge(Rejected): ...


class WrongTransaction(Rejected): ...


class Misconfigured(Rejected): ...


class Corrupt(LakestreamError): ...
