"""What clients send, bounded in size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from lakestream.errors import Rejected, Unavailable


class TooLarge(Rejected): ...


async def read_bytes(request: Request, bytes_max: int, s_max: float) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(s_max):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise TooLarge(f"the body of the request is larger than {bytes_max} bytes")
    except TimeoutError:
        raise Rejected(f"the body of the request did not arrive within {s_max:g} s") from None
    except ClientDisconnect:
        raise Unavailable("the client has gone before its request was whole") from None
    return bytes(body)
