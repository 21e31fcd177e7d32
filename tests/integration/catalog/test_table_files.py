"""Commits over HTTP that name files of other tables, and tables in folders of other programs.

With a running broker, pipeline and maintenance they are rejected, and no such file is deleted.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from tests.harness.catalog.iceberg_tables import SCHEMA
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.moved_records import at_offsets, sample_records
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import uri_of

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.operations.expire_snapshots import ExpirySettings
from lakestream.catalog.table_metadata.updates import Update
from lakestream.clock import RandomIds
from lakestream.config.settings import Settings
from lakestream.metadata.claims import Claims
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings, MaintenanceStats
from lakestream.pipeline.maintenance.worker import FileRewriter
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.tasks import WorkSettings
from lakestream.pipeline.worker import open_work
from lakestream.server.node import Node, open_node
from lakestream.server.pipeline import open_driver
from lakestream.testing.brokers import BrokerProcesses

T = TypeVar("T")

GRACE_MS = 300
WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


class Lake:
    """A broker in its own process; pipeline and maintenance in this one, on the same stores."""

    def __init__(self, cluster: BrokerProcesses) -> None:
        self._uri = uri_of(cluster)
        self.client = Confluent(cluster.bootstrap)
        self.root = Path(cluster.storage.removeprefix("file://"))
        folder = cluster[0]._log.parent / "data"
        self._settings = Settings(data_dir=folder, metadata=cluster.metadata, storage=cluster.storage)

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._uri}/v1/{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=WAIT_S) as response:
                text = response.read()
                return response.status, json.loads(text) if text else None
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def table(self, topic: str) -> Any:
        status, body = self("GET", f"namespaces/default/tables/{topic}")
        assert status == 200, body
        return body["metadata"]

    def commit(self, topic: str, *updates: dict[str, Any]) -> tuple[int, Any]:
        return self("POST", f"namespaces/default/tables/{topic}", {"requirements": [], "updates": updates})

    def files_of(self, topic: str) -> set[Path]:
        return set(Path(self.table(topic)["location"].removeprefix("file://")).rglob("*.*"))

    def move(self) -> int:
        async def move() -> int:
            segments = self._settings.segments_dir
            work = WorkSettings(
                storage_url=self._settings.storage_url, segments_dir=str(segments) if segments else None
            )
            job = LocalJob(open_work(work))
            try:
                async with open_driver(self._settings, PipelineOptions(once=True), job) as driver:
                    return (await driver.run_once()).records
            finally:
                await job.close()

        return asyncio.run(move())

    def maintain(self) -> MaintenanceStats:
        """Runs maintenance with a short grace period."""
        settings = MaintenanceSettings(visit_ms=0, idle_ms=0, expiry=ExpirySettings(grace_ms=GRACE_MS))

        async def maintain(node: Node) -> MaintenanceStats:
            metadata = node.stores.metadata
            job = LocalRewrites(FileRewriter(node.stores.objects, node.catalog.locations, RandomIds()))
            claims, now_ms = Claims(metadata), metadata.now_ms
            maintenance = Maintenance(node.catalog, node.topics, claims, job, now_ms, settings)
            return await maintenance.maintain()

        time.sleep(2 * GRACE_MS / 1000)
        return asyncio.run(self._with_node(maintain))

    async def _with_node(self, work: Callable[[Node], Awaitable[T]]) -> T:
        async with open_node(self._settings) as node:
            return await work(node)

    def commit_unchecked(self, topic: str, updates: list[dict[str, Any]], patch: pytest.MonkeyPatch) -> None:
        """Commits without the check, as older versions did."""

        async def unchecked(*_: object, **__: object) -> None: ...

        async def commit(node: Node) -> None:
            await node.catalog.commit(TableName(("default",), topic), [], msgspec.convert(updates, list[Update]))

        with patch.context() as patched:
            patched.setattr(Catalog, "_check_files", unchecked, raising=False)
            asyncio.run(self._with_node(commit))


@pytest.fixture(scope="module")
def lake(cluster: BrokerProcesses) -> Lake:
    return Lake(cluster)


def test_commit_to_one_table_deletes_no_file_of_another(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for topic in ("victim", "attack"):
        lake.client.create_topic(topic)
    lake.client.produce("victim", sample_records(0, 1_000))
    lake.client.produce("attack", sample_records(0, 1))
    assert lake.move() == 1_001
    before = lake.files_of("victim")
    (data,) = (path for path in before if path.suffix == ".parquet")
    newest = max(path for path in before if path.name.endswith(".metadata.json"))
    number = lake.table("attack")["current-snapshot-id"]
    attack: list[dict[str, Any]] = [
        {
            "action": "set-statistics",
            "statistics": {
                "snapshot-id": number,
                "statistics-path": f"file://{data}",
                "file-size-in-bytes": 1,
                "file-footer-size-in-bytes": 1,
                "blob-metadata": [],
            },
        },
        {
            "action": "set-partition-statistics",
            "partition-statistics": {
                "snapshot-id": number,
                "statistics-path": f"file://{newest}",
                "file-size-in-bytes": 1,
            },
        },
    ]
    soon = {"action": "set-properties", "updates": {"history.expire.max-snapshot-age-ms": "1"}}
    responses = [lake.commit("attack", update, soon) for update in attack]
    lake.commit_unchecked("attack", [*attack, soon], monkeypatch)
    lake.client.produce("attack", sample_records(1, 2))
    assert lake.move() == 1
    stats = lake.maintain()
    assert stats.snapshots_expired >= 1
    assert number not in {snapshot["snapshot-id"] for snapshot in lake.table("attack")["snapshots"]}
    assert before <= lake.files_of("victim")
    assert lake.client.read("victim", "earliest", 1_000) == at_offsets(sample_records(0, 1_000))
    for status, response in responses:
        assert (status, response["error"]["type"]) == (400, "BadRequestException")
        assert "/victim-" in response["error"]["message"]
        assert lake.table("attack")["location"] in response["error"]["message"]


def test_create_is_rejected_in_folders_of_other_programs(lake: Lake) -> None:
    report = lake.root / "other" / "report.csv"
    report.parent.mkdir()
    report.write_text("report")
    report_in_tables = lake.root / "tables" / "reports" / "report.csv"
    report_in_tables.parent.mkdir()
    report_in_tables.write_text("report")
    for folder, reason in (
        ("other", "choose a folder below that"),
        ("WAL", "uses for other data"),
        ("tables", "choose a folder below that"),
        ("tables/reports", "not empty"),
    ):
        for staged in (False, True):
            body = {"name": "taken", "schema": SCHEMA, "location": f"{lake.root.as_uri()}/{folder}"}
            status, response = lake("POST", "namespaces/default/tables", body | {"stage-create": staged})
            assert (status, response["error"]["type"]) == (400, "BadRequestException")
            assert reason in response["error"]["message"]
    body = {"name": "mine", "schema": SCHEMA, "location": f"{lake.root.as_uri()}/tables/mine"}
    assert lake("POST", "namespaces/default/tables", body)[0] == 200
    assert lake("DELETE", "namespaces/default/tables/mine?purgeRequested=true")[0] == 204
    deadline_s = time.monotonic() + WAIT_S
    while list((lake.root / "tables" / "mine").rglob("*.*")):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert report.exists()
    assert report_in_tables.exists()
