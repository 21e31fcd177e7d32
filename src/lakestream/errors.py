"""Every error a caller may meet, named by what the caller should do.

LakestreamError
├── Unavailable          the store cannot answer now: try again later
│   └── Uncertain        it may or may not have happened: look before you try again
├── Conflict             somebody else was first: read again, then decide
├── Fenced               someone newer took over: stop
├── Missing              what you asked for is not there (any more)
├── Rejected             the request is wrong: fix it
│   ├── OutOfOrder       a producer's sequence does not follow its last one
│   ├── OutOfRange       the offset lies outside the log
│   ├── WrongTransaction the transaction is not open, or not here: abort it and begin anew
│   └── Misconfigured    a setting is wrong: fix it and start again
└── Corrupt              stored bytes are wrong: alert a person
"""


class LakestreamError(Exception):
    """Base of all errors that are raised on purpose. Its text says what, where and what to do."""


class Unavailable(LakestreamError): ...


class Uncertain(Unavailable): ...


class Conflict(LakestreamError): ...


class Fenced(LakestreamError): ...


class Missing(LakestreamError): ...


class Rejected(LakestreamError): ...


class OutOfOrder(Rejected): ...


class OutOfRange(Rejected): ...


class WrongTransaction(Rejected): ...


class Misconfigured(Rejected): ...


class Corrupt(LakestreamError): ...
