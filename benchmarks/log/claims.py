"""Claims per second and latency of a call on SQLite and on Oxia; each claim reads the floor of its partition."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchmarks.common.environment import Stage
from benchmarks.common.measure import Run, measured, median, percentile, run_alone
from benchmarks.common.report import Row, row
from benchmarks.log.environment import create_logs, oxia, sqlite
from lakestream.metadata.claims import BatchInfo, Claim, Claimed, Claims, Medium
from lakestream.metadata.store import MetadataStore
from lakestream.model import PartitionId


async def run(stage: Stage) -> list[Row]:
    rows = []
    for name, opened in (("SQLite", sqlite), ("Oxia", oxia)):
        for per_call in (1, 64, 500):
            rows += await _rate(stage, name, opened, per_call)
    return rows


async def _rate(
    stage: Stage, name: str, opened: Callable[[Path], AbstractAsyncContextManager[MetadataStore]], per_call: int
) -> list[Row]:
    rounds = {1: 1500, 64: 150, 500: 30}[per_call] // (3 if stage.quick else 1)
    took_ms: list[float] = []
    async with opened(stage.new_folder()) as metadata:
        claims, partitions = Claims(metadata), await create_logs(metadata, per_call)
        offset = 0

        async def work() -> Run:
            nonlocal offset
            with measured() as cost:
                for _ in range(rounds):
                    start_s = time.perf_counter()
                    results = await claims.create([(partition, _claim(partition, offset)) for partition in partitions])
                    took_ms.append((time.perf_counter() - start_s) * 1e3)
                    assert all(isinstance(result, Claimed) for result in results)
                    offset += 100
            return Run(rounds * per_call, cost)

        runs, quiet = await run_alone(work, stage.times)
    took_ms.sort()
    return [
        row(
            "claims",
            f"claims on {name}, {per_call} per call",
            median(runs, lambda run: run.per_s),
            "/s",
            quiet=quiet,
            note=f"one call p50 {percentile(took_ms, 0.5):.2f}, p99 {percentile(took_ms, 0.99):.2f} ms;"
            f" CPU {median(runs, lambda run: run.cost.cpu_s / run.amount * 1e6):.0f} µs per claim",
        )
    ]


def _claim(partition: PartitionId, offset: int) -> Claim:
    """Returns a claim of one batch of an idempotent producer, as the log creates it."""
    batch = BatchInfo(
        40, 65_576, 100, producer_id=partition.number, epoch=0, sequence_first=offset, sequence_last=offset + 99
    )
    return Claim(
        offset,
        offset + 100,
        f"0123456789abcdef.{offset}.{partition.number}.1",
        "0123456789abcdef",
        Medium.SEGMENT,
        "0000001700000000000-0123456789abcdef-0000000001.seg",
        1_700_000_000_000,
        1_700_000_000_000,
        1_700_000_000_000,
        (batch,),
    )
