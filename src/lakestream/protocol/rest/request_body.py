"""Request bodies, limited in size, each and all together, and in the time they take to arrive."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from lakestream.errors import Rejected, Unavailable
from lakestream.json_values import has_more_values, is_nested_too_deeply
from lakestream.model import KiB, MiB

BODY_S_MAX: Final = 30
BODY_BYTES_MAX: Final = MiB
"""Of calls that do not need more."""
VALUES_MAX: Final = 500_000
"""Of a body in JSON: parsing them takes up to half a second."""
THREAD_BYTES_MIN: Final = 64 * KiB
"""Bodies from this size on are parsed in a thread."""

SMALL_BYTES: Final = 64 * KiB
"""A body up to this size is always accepted; the number of connections is limited."""
LARGE_BYTES_MAX: Final = 128 * MiB
"""Of all larger bodies together, from their arrival until their requests are completed."""
_HELD: Final = "lakestream.body_bytes"
"""The key in the scope of a request of the bytes that it holds."""

T = TypeVar("T")


class BodyTooLarge(Rejected): ...


class _LargeBodies:
    """The bytes of all large bodies in this process."""

    held = 0

    def hold(self, request: Request, size: int) -> None:
        """Raises Unavailable if other requests hold too much. Call `release` when the request is completed."""
        before = request.scope.get(_HELD, 0)
        if size <= SMALL_BYTES or size <= before:
            return
        if self.held + size - before > LARGE_BYTES_MAX:
            raise Unavailable(
                f"bodies of other requests have {self.held} bytes, and all together may have {LARGE_BYTES_MAX}: retry"
            )
        self.held += size - before
        request.scope[_HELD] = size

    def release(self, request: Request) -> None:
        self.held -= request.scope.pop(_HELD, 0)


LARGE_BODIES: Final = _LargeBodies()


async def read_bytes(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Returns the body. Its bytes count as those of a large body until `LARGE_BODIES.release`."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise BodyTooLarge(f"request body is larger than {bytes_max} bytes, the maximum")
                LARGE_BODIES.hold(request, len(body))
    except TimeoutError:
        raise Rejected(f"request body did not arrive within {BODY_S_MAX:g} s") from None
    except ClientDisconnect:
        raise Unavailable("the client disconnected before its request was complete") from None
    return bytes(body)


async def read_json(
    request: Request, kind: type[T], bytes_max: int = BODY_BYTES_MAX, *, invalid: type[Rejected] = Rejected
) -> T:
    """Returns the body as a `kind`. Raises `invalid` if a value in it is invalid, Rejected if it is not JSON."""
    body = await read_bytes(request, bytes_max)
    if len(body) < THREAD_BYTES_MIN:
        return _decoded(body, kind, invalid)
    return await asyncio.get_running_loop().run_in_executor(_PARSERS, _decoded, body, kind, invalid)


_PARSERS: Final = ThreadPoolExecutor(2, "http-body")
"""Large bodies are parsed one or two at a time: parsed, a body takes up to thirty times its size."""


def _decoded(body: bytes, kind: type[T], invalid: type[Rejected]) -> T:
    if has_more_values(body, VALUES_MAX):
        raise BodyTooLarge(f"request body has more than {VALUES_MAX} values, the maximum")
    try:
        found = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(f"request body is invalid: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise Rejected(_DEEP) from error
    if is_nested_too_deeply(body):
        raise Rejected(_DEEP)
    return found


_DEEP: Final = "request body is nested too deeply"
