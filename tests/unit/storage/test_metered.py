"""Calls, bytes and latencies of an object store are counted."""

import asyncio
import random

import pytest

from lakestream.errors import Conflict, Missing
from lakestream.model import Span
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.metered import LATENCY_BOUNDS_MS, Meter, MeteredStore, Operation, latency_bucket
from lakestream.testing.faulty_object_store import Faults, FaultyObjectStore
from lakestream.testing.simulation import SimClock, SimLoop, simulate


def test_latency_bucket_has_the_next_bound() -> None:
    for took_ms, bound in [(0, 1), (0.4, 1), (1, 1), (1.01, 2), (2, 2), (3, 4), (4, 4), (5, 8), (1000, 1024)]:
        assert LATENCY_BOUNDS_MS[latency_bucket(took_ms / 1000)] == bound
    assert latency_bucket(1e6) == len(LATENCY_BOUNDS_MS)


def test_calls_bytes_and_latencies_are_counted() -> None:
    async def scenario(loop: SimLoop) -> None:
        meter = Meter()
        slow = FaultyObjectStore(MemoryObjectStore(SimClock(loop)), random.Random(1), Faults(delay_ms=(100, 100)))
        store = MeteredStore(slow, meter)
        await store.put("a/1", [b"12", b"345"])
        await store.create("a/2", [b"67"])
        with pytest.raises(Conflict):
            await store.create("a/2", [b"89"])
        with pytest.raises(Missing):
            await store.get("a/3")
        await store.get("a/1")
        await store.get_ranges("a/1", [Span(0, 2), Span(1, 2)])
        await store.head("a/1")
        assert [len(page) async for page in store.walk("a")] == [2]
        await store.delete(["a/1"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.get("a/2")
        await store.close()

        counted = meter.snapshot()
        assert {operation: (figures.calls, figures.bytes) for operation, figures in counted.items()} == {
            Operation("put", "ok"): (1, 5),
            Operation("create", "ok"): (1, 2),
            Operation("create", "Conflict"): (1, 0),
            Operation("get", "Missing"): (1, 0),
            Operation("get", "ok"): (1, 5),
            Operation("get_ranges", "ok"): (1, 3),
            Operation("head", "ok"): (1, 0),
            Operation("walk", "ok"): (2, 0),  # the page, and the end of the listing
            Operation("delete", "ok"): (1, 0),
            Operation("get", "CancelledError"): (1, 0),
        }
        put = counted[Operation("put", "ok")]
        assert put.took_s == pytest.approx(0.1)
        assert put.latencies[latency_bucket(0.1)] == 1
        assert sum(put.latencies) == 1

    simulate(1, scenario)
