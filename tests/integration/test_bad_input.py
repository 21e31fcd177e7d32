"""Damaged files, missing objects, full disks and stores that go away, under a log on real stores.

What must hold: one clear line that names what is wrong, never wrong data and never a hang; nothing that was
acknowledged is lost; and everything works again when the trouble is over.
"""

import asyncio
import random
import statistics
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.data.brokers import plain, read_all

from lakestream.clock import RandomIds, SystemClock
from lakestream.data.log.fold import Fold
from lakestream.data.log.log import Log
from lakestream.data.wal.segments import DiskSegments
from lakestream.errors import Corrupt, LakestreamError, Unavailable
from lakestream.metadata.claims import BatchInfo, Claim, Claims, Medium
from lakestream.metadata.sqlite import SqliteStore
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import KiB, MiB, PartitionId
from lakestream.node import Node, open_node
from lakestream.settings import LogSettings, Profile, Settings, WalSettings
from lakestream.storage.opening import open_store
from lakestream.storage.retrying import Retrying, RetrySettings
from lakestream.testing.processes import listens
from lakestream.testing.servers import s3_server

PROFILES = pytest.mark.parametrize("profile", list(Profile))
QUICK = LogSettings(append_timeout_ms=2_000, wal=WalSettings(flush_interval_ms=5))


def node(folder: Path, profile: Profile = Profile.LATENCY) -> AbstractAsyncContextManager[Node]:
    return open_node(Settings(data_dir=folder, profile=profile, log=QUICK))


@asynccontextmanager
async def impatient(folder: Path, url: str, profile: Profile) -> AsyncIterator[tuple[Log, Topics]]:
    """A broker whose storage gives up after two seconds instead of thirty."""
    clock, ids = SystemClock(), RandomIds()
    metadata = await SqliteStore.open(folder / "m.sqlite", clock)
    retries = RetrySettings(try_timeout_ms=1_000, deadline_ms=2_000)
    store = Retrying(open_store(url, clock, ids), retries, random.Random(1))
    segments = DiskSegments(folder)
    log = Log(metadata, store, segments, QUICK, clock, ids, profile_of=lambda _: profile)
    await log.start()
    try:
        yield log, Topics(metadata)
    finally:
        await log.close()
        await segments.close()
        await store.close()
        await metadata.close()


async def logs(broker: Node, count: int) -> list[PartitionId]:
    return (await broker.topics.create("t", Topic(RandomIds().new(), count))).partitions()


async def append(broker: Node, partition: PartitionId, *values: str) -> None:
    for value in values:
        await broker.log.append(partition, plain(value))


def wal_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".wal", ".seg"))


def flip(path: Path, needle: bytes) -> None:
    """Change one bit of the first record that holds these bytes."""
    body = bytearray(path.read_bytes())
    at = body.index(needle)
    body[at] ^= 0x10
    path.write_bytes(body)


def is_one_line(error: BaseException) -> bool:
    return isinstance(error, LakestreamError) and "\n" not in str(error) and len(str(error)) > 20


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@PROFILES
async def test_a_damaged_file_is_named_and_everything_else_is_readable(tmp_path: Path, profile: Profile) -> None:
    async with node(tmp_path, profile) as broker:
        hurt, well = await logs(broker, 2)
        await append(broker, well, "a")
        await append(broker, hurt, "before", "needle", "behind")
        await append(broker, well, "b")
    (path,) = [path for path in wal_files(tmp_path) if b"needle" in path.read_bytes()]
    flip(path, b"needle")
    async with node(tmp_path, profile) as broker:
        with pytest.raises(Corrupt, match=f"{path.name}: .*checksum") as failed:
            await read_all(broker.log, hurt)
        assert is_one_line(failed.value)
        assert await read_all(broker.log, well) == [(0, "a"), (1, "b")]
        assert await read_all(broker.log, hurt, 2) == [(2, "behind")]
        before = await broker.log.read(hurt, 0, 1)
        assert before.offset_next == 1
        await append(broker, hurt, "more")
        assert await read_all(broker.log, hurt, 2) == [(2, "behind"), (3, "more")]


@PROFILES
async def test_a_missing_file_is_named(tmp_path: Path, profile: Profile) -> None:
    async with node(tmp_path, profile) as broker:
        gone, well = await logs(broker, 2)
        await append(broker, gone, "a")
    (path,) = wal_files(tmp_path)
    async with node(tmp_path, profile) as broker:
        await append(broker, well, "b")
        path.unlink()
        with pytest.raises(
            Corrupt, match=f"log {gone}: .*{path.name}.* is missing.*restore it from a backup"
        ) as failed:
            await broker.log.read(gone, 0, MiB)
        assert is_one_line(failed.value)
        assert await read_all(broker.log, well) == [(0, "b")]


@PROFILES
async def test_a_file_that_was_cut_short_is_named(tmp_path: Path, profile: Profile) -> None:
    async with node(tmp_path, profile) as broker:
        (partition,) = await logs(broker, 1)
        await append(broker, partition, "needle")
    (path,) = wal_files(tmp_path)
    body = path.read_bytes()
    path.write_bytes(body[: body.index(b"needle") + 3])
    async with node(tmp_path, profile) as broker:
        with pytest.raises(Corrupt, match=f"{path.name} is shorter than its claims say"):
            await broker.log.read(partition, 0, MiB)


