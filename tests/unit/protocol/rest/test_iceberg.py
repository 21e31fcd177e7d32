"""Tests of the Iceberg REST catalog over a socket: the endpoints of the specification, and invalid requests."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from tests.harness.catalog.iceberg_tables import LOCATION, SCHEMA, append, catalog_over, snapshot

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import CommitStateUnknown
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.manifests.manifest import ManifestFile, write_list
from lakestream.catalog.table_metadata.builder import NewTable
from lakestream.catalog.topic_table.columns import iceberg_schema
from lakestream.clock import SystemClock
from lakestream.coordination.freshness import FreshReadResult
from lakestream.data.table.commit_check import CommitGuard
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.topics import Topic
from lakestream.protocol.rest import request_body
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.iceberg import tables
from lakestream.protocol.rest.iceberg.app import IcebergRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings

CONFIG = {"s3.endpoint": "http://127.0.0.1:1"}


async def no_metrics() -> bytes:
    return b""


class HttpResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        error = self.json["error"]
        assert error["code"] == self.status
        assert error["message"]
        return self.status, error["type"]


class Client:
    def __init__(self, port: int, catalog: Catalog) -> None:
        self._port = port
        self.catalog = catalog

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> HttpResponse:
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} /v1/{path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [] if headers and "Transfer-Encoding" in headers else [f"Content-Length: {len(sent)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
        async with asyncio.timeout(20):
            head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *rest = head.decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in rest)
        return HttpResponse(int(first.split()[1]), {name.lower(): value for name, value in fields.items()}, content)

    async def store(self, location: str, body: bytes) -> None:
        """Stores a file, as an engine does before a commit."""
        await self.catalog.objects.create(self.catalog.locations.key_of(location), [body])


async def passing_check() -> None: ...


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Client]:
    catalog = catalog_over(MemoryServer(SystemClock()).client())
    await catalog.start()
    server = HttpServer(HttpSettings())
    _, port = server.bind("127.0.0.1", 0)

    async def make_fresh(name: TableName, wait_ms: int) -> FreshReadResult:
        return FreshReadResult(wait_ms > 5_000, f"waited {wait_ms} ms for {name}\nü")

    guard = CommitGuard(catalog.objects, catalog.locations)
    iceberg = IcebergRest(catalog, guard, CONFIG, lambda: None, make_fresh)
    await server.serve(application(Health({"store": passing_check}), no_metrics, iceberg))
    try:
        yield Client(port, catalog)
    finally:
        await guard.close()
        async with asyncio.timeout(10):
            await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with serving() as client:
        yield client


@pytest.fixture
async def table(client: Client) -> str:
    body = {"name": "t", "schema": SCHEMA, "location": LOCATION}
    assert (await client("POST", "namespaces/default/tables", body)).status == 200
    return "namespaces/default/tables/t"


async def test_config_returns_defaults_and_endpoints(client: Client) -> None:
    response = await client("GET", "config?warehouse=x")
    assert response.json["defaults"] == CONFIG
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in response.json["endpoints"]
    assert not any("views" in one or "transactions" in one for one in response.json["endpoints"])


async def test_namespace_endpoints_follow_the_specification(client: Client) -> None:
    created = await client("POST", "namespaces", {"namespace": ["a"], "properties": {"x": "y"}})
    assert created.json == {"namespace": ["a"], "properties": {"x": "y"}}
    await client("POST", "namespaces", {"namespace": ["a", "b/c"]})
    assert (await client("POST", "namespaces", {"namespace": ["a"]})).error == (409, "AlreadyExistsException")
    assert (await client("GET", "namespaces")).json == {"namespaces": [["a"], ["default"]]}
    assert (await client("GET", "namespaces?parent=a")).json == {"namespaces": [["a", "b/c"]]}
    assert (await client("GET", "namespaces?parent=a%251Fb%252Fc")).json == {"namespaces": []}  # encoded twice
    assert (await client("GET", "namespaces?parent=zz")).error == (404, "NoSuchNamespaceException")
    assert (await client("GET", "namespaces/a%1Fb%2Fc")).json == {"namespace": ["a", "b/c"], "properties": {}}
    assert [(await client("HEAD", f"namespaces/{name}")).status for name in ("a", "zz")] == [204, 404]
    page = (await client("GET", "namespaces?pageToken=&pageSize=1")).json
    assert page == {"namespaces": [["a"]], "next-page-token": "1"}
    assert (await client("GET", "namespaces?pageToken=1&pageSize=1")).json["next-page-token"] is None
    altered = await client("POST", "namespaces/a/properties", {"updates": {"n": "1"}, "removals": ["x", "none"]})
    assert altered.json == {"updated": ["n"], "removed": ["x"], "missing": ["none"]}
    both = await client("POST", "namespaces/a/properties", {"updates": {"n": "1"}, "removals": ["n"]})
    assert both.error == (422, "UnprocessableEntityException")
    assert (await client("DELETE", "namespaces/a")).error == (409, "NamespaceNotEmptyException")
    assert (await client("DELETE", "namespaces/a%1Fb%2Fc")).status == 204
    assert (await client("DELETE", "namespaces/a")).status == 204
    assert (await client("DELETE", "namespaces/a")).error == (404, "NoSuchNamespaceException")


@pytest.mark.parametrize("staged", [False, True])
async def test_create_is_rejected_when_properties_are_reserved(client: Client, staged: bool) -> None:
    """Otherwise a client could create a table that passes for the table of a topic."""
    body = {"name": "t", "schema": SCHEMA, "stage-create": staged, "properties": {"lakestream.topic-id": "x"}}
    response = await client("POST", "namespaces/default/tables", body)
    assert response.error == (400, "BadRequestException")
    assert "property lakestream.topic-id cannot be set" in response.json["error"]["message"]
    staging = {**body, "stage-create": True, "properties": {}}
    metadata = (await client("POST", "namespaces/default/tables", staging)).json["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "add-schema", "schema": metadata["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": metadata["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
    ]
    create = {"requirements": [{"type": "assert-create"}], "updates": updates}
    forged = {"action": "set-properties", "updates": {"lakestream.next-offsets": "{}"}}
    response = await client("POST", "namespaces/default/tables/t", {**create, "updates": [*updates, forged]})
    assert response.error == (400, "BadRequestException")
    assert (await client("POST", "namespaces/default/tables/t", create)).status == 200


async def test_commit_is_rejected_when_properties_or_summary_keys_are_reserved(client: Client) -> None:
    created = await client.catalog.create(
        TableName(("default",), "orders"),
        NewTable(iceberg_schema(), properties={"lakestream.next-offsets": '{"0":5}', "x": "y"}),
        topic_id="0" * 32,
    )

    async def commit(**update: Any) -> HttpResponse:
        body = {"requirements": [], "updates": [update]}
        return await client("POST", "namespaces/default/tables/orders", body)

    for forged in (
        {"action": "set-properties", "updates": {"lakestream.next-offsets": '{"0":6}'}},
        {"action": "remove-properties", "removals": ["lakestream.next-offsets"]},
        {"action": "set-properties", "updates": {"lakestream.accept-rollback": "1"}},
    ):
        response = await commit(**forged)
        assert response.error == (400, "BadRequestException")
        assert "lakestream table accept-rollback" in response.json["error"]["message"]
    forged_snapshot: dict[str, Any] = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": int(time.time() * 1000),
        "manifest-list": created.metadata["location"] + "/metadata/x",
        "summary": {"operation": "append", "lakestream.next-offsets": '{"0":6}'},
    }
    await client.store(forged_snapshot["manifest-list"], write_list([], forged_snapshot, 2))
    response = await commit(action="add-snapshot", snapshot=forged_snapshot)
    assert response.error == (400, "BadRequestException")
    assert "summary of snapshot 1 has lakestream.next-offsets" in response.json["error"]["message"]
    same = {"x": "z", "lakestream.next-offsets": '{"0":5}'}
    assert (await commit(action="set-properties", updates=same)).status == 200


async def test_table_endpoints_follow_the_specification(client: Client, table: str) -> None:
    loaded = await client("GET", table)
    assert set(loaded.json) == {"metadata-location", "metadata", "config"}
    assert loaded.json["config"] == {}
    cached = await client("GET", table, headers={"If-None-Match": loaded.headers["etag"]})
    assert (cached.status, cached.body) == (304, b"")
    assert (await client("HEAD", table)).status == 204
    duplicate = await client("POST", "namespaces/default/tables", {"name": "t", "schema": SCHEMA})
    assert duplicate.error == (409, "AlreadyExistsException")
    first = snapshot(2**62, 1)
    await client.store(first["manifest-list"], write_list([], first, 2))
    commit = {
        "identifier": {"namespace": ["default"], "name": "t"},
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
        "updates": [
            {"action": "add-snapshot", "snapshot": first},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 2**62},
        ],
    }
    committed = await client("POST", table, commit)
    assert (committed.status, set(committed.json)) == (200, {"metadata-location", "metadata", "config"})
    assert committed.json["metadata"]["current-snapshot-id"] == 2**62
    assert (await client("POST", table, commit)).error == (409, "CommitFailedException")
    assert (await client("GET", table, headers={"If-None-Match": loaded.headers["etag"]})).status == 200
    assert (await client("POST", f"{table}/metrics", {"report-type": "scan-report"})).status == 204
    renamed = {
        "source": {"namespace": ["default"], "name": "t"},
        "destination": {"namespace": ["default"], "name": "new"},
    }
    assert (await client("POST", "tables/rename", renamed)).status == 204
    assert (await client("POST", "tables/rename", renamed)).error == (404, "NoSuchTableException")
    assert (await client("HEAD", table)).status == 404
    listed = (await client("GET", "namespaces/default/tables")).json
    assert listed == {"identifiers": [{"namespace": ["default"], "name": "new"}]}
    location = committed.json["metadata-location"]
    assert (await client("DELETE", "namespaces/default/tables/new")).status == 204
    registered = await client("POST", "namespaces/default/register", {"name": "back", "metadata-location": location})
    assert registered.json["metadata"]["current-snapshot-id"] == 2**62
    assert (await client("DELETE", "namespaces/default/tables/back?purgeRequested=True")).status == 204
    assert (await client("GET", "namespaces/default/tables/back")).error == (404, "NoSuchTableException")


async def test_register_is_rejected_when_table_offsets_include_records_of_the_log(client: Client) -> None:
    topic_id = "0" * 32
    await client.catalog.topics.create("orders", Topic(topic_id, 1))
    properties = {"lakestream.topic-id": topic_id, "lakestream.next-offsets": '{"0":5}'}
    table = await client.catalog.create(
        TableName(("default",), "orders"), NewTable(iceberg_schema(), properties=properties), topic_id=topic_id
    )
    await client.catalog.drop(topic_id)
    body = {"name": "orders", "metadata-location": table.metadata_location}
    response = await client("POST", "namespaces/default/register", body)
    assert response.error == (400, "BadRequestException")
    assert "only those before 0 have left the log" in response.json["error"]["message"]


async def test_commit_is_rejected_when_a_manifest_is_outside_the_table(client: Client, table: str) -> None:
    """The catalog reads the manifests that a client's commit adds."""
    first, outside = snapshot(7, 1), "s3://lake/data/tables/other/metadata/m0.avro"
    manifest = ManifestFile(
        manifest_path=outside,
        manifest_length=1,
        partition_spec_id=0,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=7,
        added_files_count=1,
        added_rows_count=1,
    )
    await client.store(first["manifest-list"], write_list([manifest], first, 2))
    response = await client(
        "POST", table, {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": first}]}
    )
    assert response.error == (400, "BadRequestException")
    assert outside in response.json["error"]["message"]
    assert LOCATION in response.json["error"]["message"]


async def test_staged_table_is_not_visible(client: Client) -> None:
    body = {"name": "s", "schema": SCHEMA, "stage-create": True, "properties": {"format-version": "1"}}
    staged = (await client("POST", "namespaces/default/tables", body)).json
    assert (staged["metadata"]["format-version"], staged.get("metadata-location")) == (1, None)
    assert (await client("HEAD", "namespaces/default/tables/s")).status == 404


async def test_load_returns_only_referenced_snapshots_when_refs_are_requested(client: Client, table: str) -> None:
    name = TableName(("default",), "t")
    await client.catalog.commit(name, [], append(1, 1))
    await client.catalog.commit(name, [], append(2, 2, 1))
    full, refs_only = (await client("GET", table)), await client("GET", f"{table}?snapshots=refs")
    assert [len(one.json["metadata"]["snapshots"]) for one in (full, refs_only)] == [2, 1]
    assert full.headers["etag"] != refs_only.headers["etag"]
    assert len(refs_only.json["metadata"]["snapshot-log"]) == 2
    assert (await client("GET", f"{table}?snapshots=some")).error == (400, "BadRequestException")


async def test_tables_are_listed_in_pages_when_a_page_size_is_set(client: Client) -> None:
    for number in range(5):
        await client("POST", "namespaces/default/tables", {"name": f"t{number}", "schema": SCHEMA})
    names: list[str] = []
    token = ""
    while token is not None:
        page = (await client("GET", f"namespaces/default/tables?pageSize=2&pageToken={token}")).json
        names += [one["name"] for one in page["identifiers"]]
        token = page["next-page-token"]
    assert names == [f"t{number}" for number in range(5)]
    assert len((await client("GET", "namespaces/default/tables?pageToken=")).json["identifiers"]) == 5
    for invalid in ("pageSize=0", "pageSize=x", "pageSize=-1"):
        assert (await client("GET", f"namespaces/default/tables?{invalid}")).error == (400, "BadRequestException")


@pytest.mark.parametrize("name", ["a.b", "a/b", "ä ö", "a+b", "100%", "..", "a?b#c", "名前", "a\\b", '"', "a%2Fb"])
async def test_table_is_served_when_its_name_has_special_characters(client: Client, name: str) -> None:
    await client("POST", "namespaces", {"namespace": [name]})
    path = f"namespaces/{quote(name, safe='')}"
    assert (await client("GET", path)).json["namespace"] == [name]
    created = await client("POST", f"{path}/tables", {"name": name, "schema": SCHEMA})
    assert created.status == 200
    assert (await client("GET", f"{path}/tables/{quote(name, safe='')}")).json == created.json
    assert (await client("GET", f"{path}/tables")).json["identifiers"] == [{"namespace": [name], "name": name}]


async def test_unsupported_paths_and_methods_are_rejected(client: Client) -> None:
    for method, path in [
        ("GET", "namespaces/default/views"),
        ("POST", "namespaces/default/views"),
        ("HEAD", "namespaces/default/views/v"),
        ("POST", "views/rename"),
        ("POST", "namespaces/default/tables/t/plan"),
        ("GET", "namespaces/default/tables/t/credentials"),
    ]:
        response = await client(method, path)
        assert response.status == 406
        assert method == "HEAD" or response.error == (406, "UnsupportedOperationException")
    assert (await client("GET", "nonsense")).error == (404, "NotFoundException")
    assert (await client("PUT", "namespaces")).error == (405, "BadRequestException")


async def test_transaction_is_unsupported_when_it_has_several_tables(client: Client, table: str) -> None:
    change = {
        "identifier": {"namespace": ["default"], "name": "t"},
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
    }
    assert (await client("POST", "transactions/commit", {"table-changes": [change]})).status == 204
    assert (await client("GET", table)).json["metadata"]["properties"] == {"a": "b"}
    several = await client("POST", "transactions/commit", {"table-changes": [change, change]})
    assert several.error == (406, "UnsupportedOperationException")


NESTED = b'{"name":"x","schema":' + b'{"x":' * 500 + b"1" + b"}" * 501
"""msgspec decodes it, and functions in Python that call themselves for each level raise RecursionError."""
DEEP = b'{"name":"x","schema":' + b'{"type":' * 50_000


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("namespaces", b"", "truncated"),
        ("namespaces", b"{", "truncated"),
        ("namespaces", b"\xff\xfe", "malformed"),
        ("namespaces", b'{"namespace": [5]}', "$.namespace[0]"),
        ("namespaces", {"namespace": []}, "use 1 to 8"),
        ("namespaces", {"namespace": ["a"] * 9}, "use 1 to 8"),
        ("namespaces", {"namespace": ["a\x1fb"]}, "printable characters"),
        ("namespaces", {"namespace": ["x" * 1000]}, "longer than 255"),
        ("namespaces", {"namespace": ["a"], "properties": {"a": "x" * 300_000}}, "at most"),
        ("namespaces/default/tables", {"name": "x"}, "schema"),
        ("namespaces/default/tables", {"name": "", "schema": SCHEMA}, "printable characters"),
        ("namespaces/default/tables", {"name": "x", "schema": {"type": "int"}}, "must be a struct"),
        ("namespaces/default/tables", {"name": "x", "schema": {"type": "struct"}}, "no list of fields"),
        ("namespaces/default/tables", {"name": "x", "schema": SCHEMA, "location": "/etc"}, "storage root"),
        (
            "namespaces/default/tables",
            {"name": "x", "schema": SCHEMA, "properties": {"format-version": "9"}},
            "format-version",
        ),
        ("namespaces/default/tables", DEEP, "nested too deeply"),
        ("namespaces/default/tables", NESTED, "nested too deeply"),
        ("namespaces/default/tables/t", {"requirements": [], "updates": [{"action": "explode"}]}, "explode"),
        ("namespaces/default/tables/t", {"requirements": [{"type": "x"}], "updates": []}, "$.requirements[0]"),
        (
            "namespaces/default/tables/t",
            {"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": 2**40}]},
            "schema-id",
        ),
        (
            "namespaces/default/tables/t",
            {"requirements": [], "updates": [], "identifier": {"namespace": ["default"], "name": "other"}},
            "the body default.other",
        ),
        ("namespaces/default/register", {"name": "x", "metadata-location": "/etc/x.metadata.json"}, "storage root"),
        ("tables/rename", {"source": {"namespace": ["default"], "name": "t"}}, "destination"),
    ],
)
async def test_request_is_rejected_with_the_reason_when_it_is_invalid(
    client: Client, table: str, path: str, body: Any, reason: str
) -> None:
    response = await client("POST", path, body)
    assert response.error == (400, "BadRequestException")
    assert reason in response.json["error"]["message"]


