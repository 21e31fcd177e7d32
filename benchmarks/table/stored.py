"""What is left on the disk of a GB that was produced: log and table, all files of a side.

Ours is looked at when the WAL has been swept, with the settings that users have: a minute for readers under way, and a
look every twenty seconds. Broker and pipeline run apart here, so that the broker can be restarted: that seals the
segment which it has open (up to 256 MiB, whatever the amount of records), and only a sealed one is swept.
Asked: at most 0.35 of what Kafka and Spark keep.
"""

import asyncio
import time
from typing import Final

from benchmarks.common.measure import evict, stored_bytes
from benchmarks.common.report import Row, row
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.sides import LAKESTREAM
from benchmarks.table.loads import moved
from benchmarks.table.sides import KAFKA_SPARK, Lakestream, sides

RECORDS: Final = 1_000_000
INTERVAL_S: Final = 5
SWEPT_S_MAX: Final = 240.0


async def run(bench: Bench) -> list[Row]:
    count = bench.scaled(RECORDS)
    kept: dict[str, float] = {}
    tables: dict[str, float] = {}
    for name in bench.of(LAKESTREAM, KAFKA_SPARK):
        async with sides([name], bench.stage.fresh(), INTERVAL_S, apart=True) as (side,):
            await moved(side, count)
            if isinstance(side, Lakestream):
                await _swept(side)
            evict(side.folder)  # what is not on the disk yet takes nothing there
            kept[name] = sum(map(stored_bytes, side.stores)) / (count * SIZE)
            tables[name] = stored_bytes(side.table) / (count * SIZE)
    peer = kept.get(KAFKA_SPARK)
    return [
        row(
            "stored",
            "stored for each byte produced, log and table",
            kept[LAKESTREAM],
            "bytes",
            peer=peer,
            peer_is=KAFKA_SPARK if peer else "",
            ratio=kept[LAKESTREAM] / peer if peer else None,
            at_most=0.35 if peer else None,
            note="; ".join(f"{name}: table {share:.2f}" for name, share in tables.items()),
        )
    ]


async def _swept(side: Lakestream) -> None:
    side.broker.stop()
    await side.broker.start()
    deadline_s = time.monotonic() + SWEPT_S_MAX
    wal = side.folder / "data" / "wal"
    while stored_bytes(wal) > SIZE * SIZE:
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"{stored_bytes(wal):,} bytes of the WAL are not swept after {SWEPT_S_MAX:.0f} s")
        await asyncio.sleep(1.0)
