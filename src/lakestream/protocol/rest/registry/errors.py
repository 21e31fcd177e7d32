"""What the registry says no to, as Confluent's API numbers it: the status, and a longer number. One table."""

from typing import Final

import msgspec
from starlette.responses import Response

from lakestream.coordination.schemas import refusals
from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Rejected, Unavailable
from lakestream.protocol.rest.incoming import TooLarge

JSON: Final = "application/vnd.schemaregistry.v1+json"


class NotServed(Missing):
    """There is nothing at this path."""


class WrongMethod(Rejected): ...


class Malformed(Rejected):
    """The body is not JSON."""


class Unprocessable(Rejected):
    """It is JSON, and not what was asked for."""


_ANSWERS: Final[tuple[tuple[type[LakestreamError], int, int], ...]] = (
    (refusals.NoSuchSubject, 404, 40401),
    (refusals.NoSuchVersion, 404, 40402),
    (refusals.NoSuchSchema, 404, 40403),
    (refusals.SubjectDeleted, 404, 40404),
    (refusals.SubjectNotDeleted, 404, 40405),
    (refusals.VersionDeleted, 404, 40406),
    (refusals.VersionNotDeleted, 404, 40407),
    (refusals.NotConfigured, 404, 40408),
    (refusals.NoMode, 404, 40409),
    (refusals.Incompatible, 409, 409),
    (refusals.InvalidSchema, 422, 42201),
    (refusals.InvalidVersion, 422, 42202),
    (refusals.InvalidLevel, 422, 42203),
    (refusals.InvalidMode, 422, 42204),
    (refusals.NotPermitted, 422, 42205),
    (refusals.Referenced, 422, 42206),
    (refusals.InvalidSubject, 422, 42208),
    (refusals.TooLarge, 422, 42209),
    (refusals.ContextNotEmpty, 422, 42211),
    (TooLarge, 413, 413),
    (WrongMethod, 405, 405),
    (Unprocessable, 422, 422),
    (NotServed, 404, 404),
    (Malformed, 400, 400),
    (Rejected, 400, 400),
    (Missing, 404, 404),
    (Conflict, 500, 50001),
    (Unavailable, 500, 50001),
    (Corrupt, 500, 50001),
)


def answer(error: LakestreamError) -> Response:
    for kind, status, code in _ANSWERS:
        if isinstance(error, kind):
            return error_response(status, code, " ".join(str(error).split()))
    return error_response(500, 500, " ".join(str(error).split()))


def error_response(status: int, code: int, message: str) -> Response:
    body = {"error_code": code, "message": message}
    return Response(msgspec.json.encode(body), status, headers={"content-type": JSON})
