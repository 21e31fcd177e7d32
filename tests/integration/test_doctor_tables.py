"""`lakestream doctor` on an installation on disk: what the pipeline made, and what became of it in other hands."""

import asyncio
import io
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from lakestream.batch import RecordBatch, control_batch
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.manifests import EntryWriter, ManifestFile, partition_summary, read_list, write_list
from lakestream.catalog.names import TableName
from lakestream.catalog.next_offsets import LAST_COMMIT, NEXT_OFFSETS, main_of
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_shape import layout_of
from lakestream.catalog.updates import (
    AddSnapshot,
    RemoveProperties,
    RemoveSnapshots,
    SetProperties,
    SetSnapshotRef,
    Update,
)
from lakestream.cli.main import main
from lakestream.data.table.parquet import ParquetSettings, write_parquet
from lakestream.metadata.reports import KEPT_MS, PipelineReport, Reports, TopicReport
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.moving import open_driver
from lakestream.node import Node, open_node
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.job import LocalJob, WorkSettings
from lakestream.pipeline.work import open_work
from lakestream.settings import LogSettings, Profile, Settings, WalSettings
from lakestream.testing.batches import make_batch
from lakestream.testing.servers import oxia_standalone, s3_server

TOPIC_ID = "0123456789abcdef0123456789abcdef"
TABLE = TableName(("default",), "orders")
QUICK = LogSettings(wal=WalSettings(flush_interval_ms=5))
HOUR_MS = 60 * 60 * 1000


class Said(NamedTuple):
    code: int
    lines: list[dict[str, str]]

    @property
    def bad(self) -> list[str]:
        return [line["said"] for line in self.lines if line["level"] == "bad"]

    def of(self, what: str) -> list[str]:
        return [line["said"] for line in self.lines if line["what"] == what]


class Installation:
    """Two partitions; 600 records of each in the table, in several files, and 100 in the log behind it."""

    def __init__(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        profile: Profile = Profile.LATENCY,
        *,
        metadata: str = "sqlite",
        storage: str = "",
    ) -> None:
        self.folder = folder
        self.settings = Settings(data_dir=folder, profile=profile, log=QUICK, metadata=metadata, storage=storage)
        self._capsys = capsys
        self._flags = ["--data-dir", str(folder), "--metadata", metadata, "--storage", self.settings.storage_url]
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        async with open_node(self.settings) as node:
            await node.topics.create("orders", Topic(TOPIC_ID, 2))
            await node.topics.create("quiet", Topic(TOPIC_ID[::-1], 1))
        for _ in range(3):
            await self._produce(200)
            await self._move()
        await self._produce(100)

    async def _produce(self, count: int) -> None:
        async with open_node(self.settings) as node:
            for number in range(2):
                for some in range(0, count, 50):
                    values = [b"%d of %d " % (at, number) * (1 + at % 7) for at in range(some, some + 50)]
                    keys = [None if at % 3 else b"key %d" % at for at in range(50)]
                    batch = RecordBatch.parse(make_batch(values, keys=keys))
                    await node.log.append(PartitionId(TOPIC_ID, number), batch)

    async def _move(self) -> None:
        folder = self.settings.segments_dir
        work = WorkSettings(storage_url=self.settings.storage_url, segments_dir=str(folder) if folder else None)
        job = LocalJob(open_work(work))
        try:
            async with open_driver(self.settings, PipelineOptions(once=True), job) as driver:
                await driver.run_once()
        finally:
            await job.close()

    def run(self, work: "Coroutine[Any, Any, None]") -> None:
        asyncio.run(work)

    def doctor(self, *flags: str) -> Said:
        self._capsys.readouterr()
        code = main(["doctor", *self._flags, "--json", *flags])
        out, err = self._capsys.readouterr()
        assert err == ""
        return Said(code, [json.loads(line) for line in out.splitlines()])

    def commit(self, *updates: Update) -> None:
        async def commit() -> None:
            async with open_node(self.settings) as node:
                await node.catalog.commit(TOPIC_ID, [], list(updates))

        self.run(commit())

    def metadata(self) -> Json:
        found: list[Json] = []

        async def load() -> None:
            async with open_node(self.settings) as node:
                found.append((await node.catalog.load_id(TOPIC_ID)).metadata)

        self.run(load())
        return found[0]

    def files(self, pattern: str) -> list[Path]:
        return sorted((self.folder / "storage" / "tables").rglob(pattern))


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Installation:
    return Installation(tmp_path / "data", capsys)


