"""The composition root of a node: opens the stores that the settings name, and the log over them.

It detects errors before any request is accepted: an unknown URL, a store that does not respond, a bucket that is
missing or not writable, a skewed clock. Each is one line with the object, the problem and the action.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from lakestream.aio.progress import reported
from lakestream.catalog.catalog import Catalog, open_catalog
from lakestream.clock import Clock, Ids, RandomIds, SystemClock
from lakestream.config.settings import Profile, Settings
from lakestream.data.log.clock_skew import ClockSkewMonitor
from lakestream.data.log.garbage_collector import WalGarbageCollector
from lakestream.data.log.log import Log
from lakestream.data.table.history import TableHistory
from lakestream.data.wal.segments import DiskSegments, SegmentFiles, check_segments
from lakestream.errors import Misconfigured, Missing
from lakestream.metadata import keys
from lakestream.metadata.sqlite import SqliteSettings, SqliteStore
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import Topics
from lakestream.model import PartitionId
from lakestream.storage.metered import Meter, MeteredStore
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.open_store import folder_of, open_store
from lakestream.storage.retrying import PATIENT, RetryingStore, RetrySettings
from lakestream.storage.startup_check import check_clock, check_store

SQLITE_FILE: Final = "metadata.sqlite"


class Access(Enum):
    """What opening the stores may write."""

    CREATE = "create"
    """Whatever is missing: brokers and pipelines."""
    EXISTING = "existing"
    """Only probes, in stores that a broker or pipeline has created: commands that change or check them."""
    READ = "read"
    """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The metadata store, which decides order, and the stores of bytes."""

    metadata: MetadataStore
    objects: ObjectStore
    segments: SegmentFiles | None
    meter: Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The stores of one process, its log and its catalog."""

    stores: Stores
    catalog: Catalog
    history: TableHistory
    log: Log
    topics: Topics
    garbage_collector: WalGarbageCollector


@asynccontextmanager
async def open_stores(
    settings: Settings,
    clock: Clock,
    ids: Ids,
    watch_pause_ms: int = 0,
    access: Access = Access.CREATE,
    *,
    patient: bool = False,
) -> AsyncIterator[Stores]:
    """Opens all stores and checks that they work. `patient`: no client waits for calls, so their timeouts are long.

    Missing if `access` does not create the stores and one does not exist.
    """
    if access is Access.CREATE:
        _make_folders(settings)
    else:
        check_folders(settings)
    async with AsyncExitStack() as opened:
        metadata = await _open_metadata(settings, clock, ids, watch_pause_ms, patient=patient)
        opened.push_async_callback(metadata.close)
        await _check_metadata_clock(metadata, clock)
        if access is not Access.CREATE:
            await _check_in_use(metadata, settings)
        meter = Meter()
        bare = open_store(settings.storage_url, clock, ids)
        opened.push_async_callback(bare.close)
        if access is not Access.READ:
            with reported(f"checking the storage {settings.storage_url}"):
                check_clock(await check_store(bare, settings.storage_url, clock, ids), settings.storage_url)
        retries = PATIENT if patient else RetrySettings()
        objects = MeteredStore(RetryingStore(bare, retries, random.Random()), meter)
        segments = None if settings.segments_dir is None else DiskSegments(settings.segments_dir)
        if segments is not None:
            opened.push_async_callback(segments.close)
            if access is not Access.READ:
                await check_segments(segments, clock, ids)
        yield Stores(metadata=metadata, objects=objects, segments=segments, meter=meter)


@asynccontextmanager
async def open_node(
    settings: Settings,
    clock: Clock | None = None,
    ids: Ids | None = None,
    profile_of: Callable[[PartitionId], Profile] | None = None,
    on_partition_deleted: Callable[[PartitionId], None] | None = None,
    watch_pause_ms: int = 0,
    access: Access = Access.CREATE,
    *,
    patient: bool = False,
) -> AsyncIterator[Node]:
    """Opens the stores and a log; the end of the block closes them, after accepted appends have completed.

    `watch_pause_ms` delays changes by other processes of this machine, to take less CPU. `patient`: see open_stores.
    """
    clock, ids = clock or SystemClock(), ids or RandomIds()
    if settings.default_profile is Profile.LATENCY and settings.segments_dir is None:
        raise Misconfigured("profile latency needs a folder that every broker mounts: set --wal-dir, or --profile cost")
    async with (
        open_stores(settings, clock, ids, watch_pause_ms, access, patient=patient) as stores,
        AsyncExitStack() as opened,
    ):
        catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
        history = TableHistory(catalog, stores.objects, settings.log.history_bytes_max)
        opened.push_async_callback(history.close)
        log = Log(
            stores.metadata,
            stores.objects,
            stores.segments,
            settings.log,
            clock,
            ids,
            profile_of=profile_of or _constant_profile(settings.default_profile),
            history=history,
            on_partition_deleted=on_partition_deleted,
        )
        garbage_collector = WalGarbageCollector(
            stores.metadata, stores.objects, stores.segments, read_grace_ms=settings.log.wal.read_grace_ms
        )
        await log.start()
        try:
            topics = Topics(stores.metadata)
            yield Node(
                stores=stores,
                catalog=catalog,
                history=history,
                log=log,
                topics=topics,
                garbage_collector=garbage_collector,
            )
        finally:
            await log.close()


