"""The REST catalog on a real socket: what the specification says, and what hostile clients send."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from tests.unit.catalog.tables import SCHEMA, append, catalog_over, snapshot

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import CommitUnknown
from lakestream.catalog.names import TableName
from lakestream.clock import SystemClock
from lakestream.coordination.freshness import Fresh
from lakestream.metadata.memory import MemoryServer
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.iceberg import bodies
from lakestream.protocol.rest.iceberg.app import IcebergRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings

CONFIG = {"s3.endpoint": "http://127.0.0.1:1"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        said = self.json["error"]
        assert said["code"] == self.status
        assert said["message"]
        return self.status, said["type"]


class Client:
    def __init__(self, port: int, catalog: Catalog) -> None:
        self._port = port
        self.catalog = catalog

    async def __call__(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} /v1/{path} HTTP/1.1", "Host: x", "Connection: close"]
        lines += [] if headers and "Transfer-Encoding" in headers else [f"Content-Length: {len(sent)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
        async with asyncio.timeout(20):
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *rest = head.decode().split("\r\n")
        found = dict(line.split(": ", 1) for line in rest)
        return Answer(int(first.split()[1]), {name.lower(): value for name, value in found.items()}, answer)


async def fine() -> None: ...


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Client]:
    catalog = catalog_over(MemoryServer(SystemClock()).client())
    await catalog.start()
    server = HttpServer(HttpSettings())
    _, port = await server.bind("127.0.0.1", 0)

    async def make_fresh(name: TableName, wait_ms: int) -> Fresh:
        return Fresh(wait_ms > 5_000, f"waited {wait_ms} ms for {name}\nü")

    iceberg = IcebergRest(catalog, CONFIG, lambda: None, make_fresh)
    await server.serve(application(Health({"it": fine}), lambda: b"", iceberg))
    try:
        yield Client(port, catalog)
    finally:
        async with asyncio.timeout(10):
            await server.stop()


@pytest.fixture
async def ask() -> AsyncIterator[Client]:
    async with serving() as client:
        yield client


@pytest.fixture
async def table(ask: Client) -> str:
    assert (await ask("POST", "namespaces/default/tables", {"name": "t", "schema": SCHEMA})).status == 200
    return "namespaces/default/tables/t"


async def test_config(ask: Client) -> None:
    answer = await ask("GET", "config?warehouse=x")
    assert answer.json["defaults"] == CONFIG
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in answer.json["endpoints"]
    assert not any("views" in one or "transactions" in one for one in answer.json["endpoints"])


async def test_namespaces(ask: Client) -> None:
    made = await ask("POST", "namespaces", {"namespace": ["a"], "properties": {"x": "y"}})
    assert made.json == {"namespace": ["a"], "properties": {"x": "y"}}
    await ask("POST", "namespaces", {"namespace": ["a", "b/c"]})
    assert (await ask("POST", "namespaces", {"namespace": ["a"]})).error == (409, "AlreadyExistsException")
    assert (await ask("GET", "namespaces")).json == {"namespaces": [["a"], ["default"]]}
    assert (await ask("GET", "namespaces?parent=a")).json == {"namespaces": [["a", "b/c"]]}
    assert (await ask("GET", "namespaces?parent=a%251Fb%252Fc")).json == {"namespaces": []}  # encoded twice
    assert (await ask("GET", "namespaces?parent=zz")).error == (404, "NoSuchNamespaceException")
    assert (await ask("GET", "namespaces/a%1Fb%2Fc")).json == {"namespace": ["a", "b/c"], "properties": {}}
    assert [(await ask("HEAD", f"namespaces/{name}")).status for name in ("a", "zz")] == [204, 404]
    page = (await ask("GET", "namespaces?pageToken=&pageSize=1")).json
    assert page == {"namespaces": [["a"]], "next-page-token": "1"}
    assert (await ask("GET", "namespaces?pageToken=1&pageSize=1")).json["next-page-token"] is None
    altered = await ask("POST", "namespaces/a/properties", {"updates": {"n": "1"}, "removals": ["x", "none"]})
    assert altered.json == {"updated": ["n"], "removed": ["x"], "missing": ["none"]}
    both = await ask("POST", "namespaces/a/properties", {"updates": {"n": "1"}, "removals": ["n"]})
    assert both.error == (422, "UnprocessableEntityException")
    assert (await ask("DELETE", "namespaces/a")).error == (409, "NamespaceNotEmptyException")
    assert (await ask("DELETE", "namespaces/a%1Fb%2Fc")).status == 204
    assert (await ask("DELETE", "namespaces/a")).status == 204
    assert (await ask("DELETE", "namespaces/a")).error == (404, "NoSuchNamespaceException")


async def test_a_tables_life(ask: Client, table: str) -> None:
    loaded = await ask("GET", table)
    assert set(loaded.json) == {"metadata-location", "metadata", "config"}
    assert loaded.json["config"] == {}
    again = await ask("GET", table, headers={"If-None-Match": loaded.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert (await ask("HEAD", table)).status == 204
    again = await ask("POST", "namespaces/default/tables", {"name": "t", "schema": SCHEMA})
    assert again.error == (409, "AlreadyExistsException")
    commit = {
        "identifier": {"namespace": ["default"], "name": "t"},
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot(2**62, 1)},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 2**62},
        ],
    }
    done = await ask("POST", table, commit)
    assert (done.status, set(done.json)) == (200, {"metadata-location", "metadata", "config"})
    assert done.json["metadata"]["current-snapshot-id"] == 2**62
    assert (await ask("POST", table, commit)).error == (409, "CommitFailedException")
    assert (await ask("GET", table, headers={"If-None-Match": loaded.headers["etag"]})).status == 200
    assert (await ask("POST", f"{table}/metrics", {"report-type": "scan-report"})).status == 204
    renamed = {
        "source": {"namespace": ["default"], "name": "t"},
        "destination": {"namespace": ["default"], "name": "new"},
    }
    assert (await ask("POST", "tables/rename", renamed)).status == 204
    assert (await ask("POST", "tables/rename", renamed)).error == (404, "NoSuchTableException")
    assert (await ask("HEAD", table)).status == 404
    listed = (await ask("GET", "namespaces/default/tables")).json
    assert listed == {"identifiers": [{"namespace": ["default"], "name": "new"}]}
    place = done.json["metadata-location"]
    assert (await ask("DELETE", "namespaces/default/tables/new")).status == 204
    back = await ask("POST", "namespaces/default/register", {"name": "back", "metadata-location": place})
    assert back.json["metadata"]["current-snapshot-id"] == 2**62
    assert (await ask("DELETE", "namespaces/default/tables/back?purgeRequested=True")).status == 204
    assert (await ask("GET", "namespaces/default/tables/back")).error == (404, "NoSuchTableException")


async def test_staged(ask: Client) -> None:
    body = {"name": "s", "schema": SCHEMA, "stage-create": True, "properties": {"format-version": "1"}}
    staged = (await ask("POST", "namespaces/default/tables", body)).json
    assert (staged["metadata"]["format-version"], staged.get("metadata-location")) == (1, None)
    assert (await ask("HEAD", "namespaces/default/tables/s")).status == 404


async def test_only_what_refs_point_at(ask: Client, table: str) -> None:
    name = TableName(("default",), "t")
    await ask.catalog.commit(name, [], append(1, 1))
    await ask.catalog.commit(name, [], append(2, 2, 1))
    everything, few = (await ask("GET", table)), await ask("GET", f"{table}?snapshots=refs")
    assert [len(one.json["metadata"]["snapshots"]) for one in (everything, few)] == [2, 1]
    assert everything.headers["etag"] != few.headers["etag"]
    assert len(few.json["metadata"]["snapshot-log"]) == 2
    assert (await ask("GET", f"{table}?snapshots=some")).error == (400, "BadRequestException")


async def test_pages_of_tables(ask: Client) -> None:
    for number in range(5):
        await ask("POST", "namespaces/default/tables", {"name": f"t{number}", "schema": SCHEMA})
    names: list[str] = []
    token = ""
    while token is not None:
        page = (await ask("GET", f"namespaces/default/tables?pageSize=2&pageToken={token}")).json
        names += [one["name"] for one in page["identifiers"]]
        token = page["next-page-token"]
    assert names == [f"t{number}" for number in range(5)]
    assert len((await ask("GET", "namespaces/default/tables?pageToken=")).json["identifiers"]) == 5
    for wrong in ("pageSize=0", "pageSize=x", "pageSize=-1"):
        assert (await ask("GET", f"namespaces/default/tables?{wrong}")).error == (400, "BadRequestException")


@pytest.mark.parametrize("name", ["a.b", "a/b", "ä ö", "a+b", "100%", "..", "a?b#c", "名前", "a\\b", '"', "a%2Fb"])
async def test_any_name(ask: Client, name: str) -> None:
    await ask("POST", "namespaces", {"namespace": [name]})
    path = f"namespaces/{quote(name, safe='')}"
    assert (await ask("GET", path)).json["namespace"] == [name]
    made = await ask("POST", f"{path}/tables", {"name": name, "schema": SCHEMA})
    assert made.status == 200
    assert (await ask("GET", f"{path}/tables/{quote(name, safe='')}")).json == made.json
    assert (await ask("GET", f"{path}/tables")).json["identifiers"] == [{"namespace": [name], "name": name}]


async def test_what_is_not_served_says_so(ask: Client) -> None:
    for method, path in [
        ("GET", "namespaces/default/views"),
        ("POST", "namespaces/default/views"),
        ("HEAD", "namespaces/default/views/v"),
        ("POST", "views/rename"),
        ("POST", "namespaces/default/tables/t/plan"),
        ("GET", "namespaces/default/tables/t/credentials"),
    ]:
        answer = await ask(method, path)
        assert answer.status == 406
        assert method == "HEAD" or answer.error == (406, "UnsupportedOperationException")
    assert (await ask("GET", "nonsense")).error == (404, "NotFoundException")
    assert (await ask("PUT", "namespaces")).error == (405, "BadRequestException")


async def test_a_transaction_is_of_one_table(ask: Client, table: str) -> None:
    change = {
        "identifier": {"namespace": ["default"], "name": "t"},
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
    }
    assert (await ask("POST", "transactions/commit", {"table-changes": [change]})).status == 204
    assert (await ask("GET", table)).json["metadata"]["properties"] == {"a": "b"}
    several = await ask("POST", "transactions/commit", {"table-changes": [change, change]})
    assert several.error == (406, "UnsupportedOperationException")


DEEP = b'{"name":"x","schema":' + b'{"type":' * 50_000


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("namespaces", b"", "truncated"),
        ("namespaces", b"{", "truncated"),
        ("namespaces", b"\xff\xfe", "malformed"),
        ("namespaces", b'{"namespace": [5]}', "$.namespace[0]"),
        ("namespaces", {"namespace": []}, "1 to 8 levels"),
        ("namespaces", {"namespace": ["a"] * 9}, "1 to 8 levels"),
        ("namespaces", {"namespace": ["a\x1fb"]}, "characters that print"),
        ("namespaces", {"namespace": ["x" * 1000]}, "longer than 255"),
        ("namespaces", {"namespace": ["a"], "properties": {"a": "x" * 300_000}}, "at most"),
        ("namespaces/default/tables", {"name": "x"}, "schema"),
        ("namespaces/default/tables", {"name": "", "schema": SCHEMA}, "characters that print"),
        ("namespaces/default/tables", {"name": "x", "schema": {"type": "int"}}, "a schema is a struct"),
        ("namespaces/default/tables", {"name": "x", "schema": {"type": "struct"}}, "no list of fields"),
        ("namespaces/default/tables", {"name": "x", "schema": SCHEMA, "location": "/etc"}, "storage root"),
        (
            "namespaces/default/tables",
            {"name": "x", "schema": SCHEMA, "properties": {"format-version": "9"}},
            "format-version",
        ),
        ("namespaces/default/tables", DEEP, "nested too deeply"),
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
async def test_what_is_wrong_is_said(ask: Client, table: str, path: str, body: Any, says: str) -> None:
    answer = await ask("POST", path, body)
    assert answer.error == (400, "BadRequestException")
    assert says in answer.json["error"]["message"]


async def test_a_body_is_bounded(ask: Client, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_BYTES_MAX", 10_000)
    answer = await ask("POST", table, b" " * 10_001)
    assert answer.error == (413, "BadRequestException")
    assert (await ask("POST", f"{table}/metrics", b" " * 10_001)).status == 413


async def test_a_body_that_never_ends_is_not_waited_for(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S_MAX", 0.1)
    answer = await ask("POST", "namespaces", None, {"Transfer-Encoding": "chunked"})
    assert "did not arrive" in answer.json["error"]["message"]


async def test_an_unknown_outcome_makes_clients_keep_their_files(
    ask: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise CommitUnknown("no answer")

    monkeypatch.setattr(Catalog, "commit", lost)
    answer = await ask("POST", table, {"requirements": [], "updates": []})
    assert answer.error == (500, "CommitStateUnknownException")


async def test_a_fault_of_ours_is_logged_and_not_told(
    ask: Client, table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Catalog, "commit", broken)
    answer = await ask("POST", table, {"requirements": [], "updates": []})
    assert answer.error == (500, "InternalServerError")
    assert b"a bug" not in answer.body
    assert "a bug" in caplog.text


async def test_a_fresh_table_is_asked_for_by_a_header() -> None:
    async with serving() as client:
        await client.catalog.create(TableName(("default",), "t"), SCHEMA)
        path = "namespaces/default/tables/t"
        assert "x-lakestream-fresh" not in (await client("GET", path)).headers
        for asked, told in (
            ("yes", "yes; waited 10000 ms for default.t ?"),
            ("6s", "yes; waited 6000 ms for default.t ?"),
            ("500ms", "no; waited 500 ms for default.t ?"),
        ):
            answer = await client("GET", path, headers={"X-Lakestream-Fresh": asked})
            assert (answer.status, answer.headers["x-lakestream-fresh"]) == (200, told)
        again = {"X-Lakestream-Fresh": "6s", "If-None-Match": answer.headers["etag"]}
        assert (await client("GET", path, headers=again)).headers["x-lakestream-fresh"].startswith("yes; ")
        for wrong in ("soon", "61s", "-1s", "9" * 400):
            assert (await client("GET", path, headers={"X-Lakestream-Fresh": wrong})).error == (
                400,
                "BadRequestException",
            )
        missing = await client("GET", "namespaces/default/tables/no", headers={"X-Lakestream-Fresh": "1s"})
        assert missing.error == (404, "NoSuchTableException")
        assert missing.json["error"]["message"].endswith("yet (waited 1000 ms for default.no ü)")
