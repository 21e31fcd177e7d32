"""Errors of obstore become the error classes of Lakestream. The texts are shortened copies of real responses."""

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lakestream.errors import (
    Conflict,
    LakestreamError,
    Misconfigured,
    Missing,
    OutOfRange,
    Rejected,
    Unavailable,
    Uncertain,
)
from lakestream.storage.obstore_errors import StoreCall, translate

URL = "https://account.blob.core.windows.net/lake/k?sv=2021&sig=SECRET"
READ, PUT, CREATE = (StoreCall("s3://lake", verb, "k", writes=verb != "get") for verb in ("get", "put", "create"))


def status(code: str, name: str = "", message: str = "") -> str:
    body = f"<Error><Code>{name}</Code><Message>{message}.\nRequestId:1</Message></Error>" if name else ""
    return f"Generic S3 error: Error performing PUT {URL} in 1ms - Server returned non-2xx status code: {code}: {body}"


def http(kind: str, message: str = "") -> str:
    cause = f'\n Os {{ code: 111, message: "{message}" }}' if message else ""
    return f"Error performing PUT {URL} - HTTP error: error sending request\n\nDebug source:\n kind: {kind},{cause}"


TOKEN = "Generic GCS error: Error performing token request: Error performing GET http://169.254.169.254/x in 1ms - "

CASES: list[tuple[BaseException, StoreCall, type[LakestreamError], str]] = [
    (FileNotFoundError(status("404 Not Found", "NoSuchKey", "No key")), READ, Missing, "no such object"),
    (FileNotFoundError(status("404 Not Found")), READ, Missing, "no such object"),
    (FileNotFoundError(status("404 Not Found", "NoSuchBucket", "No")), READ, Misconfigured, "bucket does not exist"),
    (FileNotFoundError(status("404 Not Found", "ContainerNotFound", "No")), PUT, Misconfigured, "does not exist"),
    (FileNotFoundError(status("404 Not Found", "XAdminUserNotFound", "No")), PUT, Misconfigured, "credentials"),
    (FileNotFoundError(status("404 Not Found")), PUT, Misconfigured, "404 Not Found"),
    (PermissionDeniedError(status("403 Forbidden", "AccessDenied", "No")), READ, Misconfigured, "AccessDenied: No"),
    (UnauthenticatedError(status("401 Unauthorized")), CREATE, Misconfigured, "401 Unauthorized"),
    (PermissionDeniedError(status("403 Forbidden", "RequestTimeTooSkewed", "Far")), PUT, Misconfigured, "clock"),
    (AlreadyExistsError(status("412 Precondition Failed")), CREATE, Conflict, "already exists"),
    (PreconditionError(status("412 Precondition Failed")), CREATE, Conflict, "already exists"),
    (AlreadyExistsError(status("409 Conflict", "ConditionalRequestConflict", "x")), CREATE, Unavailable, "in progress"),
    (AlreadyExistsError(status("409 Conflict", "ObjectParentIsFile", "x")), CREATE, Rejected, "folder of another key"),
    (AlreadyExistsError(status("409 Conflict")), PUT, Rejected, "folder of another key"),
    (NotSupportedError("not supported"), PUT, Misconfigured, "not supported"),
    (ValueError("Could not parse path"), READ, Rejected, "Could not parse path"),
    (GenericError(status("416 Range Not Satisfiable", "InvalidRange", "x")), READ, OutOfRange, "beyond"),
    (GenericError(status("301 Moved", "PermanentRedirect", "other region")), READ, Misconfigured, "other region"),
    (GenericError(status("400 Bad Request", "RequestTimeout", "slow")), PUT, Unavailable, "RequestTimeout: slow"),
    (GenericError(status("500 Internal Server Error", "InternalError", "x")), PUT, Uncertain, "InternalError"),
    (GenericError(status("503 Slow Down", "SlowDown", "x")), READ, Unavailable, "SlowDown: x"),
    (GenericError(http("Connect", "Connection refused")), CREATE, Unavailable, "no connection (connection refused)"),
    (GenericError(http("Timeout")), CREATE, Uncertain, "timeout"),
    (GenericError(http("Timeout")), READ, Unavailable, "timeout"),
    (GenericError(http("Request", "Connection reset by peer")), CREATE, Uncertain, "connection reset by peer"),
    (GenericError(http("Request")), PUT, Uncertain, "the connection broke"),
    (GenericError("something new"), CREATE, Uncertain, "something new"),
    (GenericError(TOKEN + "status code: 403 Forbidden: no"), CREATE, Unavailable, "no credentials"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "call", "kind", "message"), CASES, ids=lambda value: str(value)[-60:])
def test_store_error_becomes_the_right_error_class(
    error: BaseException, call: StoreCall, kind: type[LakestreamError], message: str
) -> None:
    translated = translate(error, call)
    assert type(translated) is kind, translated
    text = str(translated)
    assert message in text
    assert "k in s3://lake" in text
    assert "\n" not in text
    assert "SECRET" not in text