async def test_request_is_rejected_when_its_body_is_too_large(
    client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "COMMIT_BYTES_MAX", 10_000)
    response = await client("POST", table, b" " * 10_001)
    assert response.error == (413, "BadRequestException")
    assert (await client("POST", f"{table}/metrics", b" " * 10_001)).status == 413
    assert (await client("POST", "namespaces", b" " * ((1 << 20) + 1))).status == 413


async def test_request_is_rejected_when_its_body_has_too_many_values(client: Client, table: str) -> None:
    """A body of 16 MB could have five million, which took 17 s to parse."""
    response = await client("POST", table, b'{"requirements":[],"updates":[],"x":[' + b"[]," * 500_000 + b"[]]}")
    assert response.error == (413, "BadRequestException")
    assert "request body has more than 500000 values" in response.json["error"]["message"]


async def test_large_bodies_are_rejected_when_others_hold_too_much(
    client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "LARGE_BYTES_MAX", 300_000)
    head = b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    writers = []
    for _ in range(2):  # bodies that never end
        _, writer = await asyncio.open_connection("127.0.0.1", client._port)
        writer.write(head + b" " * 140_000)
        writers.append(writer)
    async with asyncio.timeout(10):
        while request_body.LARGE_BODIES.held != 280_000:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
    response = await client("POST", f"{table}/metrics", b" " * 70_000)
    assert response.error == (503, "ServiceUnavailableException")
    assert response.headers["retry-after"] == "1"
    assert "bodies of other requests have 280000 bytes" in response.json["error"]["message"]
    assert (await client("POST", f"{table}/metrics", b" " * 60_000)).status == 204, "small bodies are accepted"
    for writer in writers:
        writer.close()
    async with asyncio.timeout(10):
        while request_body.LARGE_BODIES.held:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await client("POST", f"{table}/metrics", b" " * 290_000)).status == 204
    assert request_body.LARGE_BODIES.held == 0


