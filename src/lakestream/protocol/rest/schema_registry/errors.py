"""Maps error classes to the status and the error code of Confluent's schema registry API."""

from typing import Final

import msgspec
from starlette.responses import Response

from lakestream.coordination.schema_registry import errors
from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Rejected, Unavailable
from lakestream.protocol.rest.request_body import BodyTooLarge
from lakestream.protocol.rest.router import ErrorTable, NotServed, Unprocessable, WrongMethod

JSON: Final = "application/vnd.schemaregistry.v1+json"


_ROWS: Final[tuple[tuple[type[LakestreamError], int, int], ...]] = (
    (errors.NoSuchSubject, 404, 40401),
    (errors.NoSuchVersion, 404, 40402),
    (errors.NoSuchSchema, 404, 40403),
    (errors.SubjectDeleted, 404, 40404),
    (errors.SubjectNotDeleted, 404, 40405),
    (errors.VersionDeleted, 404, 40406),
    (errors.VersionNotDeleted, 404, 40407),
    (errors.NotConfigured, 404, 40408),
    (errors.NoMode, 404, 40409),
    (errors.Incompatible, 409, 409),
    (errors.InvalidSchema, 422, 42201),
    (errors.InvalidVersion, 422, 42202),
    (errors.InvalidLevel, 422, 42203),
    (errors.InvalidMode, 422, 42204),
    (errors.NotPermitted, 422, 42205),
    (errors.Referenced, 422, 42206),
    (errors.InvalidSubject, 422, 42208),
    (errors.TooLarge, 422, 42209),
    (errors.ContextNotEmpty, 422, 42211),
    (BodyTooLarge, 413, 413),
    (WrongMethod, 405, 405),
    (Unprocessable, 422, 422),
    (NotServed, 404, 404),
    (Rejected, 400, 400),
    (Missing, 404, 404),
    (Conflict, 500, 50001),
    (Unavailable, 500, 50001),
    (Corrupt, 500, 50001),
)


def error_response(status: int, code: int, message: str) -> Response:
    body = {"error_code": code, "message": message}
    return Response(msgspec.json.encode(body), status, headers={"content-type": JSON})


ERRORS: Final = ErrorTable(_ROWS, 500, error_response)
