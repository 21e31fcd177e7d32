"""Logs laid down by hand, for tests of what becomes of their bytes: their moves, and the rows they must become."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.harness.table.reference_codec import CODECS, Record, batch_of, records_of

from lakestream.catalog.locations import Locations
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.pipeline.tasks import Move, Outcome, Piece
from lakestream.storage.object_store import ObjectStore

TABLE = "tables/default/t-1"


def records(count: int, first: int = 0, *, size: int = 40) -> list[Record]:
    return [
        Record(
            offset,
            1_700_000_000_000 + offset,
            0,
            b"key %d" % (offset % 9),
            b"%d " % offset * (size // 4),
            ((b"h", b"x"),),
        )
        for offset in range(first, first + count)
    ]


@dataclass(slots=True)
class Log:
    """One partition. Batches go one after another into the objects they are said to, other bytes between them."""

    number: int = 0
    medium: Medium = Medium.OBJECT
    records: list[Record] = field(default_factory=list)
    objects: dict[str, bytearray] = field(default_factory=dict)
    placed: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    def append(self, batch: Sequence[Record], codec: str = "none", *, into: str = "wal/1.wal", gap: int = 0) -> None:
        data = self.objects.setdefault(into, bytearray())
        data += b"?" * gap
        body = batch_of(batch, codec)
        self.placed.setdefault(into, []).append((len(data), len(data) + len(body), batch[0].offset))
        data += body
        self.records += batch

    def move(self, root: str) -> Move:
        pieces = tuple(
            Piece(self.medium, name, *map(tuple, zip(*placed, strict=True))) for name, placed in self.placed.items()
        )
        size = sum(end - start for placed in self.placed.values() for start, end, _ in placed)
        end = self.records[-1].offset + 1 if self.records else 1
        start = self.records[0].offset if self.records else 0
        return Move(PartitionId("t", self.number), start, end, size, pieces, f"{root}/{TABLE}")

    async def store(self, objects: ObjectStore) -> None:
        for name, data in self.objects.items():
            await objects.put(name, [bytes(data)])


def log_of_all_codecs(number: int = 0, batches: int = 20, per_batch: int = 50) -> Log:
    log = Log(number)
    for place in range(batches):
        batch = records(per_batch, place * per_batch)
        log.append(batch, CODECS[place % len(CODECS)], into=f"wal/{number}-{place % 3}.wal", gap=7)
    return log


async def rows_of(outcome: Outcome, objects: ObjectStore, locations: Locations) -> list[Record]:
    """What the files hold, in their order."""
    found: list[Record] = []
    for file in outcome.files:  # type: ignore[union-attr]
        body = await objects.get(locations.key_of(file.location))
        found += records_of(pq.ParquetFile(io.BytesIO(bytes(body))).read())
    return found
