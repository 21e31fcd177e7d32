"""What a benchmark of the log runs on: logs over real stores."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from obstore.store import S3Store

from benchmarks.log.noted import Gets, NotedBucket, NotedSegments
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.log.log import Log
from lakestream.data.wal.segments import DiskSegments, SegmentFiles
from lakestream.metadata.claims import Claims
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.store import OxiaStore
from lakestream.metadata.sqlite import SqliteStore
from lakestream.metadata.store import MetadataStore
from lakestream.model import PartitionId
from lakestream.settings import LogSettings, Profile
from lakestream.storage.memory import MemoryStore
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.remote import client_options, no_retries
from lakestream.storage.retrying import Retrying, RetrySettings
from lakestream.testing.servers import oxia_standalone, s3_server


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(folder / "metadata.db", SystemClock())
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def oxia(folder: Path) -> AsyncIterator[OxiaStore]:
    async with oxia_standalone(folder) as server:
        store = await OxiaStore.open(OxiaSettings.from_url(server.url))
        try:
            yield store
        finally:
            await store.close()


@dataclass(frozen=True, slots=True)
class Bucket:
    bare: S3Store
    noted: NotedBucket
    store: ObjectStore
    """The noted one with the retries that a broker puts around it."""
    root: Path
    """Where the server keeps its files."""


@asynccontextmanager
async def bucket(folder: Path) -> AsyncIterator[Bucket]:
    async with s3_server(folder) as server:
        bare = S3Store(
            server.bucket("lake"),
            endpoint=server.endpoint,
            access_key_id=server.access_key_id,
            secret_access_key=server.secret_access_key,
            region=server.region,
            virtual_hosted_style_request=False,
            unsigned_payload=True,
            client_options=client_options(server.endpoint),
            retry_config=no_retries(),
        )
        noted = NotedBucket(bare, "s3://lake")
        noted.sizes, noted.gets = [], Gets()
        yield Bucket(bare, noted, Retrying(noted, RetrySettings(), random.Random(1)), server.root)


@asynccontextmanager
async def running_log(
    metadata: MetadataStore,
    profile: Profile,
    *,
    store: ObjectStore | None = None,
    segments: SegmentFiles | None = None,
    settings: LogSettings | None = None,
) -> AsyncIterator[Log]:
    log = Log(
        metadata,
        store or MemoryStore(SystemClock()),
        segments,
        settings or LogSettings(),
        SystemClock(),
        RandomIds(),
        profile_of=lambda _: profile,
    )
    await log.start()
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def log_on_disk(
    folder: Path, settings: LogSettings | None = None
) -> AsyncIterator[tuple[Log, NotedSegments, SqliteStore]]:
    """The `latency` profile on one machine: SQLite and segment files."""
    segments = NotedSegments(DiskSegments(folder / "segments"))
    async with (
        sqlite(folder) as metadata,
        running_log(metadata, Profile.LATENCY, segments=segments, settings=settings) as log,
    ):
        yield log, segments, metadata
    await segments.close()


@asynccontextmanager
async def log_on_bucket(
    folder: Path, where: Bucket, settings: LogSettings | None = None
) -> AsyncIterator[tuple[Log, SqliteStore]]:
    """The `cost` profile: SQLite and objects."""
    async with (
        sqlite(folder) as metadata,
        running_log(metadata, Profile.COST, store=where.store, settings=settings) as log,
    ):
        yield log, metadata


async def make_logs(metadata: MetadataStore, count: int) -> list[PartitionId]:
    claims, topic_id = Claims(metadata), RandomIds().new()
    partitions = [PartitionId(topic_id, number) for number in range(count)]
    await claims.make_logs(partitions)
    return partitions
