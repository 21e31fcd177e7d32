"""Our error kinds as the REST specification answers them: a status, and the name of Iceberg's exception. One table.

The status decides what a client does with the files of its commit: after 409 it removes them and may try again, after
500 it leaves them and looks.
"""

from typing import Final

import msgspec
from starlette.responses import Response

from lakestream.catalog.errors import (
    CommitRefused,
    CommitUnknown,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    TableExists,
    Unsupported,
)
from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Rejected, Unavailable, Uncertain
from lakestream.protocol.rest.incoming import TooLarge

JSON: Final = "application/json"


class NotServed(Missing):
    """There is nothing at this path."""


class WrongMethod(Rejected): ...


class Unprocessable(Rejected):
    """Every word of it is right, and together they make no sense."""


_ANSWERS: Final[tuple[tuple[type[LakestreamError], int, str], ...]] = (
    (NoSuchTable, 404, "NoSuchTableException"),
    (NoSuchNamespace, 404, "NoSuchNamespaceException"),
    (TableExists, 409, "AlreadyExistsException"),
    (NamespaceExists, 409, "AlreadyExistsException"),
    (NamespaceNotEmpty, 409, "NamespaceNotEmptyException"),
    (CommitRefused, 409, "CommitFailedException"),
    (CommitUnknown, 500, "CommitStateUnknownException"),
    (Unsupported, 406, "UnsupportedOperationException"),
    (TooLarge, 413, "BadRequestException"),
    (WrongMethod, 405, "BadRequestException"),
    (Unprocessable, 422, "UnprocessableEntityException"),
    (Rejected, 400, "BadRequestException"),
    (Missing, 404, "NotFoundException"),
    (Conflict, 409, "CommitFailedException"),
    (Uncertain, 500, "CommitStateUnknownException"),
    (Unavailable, 503, "ServiceUnavailableException"),
    (Corrupt, 500, "InternalServerError"),
)


def answer(error: LakestreamError) -> Response:
    for kind, status, name in _ANSWERS:
        if isinstance(error, kind):
            return error_response(status, name, " ".join(str(error).split()))
    return error_response(500, "InternalServerError", " ".join(str(error).split()))


def error_response(status: int, name: str, message: str) -> Response:
    body = {"error": {"message": message, "type": name, "code": status}}
    return Response(msgspec.json.encode(body), status, media_type=JSON)
