"""Tests of the schema registry over a socket: all endpoints, all error codes, and invalid requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.schema_registry import request_models, schemas
from lakestream.protocol.rest.schema_registry.app import RegistryRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings

VND = "application/vnd.schemaregistry.v1+json"


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
    def error(self) -> tuple[int, int]:
        assert self.headers["content-type"] == VND
        assert self.json["message"]
        return self.status, self.json["error_code"]


class Client:
    def __init__(self, port: int, store: MemoryMetadataStore) -> None:
        self._port = port
        self.store = store

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> HttpResponse:
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} /{path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(sent)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
        async with asyncio.timeout(20):
            head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *rest = head.decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in rest)
        return HttpResponse(int(first.split()[1]), {name.lower(): value for name, value in fields.items()}, content)

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        response = await self(method, path, body)
        assert response.status == 200, response.body
        assert response.headers["content-type"] == VND
        return response.json

    async def register(self, subject: str, *fields: str, query: str = "", **more: Any) -> int:
        """Registers a record of strings. A field with a question mark has a default. Returns the schema id."""
        body = {"schema": record(*fields), **more}
        return int((await self.ok("POST", f"subjects/{quote(subject, safe='')}/versions{query}", body))["id"])


def record(*fields: str, name: str = "R") -> str:
    parts = [
        {"name": one.rstrip("?"), "type": "string", **({"default": ""} if one.endswith("?") else {})} for one in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": parts}, separators=(",", ":"))


async def passing_check() -> None: ...


@contextlib.asynccontextmanager
async def serving(memory: MemoryServer | None = None) -> AsyncIterator[Client]:
    store = (memory or MemoryServer(SystemClock())).client()
    registry = SchemaRegistry(store, RandomIds())
    server = HttpServer(HttpSettings())
    _, port = server.bind("127.0.0.1", 0)
    await server.serve(
        application(Health({"store": passing_check}), no_metrics, None, RegistryRest(registry, "my-cluster"))
    )
    try:
        yield Client(port, store)
    finally:
        await server.stop()
        await registry.close()


# ── subjects and versions ────────────────────────────────────────────────────────────────────────────────────────────


async def test_registered_schema_is_returned_by_every_endpoint() -> None:
    async with serving() as client:
        first = await client.ok("POST", "subjects/orders-value/versions", {"schema": record("a")})
        assert first.keys() == {"id", "version", "guid"}
        assert (first["id"], first["version"]) == (1, 1)
        assert await client.register("orders-value", "a", "b?") == 2
        registered = await client.ok("GET", "subjects/orders-value/versions/1")
        assert registered == {
            "subject": "orders-value",
            "version": 1,
            "id": 1,
            "guid": first["guid"],
            "schemaType": "AVRO",
            "schema": record("a"),
        }
        for latest in ("latest", "-1", "2"):
            assert (await client.ok("GET", f"subjects/orders-value/versions/{latest}"))["version"] == 2
        assert (await client("GET", "subjects/orders-value/versions/1/schema")).body.decode() == record("a")
        assert await client.ok("GET", "subjects/orders-value/versions") == [1, 2]
        assert await client.ok("GET", "subjects/orders-value/versions?offset=1&limit=5") == [2]
        assert await client.ok("POST", "subjects/orders-value", {"schema": record("a")}) == registered
        by_id = await client.ok("GET", "schemas/ids/1")
        assert by_id == {"guid": first["guid"], "schemaType": "AVRO", "schema": record("a")}
        assert (await client.ok("GET", "schemas/ids/1?subject=orders-value"))["version"] == 1
        assert (await client.ok("GET", "schemas/ids/1?fetchMaxId=true"))["maxId"] == 2
        assert (await client("GET", "schemas/ids/1/schema")).body.decode() == record("a")
        assert await client.ok("GET", "schemas/ids/1/subjects") == ["orders-value"]
        assert await client.ok("GET", "schemas/ids/1/versions") == [{"subject": "orders-value", "version": 1}]
        assert await client.ok("GET", f"schemas/guids/{first['guid']}") == by_id
        assert await client.ok("GET", f"schemas/guids/{first['guid']}/ids") == [{"context": ".", "id": 1}]
        assert [one["version"] for one in await client.ok("GET", "schemas")] == [1, 2]
        assert [one["version"] for one in await client.ok("GET", "schemas?latestOnly=true")] == [2]
        assert [one["version"] for one in await client.ok("GET", "schemas?offset=1&limit=5")] == [2]
        assert set(await client.ok("GET", "schemas/types")) == {"AVRO", "JSON", "PROTOBUF"}


async def test_list_of_schemas_is_limited_to_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "LISTED_MAX", 2)
    async with serving() as client:
        for subject in "abcde":
            await client.register(subject, subject)
        for start, expected in ((0, "ab"), (2, "cd"), (4, "e"), (5, "")):
            page = await client.ok("GET", f"schemas?offset={start}&limit=1000")
            assert [one["subject"] for one in page] == list(expected)


async def test_subjects_are_filtered_by_prefix_and_deletion() -> None:
    async with serving() as client:
        for subject in ("b", "a", "a/b c+é", ":.ctx:a"):
            await client.register(subject, "x")
        await client.ok("DELETE", "subjects/b")
        assert await client.ok("GET", "subjects") == [":.ctx:a", "a", "a/b c+é"]
        assert await client.ok("GET", "subjects?deleted=true") == [":.ctx:a", "a", "a/b c+é", "b"]
        assert await client.ok("GET", "subjects?deletedOnly=true") == ["b"]
        assert await client.ok("GET", "subjects?subjectPrefix=a%2F") == ["a/b c+é"]
        assert await client.ok("GET", "subjects?subjectPrefix=:.ctx:") == [":.ctx:a"]
        assert await client.ok("GET", "subjects?offset=1&limit=1") == ["a"]
        assert await client.ok("GET", "subjects/a%2Fb%20c+%C3%A9/versions") == [1]
        assert await client.ok("GET", "subjects/") == await client.ok("GET", "subjects")


async def test_permanent_delete_requires_a_soft_delete() -> None:
    async with serving() as client:
        await client.register("s", "a")
        await client.register("s", "a", "b?")
        assert (await client("DELETE", "subjects/s?permanent=true")).error == (404, 40405)
        assert (await client("DELETE", "subjects/s/versions/1?permanent=true")).error == (404, 40407)
        assert await client.ok("DELETE", "subjects/s/versions/1") == 1
        assert (await client("DELETE", "subjects/s/versions/1")).error == (404, 40406)
        assert (await client("GET", "subjects/s/versions/1")).error == (404, 40402)
        assert (await client.ok("GET", "subjects/s/versions/1?deleted=true"))["deleted"] is True
        assert await client.ok("GET", "subjects/s/versions?deleted=true") == [1, 2]
        assert await client.ok("GET", "subjects/s/versions?deletedOnly=true") == [1]
        assert await client.ok("GET", "subjects/s/versions?deletedAsNegative=true") == [-1, 2]
        assert await client.ok("DELETE", "subjects/s") == [2]
        assert (await client("DELETE", "subjects/s")).error == (404, 40404)
        assert (await client("GET", "subjects/s/versions")).error == (404, 40401)
        assert await client.ok("GET", "schemas/ids/2"), "the deleted schema is still returned by id"
        assert await client.ok("DELETE", "subjects/s?permanent=true") == [1, 2]
        assert (await client("GET", "schemas/ids/2")).error == (404, 40403)
        assert (await client("DELETE", "subjects/s")).error == (404, 40401)


async def test_delete_is_rejected_when_the_version_is_referenced() -> None:
    async with serving() as client:
        await client.register("base", "x", query="?normalize=false")
        base = [{"name": "R", "subject": "base", "version": 1}]
        outer = json.dumps({"type": "record", "name": "O", "fields": [{"name": "r", "type": "R"}]})
        assert (await client("POST", "subjects/o/versions", {"schema": outer})).error == (422, 42201)
        sent = {"schema": outer, "references": base}
        assert (await client.ok("POST", "subjects/o/versions", sent))["id"] == 2
        assert (await client.ok("GET", "subjects/o/versions/1"))["references"] == base
        assert await client.ok("GET", "subjects/base/versions/1/referencedby") == [2]
        assert (await client("DELETE", "subjects/base")).error == (422, 42206)
        resolved = (await client.ok("GET", "schemas/ids/2?format=resolved"))["schema"]
        assert json.loads(resolved)["fields"][0]["type"]["name"] == "R"
        without_references = {"schema": resolved}
        assert (await client.ok("POST", "subjects/o", without_references))["version"] == 1, (
            "the same schema, without references"
        )
        assert (await client.ok("POST", "subjects/o/versions", without_references))["id"] == 2
        missing = {"schema": outer, "references": [{"name": "R", "subject": "missing", "version": 1}]}
        assert (await client("POST", "subjects/p/versions", missing)).error == (422, 42201)
        invalid = {"schema": outer, "references": [{"name": "R", "subject": "base", "version": 0}]}
        assert (await client("POST", "subjects/p/versions", invalid)).error == (422, 42202)


async def test_protobuf_schema_is_returned_as_text_and_serialized() -> None:
    async with serving() as client:
        text = 'syntax = "proto3";\n// a comment\nmessage M { string a = 1; }\n'
        sent = {"schema": text, "schemaType": "PROTOBUF"}
        assert (await client.ok("POST", "subjects/p/versions", sent))["id"] == 1
        serialized = (await client.ok("GET", "schemas/ids/1?format=serialized"))["schema"]
        sent_again = {"schema": serialized, "schemaType": "PROTOBUF"}
        assert (await client.ok("POST", "subjects/p/versions", sent_again))["version"] == 1
        assert (await client("GET", "schemas/ids/1?format=unknown")).error == (400, 400)
        assert "message M" in (await client.ok("GET", "subjects/p/versions/latest"))["schema"]


async def test_metadata_and_rules_are_stored_and_searchable() -> None:
    async with serving() as client:
        metadata = {"properties": {"owner": "me"}, "tags": None}
        rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE"}]}
        await client.register("s", "a", metadata=metadata, ruleSet=rules)
        version = await client.ok("GET", "subjects/s/versions/1")
        assert version["metadata"] == {"properties": {"owner": "me"}}
        assert version["ruleSet"] == rules
        assert (await client.ok("GET", "subjects/s/metadata?key=owner&value=me"))["version"] == 1
        assert (await client("GET", "subjects/s/metadata?key=owner&value=you")).error == (404, 40403)
        response = await client.ok("POST", "subjects/s/versions", {"schema": record("a")})
        assert response["metadata"] == {"properties": {"owner": "me"}}, "the response has the inherited metadata"


# ── compatibility, settings, modes, contexts ─────────────────────────────────────────────────────────────────────────


async def test_incompatible_schema_is_rejected_with_the_reason() -> None:
    async with serving() as client:
        await client.register("s", "a")
        incompatible = {"schema": record("a", "b")}
        rejected = await client("POST", "subjects/s/versions", incompatible)
        assert rejected.error == (409, 409)
        assert "'s'" in rejected.json["message"]
        assert "b" in rejected.json["message"]
        for path in ("versions", "versions/1", "versions/latest"):
            assert await client.ok("POST", f"compatibility/subjects/s/{path}", incompatible) == {"is_compatible": False}
            response = await client.ok("POST", f"compatibility/subjects/s/{path}?verbose=true", incompatible)
            assert len(response["messages"]) == 1
            assert await client.ok("POST", f"compatibility/subjects/s/{path}", {"schema": record("a", "b?")}) == {
                "is_compatible": True
            }
        assert await client.ok("POST", "compatibility/subjects/none/versions/latest", incompatible) == {
            "is_compatible": True
        }
        assert (await client("POST", "compatibility/subjects/s/versions/9", incompatible)).error == (404, 40402)
        broken = {"schema": "{"}
        assert (await client("POST", "compatibility/subjects/s/versions", broken)).error == (422, 42201)
        response = await client.ok("POST", "compatibility/subjects/s/versions?verbose=true", broken)
        assert response["is_compatible"] is False


async def test_config_of_a_subject_takes_precedence_over_the_global_config() -> None:
    async with serving() as client:
        assert await client.ok("GET", "config") == {"compatibilityLevel": "BACKWARD"}
        assert (await client("GET", "config/s")).error == (404, 40408)
        assert (await client.ok("GET", "config/s?defaultToGlobal=true")) == {"compatibilityLevel": "BACKWARD"}
        assert await client.ok("PUT", "config", {"compatibility": "none"}) == {"compatibility": "NONE"}
        assert await client.ok("GET", "config/s?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
        sent = {"compatibility": "FULL", "normalize": True}
        assert await client.ok("PUT", "config/s", sent) == sent
        assert await client.ok("PUT", "config/s", {"normalize": None}) == {"compatibility": "FULL"}
        assert await client.ok("GET", "config/s") == {"compatibilityLevel": "FULL"}
        assert await client.ok("DELETE", "config/s") == {"compatibilityLevel": "FULL"}
        assert (await client("DELETE", "config/s")).error == (404, 40401)
        assert await client.ok("DELETE", "config") == {"compatibilityLevel": "NONE"}
        assert await client.ok("GET", "config") == {"compatibilityLevel": "BACKWARD"}
        assert (await client("PUT", "config", {"compatibility": "SOME"})).error == (422, 42203)
        assert (await client("PUT", "config", {"normalize": "yes"})).error == (422, 422)
        assert (await client("PUT", "config", {"defaultMetadata": {"properties": {}}})).error == (422, 422)
        assert (await client("PUT", "config", {"colour": 1})).error == (422, 422)
        before = len(client.store._server.names("/schemas/log").ordered)
        await client.ok("PUT", "config/t", {"compatibility": "FULL"})
        await client.ok("PUT", "config/t", {"compatibility": "FULL"})
        assert len(client.store._server.names("/schemas/log").ordered) == before + 1, (
            "an equal setting writes no record"
        )


async def test_request_uses_the_subject_when_it_names_an_alias() -> None:
    async with serving() as client:
        await client.register("orders-value", "a")
        await client.ok("PUT", "config/old-name", {"alias": "orders-value"})
        assert (await client.ok("GET", "subjects/old-name/versions/latest"))["subject"] == "orders-value"
        assert await client.register("old-name", "a", "b?") == 2
        assert await client.ok("GET", "subjects") == ["orders-value"]


async def test_writes_are_rejected_when_the_mode_is_read_only() -> None:
    async with serving() as client:
        assert await client.ok("GET", "mode") == {"mode": "READWRITE"}
        assert (await client("GET", "mode/s")).error == (404, 40409)
        assert await client.ok("GET", "mode/s?defaultToGlobal=true") == {"mode": "READWRITE"}
        await client.register("s", "a")
        assert await client.ok("PUT", "mode/s", {"mode": "READONLY"}) == {"mode": "READONLY"}
        assert (await client("POST", "subjects/s/versions", {"schema": record("b")})).error == (422, 42205)
        assert (await client("PUT", "config/s", {"compatibility": "NONE"})).error == (422, 42205)
        assert await client.ok("DELETE", "mode/s") == {"mode": "READONLY"}
        assert (await client("DELETE", "mode/s")).error == (404, 40401)
        assert (await client("PUT", "mode", {"mode": "IMPORT"})).error == (422, 42205)
        assert (await client("PUT", "mode", {"mode": "WRITEONLY"})).error == (422, 42204)
        assert await client.ok("PUT", "mode?force=true", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
        assert await client.register("t", "q", id=40, version=3) == 40
        assert await client.ok("GET", "subjects/t/versions") == [3]
        other = {"schema": record("z"), "id": 40}
        assert (await client("POST", "subjects/t/versions", other)).error == (422, 42205)
        await client.ok("PUT", "mode/t", {"mode": "READONLY"})
        assert await client.ok("DELETE", "mode?recursive=true") == {"mode": "IMPORT"}
        assert (await client("GET", "mode/t")).error == (404, 40409)


async def test_contexts_separate_subjects_ids_and_configs() -> None:
    async with serving() as client:
        await client.register("a", "x")
        assert await client.register(":.ctx:a", "y") == 1
        assert await client.ok("GET", "contexts") == [".", ".ctx"]
        assert (await client.ok("GET", "schemas/ids/1?subject=:.ctx:"))["schema"] == record("y")
        assert (await client.ok("GET", "contexts/.ctx/schemas/ids/1"))["schema"] == record("y")
        assert await client.ok("GET", "contexts/.ctx/subjects") == [":.ctx:a"]
        assert (await client.ok("GET", "contexts/:.ctx:/subjects/a/versions/1"))["subject"] == ":.ctx:a"
        body = {"schema": record("y", "z?")}
        assert (await client.ok("POST", "contexts/.ctx/subjects/a/versions", body))["version"] == 2
        assert (await client.ok("GET", "schemas/ids/2?subject=a"))["subject"] == ":.ctx:a", (
            "the id is searched in all contexts"
        )
        await client.ok("PUT", "contexts/.ctx/config", {"compatibility": "NONE"})
        assert await client.ok("GET", "config") == {"compatibilityLevel": "BACKWARD"}
        assert await client.ok("GET", "config/:.ctx:a?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
        assert (await client("DELETE", "contexts/.ctx")).error == (422, 42211)
        await client.ok("DELETE", "subjects/:.ctx:a")
        await client.ok("DELETE", "subjects/:.ctx:a?permanent=true")
        assert (await client("DELETE", "contexts/.ctx")).status == 204
        assert (await client("DELETE", "contexts/.ctx")).error == (404, 40401)
        assert await client.ok("GET", "contexts") == ["."]


async def test_cluster_id_and_version_are_returned() -> None:
    async with serving() as client:
        assert await client.ok("GET", "") == {}
        assert (await client.ok("GET", "v1/metadata/id"))["scope"]["clusters"]["kafka-cluster"] == "my-cluster"
        assert (await client.ok("GET", "v1/metadata/version"))["version"].startswith("lakestream-")
        plain = await client("GET", "subjects", headers={"Accept": "application/json"})
        assert plain.headers["content-type"] == "application/json"
        assert (await client("GET", "subjects", headers={"Accept": f"{VND}, application/json"})).headers[
            "content-type"
        ] == VND


# ── several brokers ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_new_schema_is_served_by_every_broker_immediately() -> None:
    memory = MemoryServer(SystemClock())
    async with serving(memory) as first, serving(memory) as second:
        assert await second.ok("GET", "subjects") == []
        assert (await second("GET", "schemas/ids/1")).error == (404, 40403)
        assert await first.register("s", "a") == 1
        assert (await second.ok("GET", "schemas/ids/1"))["schema"] == record("a")
        assert await second.register("t", "b") == 2
        assert (await first.ok("GET", "subjects/t/versions/latest"))["id"] == 2
        assert await first.register("u", "c") == 3
        assert await second.ok("GET", "subjects") == ["s", "t", "u"], "subjects need no schema texts"
        for subject in "su":
            await first.ok("DELETE", f"subjects/{subject}")
            await first.ok("DELETE", f"subjects/{subject}?permanent=true")
        assert (await second("GET", "schemas/ids/3")).error == (404, 40403)
        assert (await second("GET", "subjects/s/versions/latest")).error == (404, 40401)


async def test_error_50001_is_returned_when_the_store_is_unavailable() -> None:
    async with serving() as client:
        await client.register("s", "a")
        await client.store.close()
        assert (await client("GET", "subjects")).error == (500, 50001)
        assert (await client("POST", "subjects/s/versions", {"schema": record("b")})).error == (500, 50001)
        assert await client.ok("GET", "schemas/ids/1"), "schemas by id are cached"


# ── invalid input ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, 400)),
        (b"{", (400, 400)),
        (b"\xff\xfe", (400, 400)),
        (b"[]", (422, 422)),
        (b'{"schema": 5}', (422, 422)),
        (b"[" * 100_000, (422, 422)),
        (b"{}", (422, 42201)),
        (b'{"schema": ""}', (422, 42201)),
        (b'{"schema": "{"}', (422, 42201)),
        (b'{"schema": "{\\"type\\":\\"nothing\\"}"}', (422, 42201)),
        (b'{"schema": "\\"string\\"", "schemaType": "XML"}', (422, 42201)),
        (b'{"schema": "{", "schemaType": "JSON"}', (422, 42201)),
        (b'{"schema": "message", "schemaType": "PROTOBUF"}', (422, 42201)),
        (b'{"schema": "\\"string\\"", "id": 99999999999}', (422, 422)),
        (b'{"schema": "\\"string\\"", "references": [{"name": "a"}]}', (422, 422)),
        (b'{"schema": "\\"string\\"", "metadata": {"properties": [1]}}', (422, 422)),
        (b'{"schema": "\\"string\\"", "ruleSet": {"domainRules": [{"tags": 5}]}}', (422, 422)),
        (b'{"schema": "\\ud800"}', (400, 400)),
        (json.dumps({"schema": "[" * 200_000}).encode(), (422, 42201)),
        (json.dumps({"schema": '{"items":' * 50_000, "schemaType": "JSON"}).encode(), (422, 42201)),
        (json.dumps({"schema": '"' + "x" * 1_000_001 + '"'}).encode(), (422, 42209)),
    ],
)
async def test_registration_is_rejected_when_the_body_is_invalid(body: bytes, expected: tuple[int, int]) -> None:
    async with serving() as client:
        assert (await client("POST", "subjects/s/versions", body)).error == expected
        assert await client.ok("GET", "subjects") == []


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "subjects/s/versions/first", (422, 42202)),
        ("GET", "subjects/s/versions/0", (422, 42202)),
        ("GET", f"subjects/s/versions/{2**40}", (422, 42202)),
        ("GET", "schemas/ids/abc", (404, 404)),
        ("GET", f"schemas/ids/{2**40}", (404, 404)),
        ("GET", "schemas/ids/7", (404, 40403)),
        ("GET", "schemas/guids/none", (404, 40403)),
        ("GET", "subjects/none/versions/1", (404, 40401)),
        ("GET", "subjects/none/versions/1/referencedby", (404, 40401)),
        ("GET", "subjects?limit=many", (400, 400)),
        ("GET", "subjects/%FF/versions", (400, 400)),
        ("GET", "subjects/s/nothing", (404, 404)),
        ("PATCH", "subjects", (405, 405)),
        ("PUT", "subjects/s", (405, 405)),
        ("GET", f"subjects/s/versions/{'0' * 19}1{'9' * 5_000}", (422, 42202)),
        ("GET", f"schemas/ids/{'0' * 20}{'9' * 5_000}", (404, 404)),
        ("GET", "contexts/a:b/subjects", (422, 42208)),
        ("DELETE", "contexts/.", (422, 42205)),
    ],
)
async def test_request_is_rejected_when_its_path_is_invalid(method: str, path: str, expected: tuple[int, int]) -> None:
    async with serving() as client:
        response = await client(method, path)
        if method == "PATCH":
            assert response.status == 405  # rejected by starlette
        else:
            assert response.error == expected


async def test_registration_is_rejected_when_the_subject_name_is_invalid() -> None:
    async with serving() as client:
        for subject in ("%01", "__GLOBAL", ":.ctx:"):
            assert (await client("POST", f"subjects/{subject}/versions", {"schema": record("a")})).error == (422, 42208)


async def test_registration_is_rejected_when_its_body_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_models, "SCHEMA_BYTES_MAX", 1_000)
    async with serving() as client:
        response = await client("POST", "subjects/s/versions", {"schema": "x" * 2_000})
        assert response.error == (413, 413)