async def test_a_damaged_object_in_a_bucket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with s3_server(tmp_path) as server:
        server.bucket("lake")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        settings = Settings(data_dir=tmp_path / "data", storage="s3://lake/prefix", log=QUICK)
        async with open_node(settings) as broker:
            hurt, well = await logs(broker, 2)
            await append(broker, hurt, "needle")
            await append(broker, well, "a")
        (path,) = [path for path in wal_files(server.root) if b"needle" in path.read_bytes()]
        flip(path, b"needle")
        async with open_node(settings) as broker:
            with pytest.raises(Corrupt, match=path.name):
                await broker.log.read(hurt, 0, MiB)
            assert await read_all(broker.log, well) == [(0, "a")]


async def test_a_damaged_metadata_file_is_one_line(tmp_path: Path) -> None:
    async with node(tmp_path) as broker:
        partitions = await logs(broker, 50)
        for partition in partitions:
            await append(broker, partition, "a")
    path = tmp_path / "metadata.sqlite"
    body = bytearray(path.read_bytes())
    body[4 * KiB :] = b"\xa5" * (len(body) - 4 * KiB)
    path.write_bytes(body)
    with pytest.raises(Corrupt, match=f"{path}.*restore") as failed:
        async with node(tmp_path) as broker:
            await broker.log.read(partitions[0], 0, MiB)
    assert is_one_line(failed.value)


async def test_a_metadata_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"my notes\n" * 1000)
    with pytest.raises(Corrupt, match=f"{tmp_path}") as failed:
        async with node(tmp_path):
            pytest.fail("it started")
    assert is_one_line(failed.value)


