"""Reads of history from Parquet, in this process: `python -m benchmarks.table.replay [--mb 512] [--files 1000]`.

Replay: one reader reads the table from the beginning, 1 MiB per call, as a broker does for a consumer. Seek: single
reads in the middle of a table of very many files, each with empty caches. MB are those of Kafka record batches.
"""

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from benchmarks.table.columns import load
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.table.history import TableHistory
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import write_parquet
from lakestream.metadata.memory import MemoryServer
from lakestream.model import KiB, MiB, PartitionId
from lakestream.storage.local_store import FileStore

LOG = PartitionId("0123456789abcdef0123456789abcdef", 0)
FETCH_BYTES = MiB
SEEKS = 10


class Lake:
    """Table of one topic in a folder."""

    def __init__(self, root: Path) -> None:
        self.store = FileStore(root, SystemClock(), RandomIds())
        metadata = MemoryServer(SystemClock()).client()
        self.catalog = Catalog(metadata, self.store, Locations(f"file://{root}"), SystemClock(), RandomIds())
        self.end = 0

    async def open(self) -> None:
        await self.catalog.start()
        await ensure_table(self.catalog, "orders", LOG.topic_id, {})

    async def fill(self, source: BatchSource, records: int, files: int, commits: int) -> None:
        """Appends files of the same records, at increasing offsets."""
        for commit in range(commits):
            table = await self.catalog.load_id(LOG.topic_id)
            new_files: list[FileDescription] = []
            start = self.end
            for _ in range(files * (commit + 1) // commits - files * commit // commits):
                new_files += await self._file(table.metadata["location"], source)
                self.end += records
            await append(self.catalog, table, new_files, [MovedRange(0, start, self.end)])

    async def _file(self, location: str, source: BatchSource) -> list[FileDescription]:
        moved = BatchSource(source.name, source.data, source.starts, source.ends, source.base_offsets + self.end)
        written = list(
            write_parquet(decode([moved], 0), lambda offset: data_location(location, 0, offset, RandomIds().new()))
        )
        for file in written:
            await self.store.create(self.catalog.locations.key_of(file.description.location), [memoryview(file.body)])
        return [file.description for file in written]

    def history(self) -> TableHistory:
        return TableHistory(self.catalog, self.store, 192 * MiB)


async def replay(root: Path, megabytes: int) -> None:
    lake = Lake(root)
    await lake.open()
    batches = load("1 KiB", 1024, "none", 230, bytes_all=64 * MiB)
    files = max(1, megabytes // 64)
    await lake.fill(batches.source, batches.records, files, min(4, files))
    for name in ("first", "second"):
        history = lake.history()
        await history.read(LOG, 0, 1)  # kernels are run_load, one chunk is read
        offset = size = reads = 0
        wall, cpu = time.perf_counter(), time.process_time()
        while offset < lake.end:
            result = await history.read(LOG, offset, FETCH_BYTES)
            size += sum(len(piece) for _, pieces in result.batches for piece in pieces)
            offset, reads = result.offset_next, reads + 1
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"replay, {name}: {size / 1e6:.0f} MB in {reads} reads: {size / wall / 1e6:.0f} MB/s,"
            f" {size / cpu / 1e6:.0f} MB per second of CPU"
        )
        await history.close()


async def seek(root: Path, files: int, commits: int) -> None:
    lake = Lake(root)
    await lake.open()
    batches = load("1 KiB", 1024, "none", 230, bytes_all=256 * KiB)
    await lake.fill(batches.source, batches.records, files, commits)
    taken = []
    for _ in range(SEEKS):
        history = lake.history()
        await history._loaded()
        start = time.perf_counter()
        result = await history.read(LOG, random.randrange(lake.end), FETCH_BYTES)
        taken.append(time.perf_counter() - start)
        assert result.batches
        await history.close()
    taken.sort()
    print(
        f"seek, {files} files in {commits} commits: {taken[len(taken) // 2] * 1000:.0f} ms,"
        f" at most {taken[-1] * 1000:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--files", type=int, default=1000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(replay(Path(folder, "replay"), chosen.mb))
        asyncio.run(seek(Path(folder, "few"), chosen.files, 10))
        asyncio.run(seek(Path(folder, "many"), chosen.files, chosen.files))


if __name__ == "__main__":
    main()
