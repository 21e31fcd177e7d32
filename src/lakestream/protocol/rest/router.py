"""Router shared by the REST APIs: finds the endpoint of a request, and turns errors into responses."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from lakestream.errors import LakestreamError, Missing, Rejected
from lakestream.protocol.rest.request_body import LARGE_BODIES

log = logging.getLogger(__name__)

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
SERVICE_UNAVAILABLE: Final = 503
RETRY_AFTER_S: Final = "1"
INTERNAL_ERROR: Final = "internal error of the server: see its log"


class NotServed(Missing):
    """The API has no endpoint at this path."""


class WrongMethod(Rejected):
    """The path has endpoints, but none for this method."""


class Unprocessable(Rejected):
    """The request is well-formed, but its content is invalid."""


@dataclass(frozen=True, slots=True)
class RestCall:
    """One request to an endpoint."""

    request: Request
    args: tuple[str, ...]
    """The path's values for the parameters of the endpoint."""

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def flag(self, *names: str) -> bool:
        return any(self.query(name).lower() == "true" for name in names)


CallT = TypeVar("CallT", bound=RestCall)
CodeT = TypeVar("CodeT", int, str)


class Endpoint(NamedTuple, Generic[CallT]):
    method: str
    path: str
    handler: Callable[[CallT], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ErrorTable(Generic[CodeT]):
    """Status and code of each error class of one API. The first row that fits is used."""

    rows: Sequence[tuple[type[LakestreamError], int, CodeT]]
    default: CodeT
    response: Callable[[int, CodeT, str], Response]

    def response_to(self, error: Exception) -> Response:
        status, code = next(((row[1], row[2]) for row in self.rows if isinstance(error, row[0])), (500, self.default))
        message = " ".join(str(error).split()) if isinstance(error, LakestreamError) else INTERNAL_ERROR
        response = self.response(status, code, message)
        if status == SERVICE_UNAVAILABLE:
            response.headers["retry-after"] = RETRY_AFTER_S
        return response


class RestApi(ABC, Generic[CallT]):
    """One API: a table of endpoints and a table of errors."""

    def __init__(
        self, name: str, endpoints: Sequence[Endpoint[CallT]], errors: ErrorTable[int] | ErrorTable[str], root: str = ""
    ) -> None:
        self.endpoints = endpoints
        self._name = name
        self._patterns = [(split_path(endpoint.path.removeprefix(root)), endpoint) for endpoint in endpoints]
        self._errors = errors

    @abstractmethod
    async def dispatch(self, request: Request) -> Response:
        """Serves one request, or raises an error of the error table."""

    async def handle(self, request: Request) -> Response:
        """Serves one request. Every error becomes a response in the form of the API."""
        try:
            return await self.dispatch(request)
        except LakestreamError as error:
            return self._errors.response_to(error)
        except Exception as error:
            log.exception("%s.internal_error method=%s path=%s", self._name, request.method, request.url.path)
            return self._errors.response_to(error)
        finally:
            LARGE_BODIES.release(request)

    def find(self, request: Request, method: str, path: tuple[str, ...]) -> tuple[Endpoint[CallT], tuple[str, ...]]:
        """Returns the endpoint and the values of its path parameters."""
        fitting = [(pattern, endpoint) for pattern, endpoint in self._patterns if _fits(pattern, path)]
        for pattern, endpoint in fitting:
            if endpoint.method == method:
                return endpoint, tuple(value for value, name in zip(path, pattern, strict=True) if name.startswith("{"))
        if fitting:
            methods = ", ".join(endpoint.method for _, endpoint in fitting)
            raise WrongMethod(f"{request.method} is not allowed at {request.url.path}: use {methods}")
        raise NotServed(f"there is no endpoint at {request.url.path}")


def split_path(path: str) -> tuple[str, ...]:
    return tuple(path.strip("/").split("/")) if path.strip("/") else ()


def path_segments(request: Request, decode: Callable[..., str]) -> tuple[str, ...]:
    """Returns the segments of the path, each decoded by itself: a name may contain a slash, which arrives as %2F."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    try:
        return tuple(decode(segment, errors="strict") for segment in split_path(path))
    except UnicodeDecodeError as error:
        raise Rejected("the path of the request is not UTF-8") from error


def _fits(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(
        name.startswith("{") or name == segment for name, segment in zip(pattern, path, strict=True)
    )
