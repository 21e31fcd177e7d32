"""Callers of a shared load when the load or a caller is cancelled."""

import asyncio

import pytest

from lakestream.aio.single_flight import Coalescer, SingleFlightCache
from lakestream.errors import Unavailable


async def load_never() -> bytes:
    await asyncio.Event().wait()
    return b""


@pytest.mark.parametrize("kind", [SingleFlightCache, Coalescer])
async def test_callers_get_unavailable_when_the_owner_of_a_load_closes(
    kind: type[SingleFlightCache[str, bytes] | Coalescer[str, bytes]],
) -> None:
    shared: SingleFlightCache[str, bytes] | Coalescer[str, bytes]
    shared = Coalescer("test.load") if kind is Coalescer else SingleFlightCache("test.load", 100, len, 60)
    read = shared.read if isinstance(shared, Coalescer) else shared.get
    callers = [asyncio.create_task(read("key", load_never)) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    await shared.close()
    await asyncio.wait(callers)
    assert [caller.cancelled() for caller in callers] == [True, False, False]
    for caller in callers[1:]:
        with pytest.raises(Unavailable, match=r"test\.load"):
            await caller
