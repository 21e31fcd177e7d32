"""Disk space of a produced GB: all files of a side, log and table.

Lakestream is measured after the garbage collection of the WAL, with default settings: a minute for readers in flight,
and a run every twenty seconds. Broker and pipeline are separate processes here, so that the broker can be restarted. A
restart seals its open segment (up to 256 MiB, independent of the amount of records), and only sealed segments are
deleted. Target: at most 0.35 of the space of Kafka and Spark.
"""

import asyncio
import time
from typing import Final

from benchmarks.common.measure import evict, stored_bytes
from benchmarks.common.report import Row, row
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.servers import LAKESTREAM
from benchmarks.table.loads import move_records
from benchmarks.table.servers import KAFKA_SPARK, Lakestream, sides

RECORDS: Final = 1_000_000
INTERVAL_S: Final = 5
GC_S_MAX: Final = 240.0


async def run(bench: Bench) -> list[Row]:
    count = bench.scaled(RECORDS)
    stored_share: dict[str, float] = {}
    tables: dict[str, float] = {}
    for name in bench.of(LAKESTREAM, KAFKA_SPARK):
        async with sides([name], bench.stage.new_folder(), INTERVAL_S, separate=True) as (side,):
            await move_records(side, count)
            if isinstance(side, Lakestream):
                await _wait_for_gc(side)
            evict(side.folder)  # writes dirty pages, so that all bytes are on the disk
            stored_share[name] = sum(map(stored_bytes, side.stores)) / (count * SIZE)
            tables[name] = stored_bytes(side.table) / (count * SIZE)
    peer = stored_share.get(KAFKA_SPARK)
    return [
        row(
            "stored",
            "stored for each byte produced, log and table",
            stored_share[LAKESTREAM],
            "bytes",
            peer=peer,
            peer_is=KAFKA_SPARK if peer else "",
            ratio=stored_share[LAKESTREAM] / peer if peer else None,
            at_most=0.35 if peer else None,
            note="; ".join(f"{name}: table {share:.2f}" for name, share in tables.items()),
        )
    ]


async def _wait_for_gc(side: Lakestream) -> None:
    side.broker.stop()
    await side.broker.start()
    deadline_s = time.monotonic() + GC_S_MAX
    wal = side.folder / "data" / "wal"
    while stored_bytes(wal) > SIZE * SIZE:
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"{stored_bytes(wal):,} bytes of the WAL are not deleted after {GC_S_MAX:.0f} s")
        await asyncio.sleep(1.0)