# ── full disks ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here; the limit on file sizes stands in for it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@PROFILES
async def test_a_full_disk(small_disk: Path, profile: Profile) -> None:
    """Metadata and bytes on the same one. It fills up while several append; then somebody makes room."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(2 * MiB))
    acked: list[tuple[int, str]] = []
    errors: list[BaseException] = []

    async def fill(log: Log, partition: PartitionId, name: str) -> None:
        for number in range(1000):
            value = f"{name}-{number}".ljust(20 * KiB)
            try:
                answer = await log.append(partition, plain(value))
            except LakestreamError as error:
                errors.append(error)
                return
            acked.append((answer.offset_start, value))

    storage = (small_disk / "storage").as_uri()
    async with impatient(small_disk, storage, profile) as (log, topics):
        (partition,) = (await topics.create("t", Topic("topic", 1))).partitions()
        await asyncio.wait_for(asyncio.gather(*(fill(log, partition, str(n)) for n in range(4))), 30)
        assert len(errors) == 4
        for error in errors:
            assert isinstance(error, Unavailable)
            assert is_one_line(error)
            assert "full" in str(error).lower() or "no space" in str(error).lower(), error
        end = (await log.bounds(partition)).end
        assert {offset for offset, _ in acked} <= set(range(end))
        filler.unlink()
        answer = await log.append(partition, plain("there is room again"))
        acked.append((answer.offset_start, "there is room again"))
    async with impatient(small_disk, storage, profile) as (log, _):
        found = dict(await read_all(log, partition))
        assert len(acked) > 20
        assert {offset: found[offset] for offset, _ in acked} == dict(acked)
        assert sorted(found) == list(range(len(found)))


@PROFILES
def test_files_that_may_not_grow(tmp_path: Path, profile: Profile) -> None:
    """The kernel refuses to write beyond a size, then allows it; in a process of its own, as the limit is for all."""
    script = f"""
        import asyncio, random, resource
        from pathlib import Path
        from lakestream.batch import RecordBatch
        from lakestream.clock import RandomIds, SystemClock
        from lakestream.data.log.log import Log
        from lakestream.data.wal.segments import DiskSegments
        from lakestream.errors import Unavailable, Uncertain
        from lakestream.metadata.sqlite import SqliteStore
        from lakestream.metadata.topics import Topic, Topics
        from lakestream.settings import LogSettings, Profile, WalSettings
        from lakestream.storage.opening import open_store
        from lakestream.filed import as_bytes
        from lakestream.testing.batches import make_batch, records_of

        FOLDER = Path({str(tmp_path)!r})
        QUICK = LogSettings(append_timeout_ms=2000, wal=WalSettings(flush_interval_ms=5))
        CLOCK, IDS = SystemClock(), RandomIds()

        def limit(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        def batch(number, size):
            return RecordBatch.parse(make_batch([str(number).encode().ljust(size)]))

        async def main():
            metadata = await SqliteStore.open(FOLDER / "m.sqlite", CLOCK)
            (partition,) = (await Topics(metadata).create("t", Topic("topic", 1))).partitions()
            store, segments = open_store((FOLDER / "storage").as_uri(), CLOCK, IDS), DiskSegments(FOLDER)
            profile = Profile({profile.value!r})
            def broker():
                return Log(metadata, store, segments, QUICK, CLOCK, IDS, profile_of=lambda _: profile)
            log = broker()
            await log.start()
            limit(1 << 20)
            acked, errors = {{}}, []
            for number in range(40):
                try:
                    answer = await log.append(partition, batch(number, 1500_000 if number % 4 == 3 else 100_000))
                    acked[answer.offset_start] = number
                except Unavailable as error:
                    errors.append(error)
            assert len(errors) >= 10, len(errors)
            assert len(acked) >= 20, len(acked)
            assert not any(isinstance(error, Uncertain) for error in errors), errors
            assert all("\\n" not in str(error) for error in errors)
            print(errors[0])
            limit(resource.RLIM_INFINITY)
            answer = await log.append(partition, batch(99, 1500_000))
            acked[answer.offset_start] = 99
            await log.close()
            log = broker()
            offset, found = 0, {{}}
            while offset < (await log.bounds(partition)).end:
                part = await log.read(partition, offset, 1)
                ((start, buffers),) = part.batches
                found[start] = int(records_of(as_bytes(buffers))[0].value)
                offset = part.offset_next
            assert found == acked, (found, acked)
            await log.close()
            await segments.close()
            await store.close()
            await metadata.close()

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "too large" in done.stdout.lower() or "full" in done.stdout.lower(), done.stdout


# ── a bucket that goes away ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_bucket_that_goes_away_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with s3_server(tmp_path) as server:
        server.bucket("lake")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        loop = asyncio.get_running_loop()
        acked: dict[int, str] = {}
        errors: list[LakestreamError] = []
        slowest = 0.0

        async def produce(log: Log, partition: PartitionId, name: str) -> None:
            nonlocal slowest
            for number in range(10_000):
                begun = loop.time()
                try:
                    answer = await log.append(partition, plain(f"{name}-{number}"))
                    acked[answer.offset_start] = f"{name}-{number}"
                except LakestreamError as error:
                    errors.append(error)
                slowest = max(slowest, loop.time() - begun)
                await asyncio.sleep(0.02)

        async with impatient(tmp_path, "s3://lake", Profile.COST) as (log, topics):
            (partition,) = (await topics.create("t", Topic("topic", 1))).partitions()
            producing = [asyncio.create_task(produce(log, partition, str(n))) for n in range(4)]
            await asyncio.sleep(1.0)
            server.process.kill()
            before = len(acked)
            await asyncio.sleep(4.0)
            server.process.start()
            await server.process.wait_ready(lambda: listens(server.port))
            await asyncio.sleep(3.0)
            for task in producing:
                task.cancel()
            await asyncio.wait(producing)
            assert before > 10
            assert len(acked) > before + 10, "it recovered by itself"
            assert errors
            for error in errors:
                assert isinstance(error, Unavailable)
                assert is_one_line(error)
            assert slowest < 10.0, "two seconds for the store, what waited behind it, and a slow machine"
        async with impatient(tmp_path, "s3://lake", Profile.COST) as (log, _):
            found = dict(await read_all(log, partition))
            assert {offset: found[offset] for offset in acked} == acked
            assert sorted(found) == list(range(len(found)))


# ── a long chain ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_log_with_a_million_records_opens_at_once(tmp_path: Path) -> None:
    """5,000 claims of 200 records, of which the last fold has missed as many as it may. The benchmark holds 50 ms; this
    one only notices if it has become another order of magnitude."""
    metadata = await SqliteStore.open(tmp_path / "m.sqlite", SystemClock())
    try:
        (partition,) = (await Topics(metadata).create("t", Topic("topic", 1))).partitions()
        await make_chain(metadata, partition, claims=5_000, records=200, fold_at=4_001)
        took = []
        loop = asyncio.get_running_loop()
        for _ in range(5):
            store = open_store((tmp_path / "storage").as_uri(), SystemClock(), RandomIds())
            log = Log(
                metadata, store, None, LogSettings(), SystemClock(), RandomIds(), profile_of=lambda _: Profile.COST
            )
            begun = loop.time()
            bounds = await log.bounds(partition)
            took.append(loop.time() - begun)
            assert bounds == (0, 1_000_000, 1_000_000)
            log.kill()
            await store.close()
        assert statistics.median(took) < 0.150, took
    finally:
        await metadata.close()


async def make_chain(metadata: SqliteStore, partition: PartitionId, *, claims: int, records: int, fold_at: int) -> None:
    now_ms, view, fold = SystemClock().now_ms(), Claims(metadata), Fold()
    made = []
    for number in range(claims):
        start = number * records
        batch = BatchInfo(0, 1000, records, producer_id=number % 20, epoch=0, sequence_first=start, sequence_last=start)
        name = f"wal/{now_ms:015d}-w-{number:010d}.wal"
        claim = Claim(
            start, start + records, f"w.{number}.0.1", "w", Medium.OBJECT, name, now_ms, now_ms, now_ms, (batch,)
        )
        made.append((partition, claim))
        if number < fold_at:
            fold.apply(claim, now_ms)
    for first in range(0, claims, 500):
        await view.create(made[first : first + 500])
    await view.save_fold(partition, fold.encode(), None)
