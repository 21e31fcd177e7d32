"""Logs on real stores, for benchmarks."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from obstore.store import S3Store

from benchmarks.log.recording_stores import Gets, RecordingBucket, RecordingSegments
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import LogSettings, Profile
from lakestream.data.log.log import Log
from lakestream.data.wal.segments import DiskSegments, SegmentFiles
from lakestream.metadata.claims import Claims
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.store import OxiaStore
from lakestream.metadata.sqlite import SqliteStore
from lakestream.metadata.store import MetadataStore
from lakestream.model import PartitionId
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.obstore_store import client_options, no_retries
from lakestream.storage.retrying import RetryingStore, RetrySettings
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
    recording: RecordingBucket
    store: ObjectStore
    """The recording store with a broker's retries around it."""
    root: Path
    """Folder of the server's files."""


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
        recording = RecordingBucket(bare, "s3://lake")
        recording.sizes, recording.gets = [], Gets()
        yield Bucket(bare, recording, RetryingStore(recording, RetrySettings(), random.Random(1)), server.root)


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
        store or MemoryObjectStore(SystemClock()),
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
) -> AsyncIterator[tuple[Log, RecordingSegments, SqliteStore]]:
    """Opens a log of the profile `latency` on one machine: SQLite and segment files."""
    segments = RecordingSegments(DiskSegments(folder / "segments"))
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
    """Opens a log of the profile `cost`: SQLite and objects."""
    async with (
        sqlite(folder) as metadata,
        running_log(metadata, Profile.COST, store=where.store, settings=settings) as log,
    ):
        yield log, metadata


async def create_logs(metadata: MetadataStore, count: int) -> list[PartitionId]:
    claims, topic_id = Claims(metadata), RandomIds().new()
    partitions = [PartitionId(topic_id, number) for number in range(count)]
    await claims.create_logs(partitions)
    return partitions
