"""`lakestream doctor` on an installation on disk, as written by the pipeline and after damage or external changes."""

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
from tests.harness.log.unreadable_batches import UNREADABLE

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.manifest import EntryWriter, ManifestFile, partition_summary, read_list, write_list
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.updates import (
    AddSnapshot,
    RemoveProperties,
    RemoveSnapshots,
    SetProperties,
    SetSnapshotRef,
    Update,
)
from lakestream.catalog.topic_table.checks import layout_of
from lakestream.catalog.topic_table.offsets import LAST_COMMIT, NEXT_OFFSETS, main_of
from lakestream.cli.main import main
from lakestream.config.settings import LogSettings, Profile, Settings, WalSettings
from lakestream.data.table.write.parquet_writer import ParquetSettings, write_parquet
from lakestream.metadata.pipeline_status import KEPT_MS, PipelineReport, PipelineStatusStore, TopicReport
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.tasks import WorkSettings
from lakestream.pipeline.worker import open_work
from lakestream.records.batch import RecordBatch, control_batch
from lakestream.server.node import Node, open_node
from lakestream.server.pipeline import open_driver
from lakestream.testing.batches import make_batch
from lakestream.testing.servers import oxia_standalone, s3_server

TOPIC_ID = "0123456789abcdef0123456789abcdef"
TABLE = TableName(("default",), "orders")
QUICK = LogSettings(wal=WalSettings(flush_interval_ms=5))
HOUR_MS = 60 * 60 * 1000


class DoctorResult(NamedTuple):
    code: int
    lines: list[dict[str, str]]

    @property
    def bad(self) -> list[str]:
        return [line["said"] for line in self.lines if line["level"] == "bad"]

    def of(self, what: str) -> list[str]:
        return [line["said"] for line in self.lines if line["what"] == what]


class Installation:
    """Topic with two partitions: 600 records of each are in several files of the table, and the next 100 in the log."""

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
                for start in range(0, count, 50):
                    values = [b"%d of %d " % (at, number) * (1 + at % 7) for at in range(start, start + 50)]
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

    def doctor(self, *flags: str) -> DoctorResult:
        self._capsys.readouterr()
        code = main(["doctor", *self._flags, "--json", *flags])
        out, err = self._capsys.readouterr()
        assert err == ""
        return DoctorResult(code, [json.loads(line) for line in out.splitlines()])

    def table(self, *arguments: str) -> tuple[int, str]:
        """Runs `lakestream table …`; returns its exit code and output."""
        self._capsys.readouterr()
        code = main(["table", *arguments, *self._flags])
        return code, "".join(self._capsys.readouterr())

    def commit(self, *updates: Update) -> None:
        async def commit() -> None:
            async with open_node(self.settings) as node:
                await node.catalog.commit(TOPIC_ID, [], list(updates))

        self.run(commit())

    def metadata(self) -> Json:
        loaded: list[Json] = []

        async def load() -> None:
            async with open_node(self.settings) as node:
                loaded.append((await node.catalog.load_id(TOPIC_ID)).metadata)

        self.run(load())
        return loaded[0]

    def files(self, pattern: str) -> list[Path]:
        return sorted((self.folder / "storage" / "tables").rglob(pattern))


@pytest.fixture
def installation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Installation:
    return Installation(tmp_path / "data", capsys)


def assert_one_problem(result: DoctorResult, *parts: str) -> None:
    """Asserts that the result has one problem, whose text contains the parts."""
    assert (result.code, len(result.bad)) == (1, 1), result.bad
    assert all(part in result.bad[0] for part in parts), result.bad[0]


def old_snapshots(metadata: Json) -> list[int]:
    main = main_of(metadata)
    return [snapshot["snapshot-id"] for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] != main]


# Without problems


@pytest.mark.parametrize("profile", list(Profile))
def test_doctor_finds_no_problem_and_changes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], profile: Profile
) -> None:
    installation = Installation(tmp_path / "data", capsys, profile)
    before = sorted(path for path in installation.folder.rglob("*") if "metadata.sqlite" not in path.name)
    for flags in ((), ("--full",), ("--topic", "orders")):
        result = installation.doctor(*flags)
        assert (result.code, result.bad) == (0, [])
        (table,) = result.of("orders table")
        assert "default.orders: 1,200 rows" in table
        assert "lag 200 offsets" in table
        assert "last status" in result.of("pipeline")[0]
        assert bool(result.of("quiet table")) == ("--topic" not in flags)
    assert sorted(path for path in installation.folder.rglob("*") if "metadata.sqlite" not in path.name) == before