def only(said: Said, *parts: str) -> None:
    """One finding, with these words in it."""
    assert (said.code, len(said.bad)) == (1, 1), said.bad
    assert all(part in said.bad[0] for part in parts), said.bad[0]


# All is well


@pytest.mark.parametrize("profile", list(Profile))
def test_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str], profile: Profile) -> None:
    place = Installation(tmp_path / "data", capsys, profile)
    before = sorted(path for path in place.folder.rglob("*") if "metadata.sqlite" not in path.name)
    for flags in ((), ("--full",), ("--topic", "orders")):
        said = place.doctor(*flags)
        assert (said.code, said.bad) == (0, [])
        (table,) = said.of("orders table")
        assert "default.orders: 1,200 rows" in table
        assert "200 offsets behind the log" in table
        assert "heard of" in said.of("pipeline")[0]
        assert bool(said.of("quiet table")) == ("--topic" not in flags)
    assert sorted(path for path in place.folder.rglob("*") if "metadata.sqlite" not in path.name) == before


def test_on_oxia_and_a_bucket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with asyncio.Runner() as runner, ExitStack() as stack:
        servers = AsyncExitStack()
        stack.callback(lambda: runner.run(servers.aclose()))
        oxia = runner.run(servers.enter_async_context(oxia_standalone(tmp_path / "oxia", shards=2)))
        s3 = runner.run(servers.enter_async_context(s3_server(tmp_path)))
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
        monkeypatch.setenv("AWS_REGION", s3.region)
        storage = f"s3://{s3.bucket('lake')}/under/here"
        place = Installation(tmp_path / "data", capsys, Profile.COST, metadata=oxia.url, storage=storage)
        for flags in ((), ("--full",)):
            said = place.doctor(*flags)
            assert (said.code, said.bad) == (0, [])
        path = next(tmp_path.rglob("*.parquet"))
        path.unlink()
        only(place.doctor(), path.name, "is missing")


