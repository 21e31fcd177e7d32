"""Maps error classes to the status and the exception name of the Iceberg REST specification.

The status decides what a client does with the files of its commit: after 409 it deletes them and may retry; after 500
the commit may have succeeded, so the client keeps the files and checks the state of the commit first.
"""

from typing import Final

import msgspec
from starlette.responses import Response

from lakestream.catalog.errors import (
    CommitFailed,
    CommitStateUnknown,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    TableExists,
    Unsupported,
)
from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Rejected, Unavailable, Uncertain
from lakestream.protocol.rest.request_body import BodyTooLarge
from lakestream.protocol.rest.router import ErrorTable, Unprocessable, WrongMethod

JSON: Final = "application/json"


_ROWS: Final[tuple[tuple[type[LakestreamError], int, str], ...]] = (
    (NoSuchTable, 404, "NoSuchTableException"),
    (NoSuchNamespace, 404, "NoSuchNamespaceException"),
    (TableExists, 409, "AlreadyExistsException"),
    (NamespaceExists, 409, "AlreadyExistsException"),
    (NamespaceNotEmpty, 409, "NamespaceNotEmptyException"),
    (CommitFailed, 409, "CommitFailedException"),
    (CommitStateUnknown, 500, "CommitStateUnknownException"),
    (Unsupported, 406, "UnsupportedOperationException"),
    (BodyTooLarge, 413, "BadRequestException"),
    (WrongMethod, 405, "BadRequestException"),
    (Unprocessable, 422, "UnprocessableEntityException"),
    (Rejected, 400, "BadRequestException"),
    (Missing, 404, "NotFoundException"),
    (Conflict, 409, "CommitFailedException"),
    (Uncertain, 500, "CommitStateUnknownException"),
    (Unavailable, 503, "ServiceUnavailableException"),
    (Corrupt, 500, "InternalServerError"),
)


def error_response(status: int, name: str, message: str) -> Response:
    body = {"error": {"message": message, "type": name, "code": status}}
    return Response(msgspec.json.encode(body), status, media_type=JSON)


ERRORS: Final = ErrorTable(_ROWS, "InternalServerError", error_response)