def test_doctor_checks_an_installation_on_oxia_and_a_bucket(
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
        installation = Installation(tmp_path / "data", capsys, Profile.COST, metadata=oxia.url, storage=storage)
        for flags in ((), ("--full",)):
            result = installation.doctor(*flags)
            assert (result.code, result.bad) == (0, [])
        path = next(tmp_path.rglob("*.parquet"))
        path.unlink()
        assert_one_problem(installation.doctor(), path.name, "is missing")


def test_output_without_json_has_one_line_per_finding(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--data-dir", str(installation.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "no problems found"
    assert any(line.startswith("ok   orders table") for line in lines)
    installation.files("*.parquet")[0].unlink()
    assert main(["doctor", "--data-dir", str(installation.folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 problem found"
    assert sum(line.startswith("BAD  orders table") for line in lines) == 1


def test_error_is_reported_when_the_topic_does_not_exist(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--data-dir", str(installation.folder), "--topic", "ordres"]) == 1
    assert capsys.readouterr().err == "lakestream: topic ordres does not exist\n"


def test_no_problem_is_reported_while_records_are_moved(installation: Installation) -> None:
    with producing_and_moving(installation):
        for flags in ((), ("--full",), ("--full",)):
            result = installation.doctor(*flags)
            assert (result.code, result.bad) == (0, [])


@contextmanager
def producing_and_moving(installation: Installation) -> Iterator[None]:
    """Runs producers and the pipeline until the end of the block."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                asyncio.run(installation._produce(100))
                asyncio.run(installation._move())
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


def test_markers_and_aborted_records_are_not_expected_as_rows(installation: Installation) -> None:
    """The log still has them, next to the end of the table."""

    async def transact() -> None:
        async with open_node(installation.settings) as node:
            log, partition = node.log, PartitionId(TOPIC_ID, 0)
            for number, commits in enumerate((False, True)):
                values = [b"%d" % number] * 5
                body = make_batch(values, producer_id=7, epoch=0, sequence=5 * number, transactional=True)
                await log.append(partition, RecordBatch.parse(body), number)
                await log.append(partition, RecordBatch.parse(control_batch(7, 0, commits, 1, 0)), number)

    installation.run(transact())
    with pytest.MonkeyPatch.context() as patch:
        # Keeps all claims in the log.
        patch.setattr("lakestream.data.log.rules.trim_point", lambda claims, floor, bound: floor)
        installation.run(installation._move())
    result = installation.doctor("--full")
    assert (result.code, result.bad) == (0, [])
    assert "1,405 rows" in result.of("orders table")[0]


def test_unreadable_batches_are_expected_as_rows(installation: Installation) -> None:
    """In the table, while the log still has the batches."""

    async def append() -> None:
        async with open_node(installation.settings) as node:
            for forge, _ in UNREADABLE.values():
                await node.log.append(PartitionId(TOPIC_ID, 0), RecordBatch.parse(forge()))

    installation.run(append())
    with pytest.MonkeyPatch.context() as patch:
        # Keeps all claims in the log.
        patch.setattr("lakestream.data.log.rules.trim_point", lambda claims, floor, bound: floor)
        installation.run(installation._move())
    for _ in range(2):
        result = installation.doctor("--full")
        assert (result.code, result.bad) == (0, [])
        assert f"{1_400 + len(UNREADABLE):,} rows" in result.of("orders table")[0]
        installation.run(installation._move())


# Damage


def test_truncated_data_file_is_reported(installation: Installation) -> None:
    path = installation.files("*.parquet")[0]
    path.write_bytes(path.read_bytes()[:-100])
    assert_one_problem(installation.doctor(), path.name, "restore it from a backup")


def test_missing_data_file_is_reported(installation: Installation) -> None:
    path = installation.files("*.parquet")[2]
    path.unlink()
    assert_one_problem(installation.doctor(), path.name, "is missing", "restore it from a backup")


def test_missing_manifest_is_reported(installation: Installation) -> None:
    path = installation.files("*-m0*.avro")[0]
    path.unlink()
    result = installation.doctor()
    assert result.code == 1
    assert any(path.name in text and "is missing" in text for text in result.bad), result.bad


def test_missing_next_offsets_are_reported_when_no_snapshot_has_them(installation: Installation) -> None:
    installation.commit(RemoveProperties([NEXT_OFFSETS]))
    assert installation.doctor().code == 0  # the snapshots still have them
    append_external(installation, 10_000, 10_001)
    metadata = installation.metadata()
    old = old_snapshots(metadata)
    installation.commit(RemoveSnapshots(old), RemoveProperties([LAST_COMMIT]))
    result = installation.doctor()
    assert any("lakestream.next-offsets was removed" in text and "set it again" in text for text in result.bad), (
        result.bad
    )


def test_removed_next_offsets_are_set_by_the_command(installation: Installation) -> None:
    append_external(installation, 100, 101)
    metadata = installation.metadata()
    old = old_snapshots(metadata)
    installation.commit(RemoveSnapshots(old), RemoveProperties([LAST_COMMIT, NEXT_OFFSETS]))
    for offsets, error in (
        (["0=600"], "partition 1: offset 0 is below 600, the first record that is still in the log"),
        (["0=599", "1=600"], "partition 0: offset 599 is below 600"),
        (["0=701", "1=600"], "partition 0: offset 701 is above 700, the end of the log"),
        (["0=600", "1=600", "2=0"], "topic orders has no partition 2"),
        (["0=600", "0=600"], "partition 0 is given twice"),
        (["600"], "'600' is not PARTITION=OFFSET"),
    ):
        code, text = installation.table("set-next-offsets", "orders", *offsets)
        assert (code, error in text) == (1, True), text
    code, text = installation.table("set-next-offsets", "orders", "0=600", "1=600")
    assert (code, text) == (0, 'topic orders: its table has the records before {"0":600,"1":600}\n')
    installation.run(installation._move())
    assert installation.metadata()["properties"][NEXT_OFFSETS] == '{"0":700,"1":700}'
    assert not any("lakestream.next-offsets" in finding for finding in installation.doctor().bad)
    append_external(installation, 5_000, 5_001, "later")
    code, text = installation.table("set-next-offsets", "orders", "0=700")
    assert (code, "not above all rows of the table, which go up to 5000" in text) == (1, True), text


def test_decreased_next_offsets_are_reported(installation: Installation) -> None:
    append_external(installation, 10_000, 10_001)
    metadata = installation.metadata()
    old = old_snapshots(metadata)
    installation.commit(RemoveSnapshots(old), SetProperties({NEXT_OFFSETS: '{"0": 500, "1": 600}'}))
    result = installation.doctor()
    assert any(
        "before offset 600 were moved from the log" in text and "next offset is 500" in text for text in result.bad
    ), result.bad


def test_dropped_table_is_reported_until_it_is_registered(installation: Installation) -> None:
    async def drop() -> None:
        async with open_node(installation.settings) as node:
            await node.catalog.drop(TOPIC_ID)

    installation.run(drop())
    assert_one_problem(
        installation.doctor(), "its table was dropped", "before offset 600", "register its newest metadata file"
    )
    newest = installation.files("*.metadata.json")[-1].as_uri()
    assert installation.table("register", "default.orders", newest) == (0, "table default.orders is registered\n")
    result = installation.doctor("--full")
    assert (result.code, result.bad) == (0, [])


def test_rows_added_by_another_engine_are_reported(installation: Installation) -> None:
    append_external(installation, 300, 400)
    assert_one_problem(installation.doctor("--full"), "offset 300 is in", "foreign.parquet", "delete those rows")
    assert installation.doctor().code == 1


def test_rollback_is_reported_until_it_is_accepted(installation: Installation) -> None:
    metadata = installation.metadata()
    last = main_of(metadata)
    installation.commit(SetSnapshotRef("main", "branch", metadata["snapshots"][0]["snapshot-id"]))
    assert_one_problem(
        installation.doctor(), "the table was rolled back", f"set_current_snapshot to {last}", "accept the loss"
    )
    first = metadata["snapshots"][0]["snapshot-id"]
    code, text = installation.table("accept-rollback", "orders", "--snapshot", str(last))
    assert (code, f"the table is at snapshot {first}, not {last}" in text) == (1, True), text
    code, text = installation.table("accept-rollback", "orders", "--snapshot", str(first))
    assert (code, text) == (0, f"topic orders continues from snapshot {first} of its table\n")
    assert installation.doctor().bad == []
    installation.run(installation._move())
    result = installation.doctor()
    assert (result.code, result.bad) == (0, [])
    assert "600 rows" in result.of("orders table")[0], "200 and 100 of each partition"
    code, text = installation.table("accept-rollback", "orders")
    assert (code, "there is nothing to accept" in text) == (1, True), text


def test_missing_wal_files_are_reported(installation: Installation) -> None:
    """Records that are not in the table yet are checked in the log."""
    for path in installation.files("../wal/*") + sorted((installation.folder / "wal").glob("*.seg")):
        path.unlink()
    result = installation.doctor()
    assert result.code == 1
    assert any("restore" in text for text in result.bad), result.bad


def append_external(installation: Installation, start: int, end: int, name: str = "foreign") -> None:
    """Appends rows of the first file with other offsets to the table, without the checks of the catalog."""
    path = installation.files("*.parquet")[0]
    rows = pq.read_table(io.BytesIO(path.read_bytes())).slice(0, end - start).to_pylist()
    for at, row in enumerate(rows):
        row["_stream"]["offset"], row["_stream"]["partition"] = start + at, 0

    async def add() -> None:
        from lakestream.data.table.arrow.types import SCHEMA

        async with open_node(installation.settings) as node:
            catalog = node.catalog
            loaded = await catalog.load_id(TOPIC_ID)
            location = f"{loaded.metadata['location']}/data/{name}.parquet"
            batches = pa.Table.from_pylist(rows, SCHEMA).to_batches()
            (written,) = write_parquet(batches, lambda _: location, ParquetSettings())
            await catalog.objects.create(catalog.locations.key_of(location), [memoryview(written.body)])
            await _commit_external(catalog, loaded.metadata, written.description, name)

    installation.run(add())


async def _commit_external(catalog: Catalog, metadata: Json, file: FileDescription, name: str) -> None:
    layout, number = layout_of(metadata), 4711 + len(name)
    parent = next(snapshot for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] == main_of(metadata))
    sequence = metadata["last-sequence-number"] + 1
    writer = EntryWriter(layout)
    body = writer.manifest([writer.added(file, number)])
    folder = f"{metadata['location']}/metadata"
    manifest = ManifestFile(
        manifest_path=f"{folder}/{name}-m0.avro",
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
        "manifest-list": f"{folder}/snap-{name}.avro",
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


def test_flipped_bit_in_the_log_is_reported(installation: Installation) -> None:
    """In a record that is not in the table yet: the footers of the segment are valid, the batch is damaged."""
    segments = sorted((installation.folder / "wal").glob("*.seg"), key=lambda path: path.stat().st_mtime)
    body = bytearray(segments[-1].read_bytes())
    body[body.index(b"7 of 1 ")] ^= 0x10
    assert installation.doctor("--full").code == 0
    segments[-1].write_bytes(bytes(body))
    for flags in ([], ["--full"]):
        result = installation.doctor(*flags)
        assert result.code == 1
        assert any("has checksum" in line and segments[-1].name in line for line in result.bad), result.bad
        assert any("delete the partition's records before offset 650" in line for line in result.bad), result.bad


# The pipeline


def report(installation: Installation, age_ms: int, **topics: TopicReport) -> None:
    """Replaces the status of all pipelines by one."""

    async def put() -> None:
        async with open_node(installation.settings) as node:
            reports = PipelineStatusStore(node.stores.metadata)
            await reports.remove_old(_now(node) + 2 * KEPT_MS)
            await reports.put(PipelineReport(_now(node) - age_ms, topics))

    installation.run(put())


def _now(node: Node) -> int:
    return node.catalog.clock.now_ms()


def test_stalled_topic_is_reported(installation: Installation) -> None:
    report(installation, 1_000, orders=TopicReport(stalled="its table cannot be read: restore it"))
    assert_one_problem(installation.doctor(), "topic orders is stalled: its table cannot be read: restore it")
    report(installation, 1_000, orders=TopicReport(error="the disk is full", error_since_ms=1))
    assert_one_problem(
        installation.doctor(), "topic orders cannot be moved for ", " s: the disk is full; the pipeline retries"
    )
    assert installation.doctor("--topic", "quiet").code == 0


def test_old_pipeline_status_is_reported_when_records_wait(installation: Installation) -> None:
    report(installation, HOUR_MS)
    assert_one_problem(
        installation.doctor(),
        "last status 60 minutes ago",
        "200 offsets of the logs wait for it",
        "lakestream pipeline",
    )
    installation.run(installation._move())
    report(installation, HOUR_MS)
    result = installation.doctor()
    assert (result.code, result.bad) == (0, [])
    assert result.of("pipeline") == ["last status 60 minutes ago; no records wait for it"]


def test_missing_java_is_a_problem_only_when_the_pipeline_has_an_old_status(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the pipeline may run on another machine."""
    monkeypatch.setenv("JAVA_HOME", str(installation.folder / "nowhere"))
    result = installation.doctor()
    assert (result.code, result.bad) == (0, [])
    assert "JAVA_HOME" in result.of("java")[0]
    report(installation, HOUR_MS)
    result = installation.doctor()
    assert any("JAVA_HOME" in text for text in result.bad)
