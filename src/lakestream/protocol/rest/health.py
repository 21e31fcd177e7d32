"""`/healthz`: the process runs. `/readyz`: all stores that it needs respond; else 503 with the reasons.

The result of the checks is cached for a second, so that probes do not load the stores.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse

from lakestream.errors import LakestreamError

CHECK_S_MAX: Final = 2.0
CACHED_S: Final = 1.0

Check = Callable[[], Awaitable[None]]
"""Returns if the store responds, or raises a LakestreamError with the reason."""


async def _none() -> Mapping[str, str]:
    return {}


class Health:
    def __init__(self, checks: Mapping[str, Check], others: Callable[[], Awaitable[Mapping[str, str]]] = _none) -> None:
        """`others` returns failed checks of other processes, which are bounded by a timeout of their own."""
        self._checks = checks
        self._others = others
        self._lock = asyncio.Lock()
        self._failures: dict[str, str] = {}
        self._expires_s = 0.0

    async def live(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> JSONResponse:
        failures = await self.failures()
        if failures:
            return JSONResponse({"status": "not ready", "reasons": failures}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def failures(self) -> dict[str, str]:
        """Returns the reason of each check that fails, by name."""
        time = asyncio.get_running_loop().time
        async with self._lock:
            if time() >= self._expires_s:
                names = list(self._checks)
                failures = asyncio.gather(*(self._failure(name) for name in names))
                others, reasons = await asyncio.gather(self._others(), failures)
                own = {name: reason for name, reason in zip(names, reasons, strict=True) if reason is not None}
                self._failures = {**others, **own}
                self._expires_s = time() + CACHED_S
            return self._failures

    async def _failure(self, name: str) -> str | None:
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                await self._checks[name]()
        except TimeoutError:
            return f"no response within {CHECK_S_MAX:g} s"
        except LakestreamError as error:
            return " ".join(str(error).split())
        return None