def metadata_name(settings: Settings) -> str:
    """Names the metadata store, with its folder, in messages."""
    return f"sqlite in {settings.data_dir.absolute()}" if settings.is_single_machine else settings.metadata


def local_folders(settings: Settings) -> list[Path]:
    """Returns the folders on disks to which this process writes."""
    metadata = settings.data_dir.absolute() if settings.is_single_machine else None
    found = (metadata, settings.segments_dir, folder_of(settings.storage_url))
    return [folder for folder in found if folder is not None]


def check_folders(settings: Settings) -> None:
    """Checks that the folders on this machine exist. Missing: names the folder and the flag."""
    if settings.is_single_machine and not (settings.data_dir / SQLITE_FILE).is_file():
        raise _nothing_at(f"folder {settings.data_dir.absolute()} has no {SQLITE_FILE}", "--data-dir")
    storage = folder_of(settings.storage_url)
    if storage is not None and not storage.is_dir():
        raise _nothing_at(f"storage folder {storage} does not exist", "--storage" if settings.storage else "--data-dir")
    segments = settings.segments_dir
    if segments is not None and not segments.is_dir():
        flag = "--wal-dir" if settings.wal_dir else "--data-dir"
        raise _nothing_at(f"folder of segments {segments.absolute()} does not exist", flag)


async def _check_in_use(metadata: MetadataStore, settings: Settings) -> None:
    """Checks that a broker has used the metadata store, or that it has topics."""
    if await metadata.get(keys.CLUSTER_ID) is None and not await Topics(metadata).all():
        flag = "--data-dir" if settings.is_single_machine else "--metadata"
        raise _nothing_at(f"metadata store {metadata_name(settings)} is empty", flag)


def _nothing_at(problem: str, flag: str) -> Missing:
    return Missing(f"{problem}: nothing of Lakestream is stored there; name the server's with {flag}")


def _make_folders(settings: Settings) -> None:
    if settings.is_single_machine:
        make_folder(settings.data_dir, "--data-dir")
    if settings.segments_dir is not None:
        make_folder(settings.segments_dir, "--wal-dir")


async def _open_metadata(
    settings: Settings, clock: Clock, ids: Ids, watch_pause_ms: int, *, patient: bool
) -> MetadataStore:
    if settings.is_single_machine:
        sqlite = SqliteSettings(watch_pause_ms=watch_pause_ms)
        sqlite = replace(sqlite, lock_wait_ms=PATIENT.try_timeout_ms) if patient else sqlite
        return await SqliteStore.open(settings.data_dir / SQLITE_FILE, clock, sqlite, ids)
    if settings.metadata.partition("://")[0] != "oxia":
        raise Misconfigured(
            f"unknown metadata store {settings.metadata!r}: use sqlite, or oxia://host:port[,host:port]/namespace"
        )
    return await _open_oxia(settings.metadata, ids, patient=patient)


async def _open_oxia(url: str, ids: Ids, *, patient: bool) -> MetadataStore:
    try:
        # Imported here: gRPC is an extra, and a single machine needs none.
        from lakestream.metadata.oxia import OxiaSettings, OxiaStore
    except ImportError as error:
        raise Misconfigured(f"{url} needs the extra 'oxia' ({error}): pip install 'lakestream[oxia]'") from error
    settings = OxiaSettings.from_url(url)
    with reported(f"waiting for the metadata store {url}"):
        return await OxiaStore.open(settings.patient() if patient else settings, ids)


async def _check_metadata_clock(metadata: MetadataStore, clock: Clock) -> None:
    guard = ClockSkewMonitor(clock, metadata.now_ms)
    await guard.measure()
    guard.check()


def make_folder(path: Path, flag: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(f"cannot create folder {path} ({error.strerror}): choose another with {flag}") from error


def _constant_profile(profile: Profile) -> Callable[[PartitionId], Profile]:
    return lambda partition: profile
