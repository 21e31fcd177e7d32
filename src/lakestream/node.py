"""The composition root: the only module that names concrete stores and wires them into a working log.

What is wrong is found here, before anything is accepted: an unknown URL, a store that does not answer, a bucket that is
missing or not writable, a clock that is off. Each is one line that says what, where and what to do.
"""

import difflib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.opening import open_catalog
from lakestream.clock import Clock, Ids, RandomIds, SystemClock
from lakestream.data.log.log import Log
from lakestream.data.log.skew import SkewGuard
from lakestream.data.log.sweeper import Sweeper
from lakestream.data.table.history import TableHistory
from lakestream.data.wal.segments import DiskSegments, SegmentFiles, try_out
from lakestream.errors import Misconfigured
from lakestream.metadata.sqlite import SqliteSettings, SqliteStore
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import Topics
from lakestream.model import PartitionId
from lakestream.settings import Profile, Settings
from lakestream.storage.metered import Meter, Metered
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.opening import open_store
from lakestream.storage.probe import check_clock, probe
from lakestream.storage.retrying import Retrying, RetrySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Where order is decided, and where bytes are kept."""

    metadata: MetadataStore
    objects: ObjectStore
    segments: SegmentFiles | None
    meter: Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker's working parts."""

    stores: Stores
    catalog: Catalog
    history: TableHistory
    log: Log
    topics: Topics
    sweeper: Sweeper


@asynccontextmanager
async def open_stores(settings: Settings, clock: Clock, ids: Ids, rest_ms: int = 0) -> AsyncIterator[Stores]:
    """Open and try them all."""
    async with AsyncExitStack() as opened:
        metadata = await _open_metadata(settings, clock, ids, rest_ms)
        opened.push_async_callback(metadata.close)
        await _check_metadata_clock(metadata, clock)
        meter = Meter()
        bare = open_store(settings.storage_url, clock, ids)
        opened.push_async_callback(bare.close)
        check_clock(await probe(bare, settings.storage_url, clock, ids), settings.storage_url)
        objects = Metered(Retrying(bare, RetrySettings(), random.Random()), meter)
        segments = _open_segments(settings)
        if segments is not None:
            opened.push_async_callback(segments.close)
            await try_out(segments, clock, ids)
        yield Stores(metadata=metadata, objects=objects, segments=segments, meter=meter)


@asynccontextmanager
async def open_node(
    settings: Settings,
    clock: Clock | None = None,
    ids: Ids | None = None,
    profile_of: Callable[[PartitionId], Profile] | None = None,
    rest_ms: int = 0,
) -> AsyncIterator[Node]:
    """A running broker; leaving the block stops it, after it has answered what it accepted. `rest_ms`: so long it may
    hear nothing of what others change on this machine, so that they disturb it less."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    if settings.default_profile is Profile.LATENCY and settings.segments_dir is None:
        raise Misconfigured("profile latency needs a folder that every broker mounts: set --wal-dir, or --profile cost")
    async with open_stores(settings, clock, ids, rest_ms) as stores, AsyncExitStack() as opened:
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
            profile_of=profile_of or _one_profile(settings.default_profile),
            history=history,
        )
        sweeper = Sweeper(
            stores.metadata, stores.objects, stores.segments, read_grace_ms=settings.log.wal.read_grace_ms
        )
        await log.start()
        try:
            topics = Topics(stores.metadata)
            yield Node(stores=stores, catalog=catalog, history=history, log=log, topics=topics, sweeper=sweeper)
        finally:
            await log.close()


async def _open_metadata(settings: Settings, clock: Clock, ids: Ids, rest_ms: int) -> MetadataStore:
    if settings.on_one_machine:
        make_folder(settings.data_dir, "--data-dir")
        return await SqliteStore.open(
            settings.data_dir / "metadata.sqlite", clock, SqliteSettings(rest_ms=rest_ms), ids
        )
    scheme = settings.metadata.partition("://")[0]
    if scheme != "oxia":
        near = difflib.get_close_matches(scheme, ["sqlite", "oxia"], n=1, cutoff=0.4)
        meant = f"did you mean {near[0]}?" if near else "known are sqlite and oxia://host:port/namespace"
        raise Misconfigured(f"unknown metadata store {settings.metadata!r}: {meant}")
    return await _open_oxia(settings.metadata, ids)


async def _open_oxia(url: str, ids: Ids) -> MetadataStore:
    try:
        # Here and not above: gRPC is an extra, and one machine does without it.
        from lakestream.metadata.oxia import OxiaSettings, OxiaStore
    except ImportError as error:
        raise Misconfigured(f"{url} needs the extra 'oxia' ({error}): pip install 'lakestream[oxia]'") from error
    return await OxiaStore.open(OxiaSettings.from_url(url), ids)


def _open_segments(settings: Settings) -> SegmentFiles | None:
    folder = settings.segments_dir
    if folder is None:
        return None
    make_folder(folder, "--wal-dir")
    return DiskSegments(folder)


async def _check_metadata_clock(metadata: MetadataStore, clock: Clock) -> None:
    guard = SkewGuard(clock, metadata.now_ms)
    await guard.measure()
    guard.check()


def make_folder(path: Path, flag: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(f"{path} cannot be made a folder ({error.strerror}): choose another with {flag}") from error


def _one_profile(profile: Profile) -> Callable[[PartitionId], Profile]:
    return lambda partition: profile
