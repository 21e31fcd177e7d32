"""Injected faults: they affect every call, are deterministic, and keep the bytes of delayed writes."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from lakestream.errors import Missing, Unavailable
from lakestream.model import Span
from lakestream.storage.memory import MemoryObjectStore
from lakestream.testing.faulty_object_store import Faults, FaultyObjectStore
from lakestream.testing.simulation import SimClock, SimLoop, simulate


def test_delayed_write_stores_the_bytes_of_the_call() -> None:
    async def scenario(loop: SimLoop) -> None:
        inner = MemoryObjectStore(SimClock(loop))
        store = FaultyObjectStore(inner, random.Random(1), Faults(late=1, late_ms=(1000, 1000)))
        buffer = bytearray(b"sent")
        with pytest.raises(Unavailable):
            await store.put("k", [buffer])
        buffer[:] = b"used again"
        with pytest.raises(Missing):
            await inner.get("k")
        await asyncio.sleep(1.1)
        assert await inner.get("k") == b"sent"
        await store.close()

    simulate(1, scenario)


async def _drain(pages: AsyncIterator[object]) -> None:
    async for _ in pages:
        pass


def test_fault_injection_affects_every_call() -> None:
    async def scenario(loop: SimLoop) -> None:
        inner = MemoryObjectStore(SimClock(loop))
        await inner.put("k", [b"x"])
        store = FaultyObjectStore(inner, random.Random(1), Faults(error_before=1))
        for call in (
            store.put("k", [b"y"]),
            store.create("n", [b"y"]),
            store.get("k"),
            store.get_ranges("k", [Span(0, 1)]),
            store.head("k"),
            store.delete(["k"]),
            _drain(store.walk("")),
        ):
            with pytest.raises(Unavailable, match="injected"):
                await call
        assert await inner.get("k") == b"x"
        store.faults = Faults(error_after=1)
        with pytest.raises(Unavailable, match="injected"):
            await store.put("k", [b"y"])
        assert await inner.get("k") == b"y"
        store.faults = Faults()
        await store.delete(["k"])

    simulate(1, scenario)


def test_faults_are_equal_for_the_same_seed() -> None:
    def history(seed: int) -> list[str]:
        async def scenario(loop: SimLoop) -> list[str]:
            faults = Faults(error_before=0.2, error_after=0.2, late=0.1, delay_ms=(0, 50), stall=0.05)
            store = FaultyObjectStore(MemoryObjectStore(SimClock(loop)), random.Random(seed), faults)
            lines = []
            for number in range(100):
                try:
                    await store.put(f"k/{number}", [b"x"])
                    lines.append(f"{loop.now:.6f} ok")
                except Unavailable as error:
                    lines.append(f"{loop.now:.6f} {error}")
            await store.close()
            return lines

        return simulate(seed, scenario)

    assert history(1) == history(1) != history(2)
    assert any("timed out" in line for line in history(1))
