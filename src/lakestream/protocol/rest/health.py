"""`/healthz`: the process lives. `/readyz`: it can serve, because everything that it needs answers; else 503, and why.

An answer is good for a second, however many ask: a probe must not become load on the stores.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse

from lakestream.errors import LakestreamError

CHECK_S_MAX: Final = 2.0
GOOD_FOR_S: Final = 1.0

Check = Callable[[], Awaitable[None]]
"""Comes back if all is well; raises a LakestreamError that says what is not."""


class Health:
    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._turn = asyncio.Lock()
        self._found: dict[str, str] = {}
        self._good_until_s = 0.0

    async def live(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> JSONResponse:
        troubles = await self.troubles()
        if troubles:
            return JSONResponse({"status": "not ready", "reasons": troubles}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def troubles(self) -> dict[str, str]:
        """What does not answer, and why; empty: all is well."""
        time = asyncio.get_running_loop().time
        async with self._turn:
            if time() >= self._good_until_s:
                names = list(self._checks)
                said = await asyncio.gather(*(self._trouble(name) for name in names))
                self._found = {name: why for name, why in zip(names, said, strict=True) if why is not None}
                self._good_until_s = time() + GOOD_FOR_S
            return self._found

    async def _trouble(self, name: str) -> str | None:
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                await self._checks[name]()
        except TimeoutError:
            return f"no answer within {CHECK_S_MAX:g} s"
        except LakestreamError as error:
            return " ".join(str(error).split())
        return None