def test_lines_for_people(place: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data-dir", str(place.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "all is well"
    assert any(line.startswith("ok   orders table") for line in lines)
    place.files("*.parquet")[0].unlink()
    assert main(["doctor", "--data-dir", str(place.folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 thing to mend"
    assert sum(line.startswith("BAD  orders table") for line in lines) == 1


def test_a_topic_that_is_not_there(place: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data-dir", str(place.folder), "--topic", "ordres"]) == 1
    assert capsys.readouterr().err == "lakestream: there is no topic ordres\n"


def test_while_records_are_moved(place: Installation) -> None:
    """Nothing that only changes is taken for damage."""
    with working(place):
        for flags in ((), ("--full",), ("--full",)):
            said = place.doctor(*flags)
            assert (said.code, said.bad) == (0, [])


@contextmanager
def working(place: Installation) -> Iterator[None]:
    """Producers and the pipeline go on, until the block is left."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                asyncio.run(place._produce(100))
                asyncio.run(place._move())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert failures == []


def test_markers_and_aborted_records_are_no_rows(place: Installation) -> None:
    """Where table and log meet, the log still has what the table never had."""

    async def transact() -> None:
        async with open_node(place.settings) as node:
            log, partition = node.log, PartitionId(TOPIC_ID, 0)
            for number, commits in enumerate((False, True)):
                values = [b"%d" % number] * 5
                body = make_batch(values, producer_id=7, epoch=0, sequence=5 * number, transactional=True)
                await log.append(partition, RecordBatch.parse(body), number)
                await log.append(partition, RecordBatch.parse(control_batch(7, 0, commits, 1, 0)), number)

    place.run(transact())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakestream.data.log.rules.trim_point", lambda claims, floor, bound: floor)  # nothing leaves it
        place.run(place._move())
    said = place.doctor("--full")
    assert (said.code, said.bad) == (0, [])
    assert "1,405 rows" in said.of("orders table")[0]


# Damage


def test_a_file_that_was_cut_off(place: Installation) -> None:
    path = place.files("*.parquet")[0]
    path.write_bytes(path.read_bytes()[:-100])
    only(place.doctor(), path.name, "restore it from a backup")


def test_a_file_that_is_gone(place: Installation) -> None:
    path = place.files("*.parquet")[2]
    path.unlink()
    only(place.doctor(), path.name, "is missing", "restore it from a backup")


def test_a_manifest_that_is_gone(place: Installation) -> None:
    path = place.files("*-m0*.avro")[0]
    path.unlink()
    said = place.doctor()
    assert said.code == 1
    assert any(path.name in one and "is missing" in one for one in said.bad), said.bad


def test_next_offsets_that_nobody_knows(place: Installation) -> None:
    place.commit(RemoveProperties([NEXT_OFFSETS]))
    assert place.doctor().code == 0  # the snapshots still say it
    append_foreign(place, 10_000, 10_001)
    metadata = place.metadata()
    old = [one["snapshot-id"] for one in metadata["snapshots"] if one["snapshot-id"] != main_of(metadata)]
    place.commit(RemoveSnapshots(old), RemoveProperties([LAST_COMMIT]))
    said = place.doctor()
    assert any("lakestream.next-offsets was removed" in one and "set it again" in one for one in said.bad), said.bad


def test_next_offsets_that_were_set_back(place: Installation) -> None:
    append_foreign(place, 10_000, 10_001)
    metadata = place.metadata()
    old = [one["snapshot-id"] for one in metadata["snapshots"] if one["snapshot-id"] != main_of(metadata)]
    place.commit(RemoveSnapshots(old), SetProperties({NEXT_OFFSETS: '{"0": 500, "1": 600}'}))
    said = place.doctor()
    assert any("before offset 600 have left the log" in one and "up to 500 only" in one for one in said.bad), said.bad


def test_a_table_that_was_dropped(place: Installation) -> None:
    async def drop() -> None:
        async with open_node(place.settings) as node:
            await node.catalog.drop(TOPIC_ID)

    async def register() -> None:
        async with open_node(place.settings) as node:
            newest = place.files("*.metadata.json")[-1]
            await node.catalog.register(TABLE, node.catalog.locations.url_of(newest.relative_to(root).as_posix()))

    root = place.folder / "storage"
    place.run(drop())
    only(place.doctor(), "its table was dropped", "before offset 600", "register its newest metadata file")
    place.run(register())
    said = place.doctor("--full")
    assert (said.code, said.bad) == (0, [])


def test_rows_that_were_added_by_other_hands(place: Installation) -> None:
    append_foreign(place, 300, 400)
    only(place.doctor("--full"), "offset 300 is in", "foreign.parquet", "delete those rows")
    assert place.doctor().code == 1


def test_a_table_that_was_rolled_back(place: Installation) -> None:
    metadata = place.metadata()
    last = main_of(metadata)
    place.commit(SetSnapshotRef("main", "branch", metadata["snapshots"][0]["snapshot-id"]))
    only(place.doctor(), "rolled the table back", f"set_current_snapshot to {last}", "accept the loss")


def test_wal_bytes_that_are_gone(place: Installation) -> None:
    """What lies behind the table is looked at as before."""
    for path in place.files("../wal/*") + sorted((place.folder / "wal").glob("*.seg")):
        path.unlink()
    said = place.doctor()
    assert said.code == 1
    assert any("restore" in one for one in said.bad), said.bad


def append_foreign(place: Installation, start: int, end: int) -> None:
    """Somebody copies rows into the table, whatever the stream thinks of it: those of the first file, renumbered."""
    path = place.files("*.parquet")[0]
    rows = pq.read_table(io.BytesIO(path.read_bytes())).slice(0, end - start).to_pylist()
    for at, row in enumerate(rows):
        row["_stream"]["offset"], row["_stream"]["partition"] = start + at, 0

    async def add() -> None:
        from lakestream.data.table.arrow import SCHEMA

        async with open_node(place.settings) as node:
            catalog = node.catalog
            loaded = await catalog.load_id(TOPIC_ID)
            location = f"{loaded.metadata['location']}/data/foreign.parquet"
            batches = pa.Table.from_pylist(rows, SCHEMA).to_batches()
            (written,) = write_parquet(batches, lambda _: location, ParquetSettings())
            await catalog.objects.create(catalog.locations.key_of(location), [memoryview(written.body)])
            await _commit_foreign(catalog, loaded.metadata, written.description)

    place.run(add())


async def _commit_foreign(catalog: Catalog, metadata: Json, file: FileDescription) -> None:
    layout, number = layout_of(metadata), 4711
    parent = next(one for one in metadata["snapshots"] if one["snapshot-id"] == main_of(metadata))
    sequence = metadata["last-sequence-number"] + 1
    writer = EntryWriter(layout)
    body = writer.manifest([writer.added(file, number)])
    folder = f"{metadata['location']}/metadata"
    manifest = ManifestFile(
        manifest_path=f"{folder}/foreign-m0.avro",
        manifest_length=len(body),
        partition_spec_id=layout.spec["spec-id"],
        sequence_number=sequence,
        min_sequence_number=sequence,
        added_snapshot_id=number,
        added_files_count=1,
        added_rows_count=file.record_count,
        partitions=partition_summary(layout, [file]),
    )
    snapshot = {
        "snapshot-id": number,
        "parent-snapshot-id": parent["snapshot-id"],
        "sequence-number": sequence,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "manifest-list": f"{folder}/snap-foreign.avro",
        "summary": {"operation": "append"},
    }
    before = read_list(bytes(await catalog.objects.get(catalog.locations.key_of(parent["manifest-list"]))), "before")
    for location, content in (
        (manifest.manifest_path, body),
        (snapshot["manifest-list"], write_list([manifest, *before], snapshot, 2)),
    ):
        await catalog.objects.create(catalog.locations.key_of(location), [content])
    await catalog.commit(TOPIC_ID, [], [AddSnapshot(snapshot), SetSnapshotRef("main", "branch", number)])


# The log


def test_a_bit_that_flipped_in_the_log(place: Installation) -> None:
    """In a record that is not in the table yet: no footer is damaged, only what it is about."""
    segments = sorted((place.folder / "wal").glob("*.seg"), key=lambda path: path.stat().st_mtime)
    body = bytearray(segments[-1].read_bytes())
    body[body.index(b"7 of 1 ")] ^= 0x10
    assert place.doctor("--full").code == 0
    segments[-1].write_bytes(bytes(body))
    for flags in ([], ["--full"]):
        said = place.doctor(*flags)
        assert said.code == 1
        assert any("has checksum" in line and segments[-1].name in line for line in said.bad), said.bad
        assert any("delete the partition's records before offset 650" in line for line in said.bad), said.bad


# The pipeline


def report(place: Installation, age_ms: int, **topics: TopicReport) -> None:
    """Of the only pipeline that there is."""

    async def put() -> None:
        async with open_node(place.settings) as node:
            reports = Reports(node.stores.metadata)
            await reports.remove_old(_now(node) + 2 * KEPT_MS)
            await reports.put(PipelineReport(_now(node) - age_ms, topics))

    place.run(put())


def _now(node: Node) -> int:
    return node.catalog.clock.now_ms()


def test_a_topic_that_is_stuck(place: Installation) -> None:
    report(place, 1_000, orders=TopicReport(stuck="its table cannot be read: mend it"))
    only(place.doctor(), "topic orders is stuck: its table cannot be read: mend it")
    report(place, 1_000, orders=TopicReport(trouble="the disk is full", trouble_ms=1))
    only(place.doctor(), "topic orders is not moved for ", " s: the disk is full; it is tried again all the time")
    assert place.doctor("--topic", "quiet").code == 0


def test_a_pipeline_that_is_silent(place: Installation) -> None:
    report(place, HOUR_MS)
    only(place.doctor(), "last heard of 60 minutes ago", "200 offsets of the logs wait for it", "lakestream pipeline")
    place.run(place._move())
    report(place, HOUR_MS)
    said = place.doctor()
    assert (said.code, said.bad) == (0, [])
    assert said.of("pipeline") == ["last heard of 60 minutes ago; nothing waits for it"]


def test_no_java(place: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wrong where it may be why nothing is moved; else the pipeline may well run elsewhere."""
    monkeypatch.setenv("JAVA_HOME", str(place.folder / "nowhere"))
    said = place.doctor()
    assert (said.code, said.bad) == (0, [])
    assert "JAVA_HOME" in said.of("java")[0]
    report(place, HOUR_MS)
    said = place.doctor()
    assert any("JAVA_HOME" in one for one in said.bad)