async def test_request_times_out_when_its_body_is_incomplete(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "BODY_S_MAX", 0.1)
    response = await client("POST", "namespaces", None, {"Transfer-Encoding": "chunked"})
    assert "did not arrive" in response.json["error"]["message"]


async def test_commit_returns_500_when_its_state_is_unknown(
    client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object, **__: object) -> None:
        raise CommitStateUnknown("no response")

    monkeypatch.setattr(Catalog, "commit", lost)
    response = await client("POST", table, {"requirements": [], "updates": []})
    assert response.error == (500, "CommitStateUnknownException")


async def test_internal_error_is_logged_and_not_returned(
    client: Client, table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Catalog, "commit", broken)
    response = await client("POST", table, {"requirements": [], "updates": []})
    assert response.error == (500, "InternalServerError")
    assert b"a bug" not in response.body
    assert "a bug" in caplog.text


async def test_load_waits_for_acknowledged_records_when_the_fresh_header_is_set() -> None:
    async with serving() as client:
        await client.catalog.create(TableName(("default",), "t"), NewTable(SCHEMA))
        path = "namespaces/default/tables/t"
        assert "x-lakestream-fresh" not in (await client("GET", path)).headers
        for requested, returned in (
            ("yes", "yes; waited 10000 ms for default.t ?"),
            ("6s", "yes; waited 6000 ms for default.t ?"),
            ("500ms", "no; waited 500 ms for default.t ?"),
        ):
            response = await client("GET", path, headers={"X-Lakestream-Fresh": requested})
            assert (response.status, response.headers["x-lakestream-fresh"]) == (200, returned)
        conditional = {"X-Lakestream-Fresh": "6s", "If-None-Match": response.headers["etag"]}
        assert (await client("GET", path, headers=conditional)).headers["x-lakestream-fresh"].startswith("yes; ")
        for invalid in ("soon", "61s", "-1s", "9" * 400):
            assert (await client("GET", path, headers={"X-Lakestream-Fresh": invalid})).error == (
                400,
                "BadRequestException",
            )
        missing = await client("GET", "namespaces/default/tables/no", headers={"X-Lakestream-Fresh": "1s"})
        assert missing.error == (404, "NoSuchTableException")
        assert missing.json["error"]["message"].endswith("yet (waited 1000 ms for default.no ü)")
