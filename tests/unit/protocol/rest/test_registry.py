"""The schema registry on a real socket: every endpoint, every number, and what hostile clients send."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.registry import bodies, schemas
from lakestream.protocol.rest.registry.app import RegistryRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings

VND = "application/vnd.schemaregistry.v1+json"


class Answer(NamedTuple):
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
    def __init__(self, port: int, store: MemoryStore) -> None:
        self._port = port
        self.store = store

    async def __call__(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} /{path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(sent)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
        async with asyncio.timeout(20):
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *rest = head.decode().split("\r\n")
        found = dict(line.split(": ", 1) for line in rest)
        return Answer(int(first.split()[1]), {name.lower(): value for name, value in found.items()}, answer)

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self(method, path, body)
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"] == VND
        return answer.json

    async def put(self, subject: str, *fields: str, query: str = "", **more: Any) -> int:
        """Register a record of strings; those with a question mark have a default."""
        body = {"schema": record(*fields), **more}
        return int((await self.ok("POST", f"subjects/{quote(subject, safe='')}/versions{query}", body))["id"])


def record(*fields: str, name: str = "R") -> str:
    parts = [
        {"name": one.rstrip("?"), "type": "string", **({"default": ""} if one.endswith("?") else {})} for one in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": parts}, separators=(",", ":"))


async def fine() -> None: ...


@contextlib.asynccontextmanager
async def serving(memory: MemoryServer | None = None) -> AsyncIterator[Client]:
    store = (memory or MemoryServer(SystemClock())).client()
    registry = SchemaRegistry(store, RandomIds())
    server = HttpServer(HttpSettings())
    _, port = await server.bind("127.0.0.1", 0)
    await server.serve(application(Health({"it": fine}), lambda: b"", None, RegistryRest(registry, "my-cluster")))
    try:
        yield Client(port, store)
    finally:
        await server.stop()
        registry.close()


# ── subjects and versions ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_schema_goes_in_and_comes_out_everywhere() -> None:
    async with serving() as ask:
        first = await ask.ok("POST", "subjects/orders-value/versions", {"schema": record("a")})
        assert first.keys() == {"id", "version", "guid"}
        assert (first["id"], first["version"]) == (1, 1)
        assert await ask.put("orders-value", "a", "b?") == 2
        whole = await ask.ok("GET", "subjects/orders-value/versions/1")
        assert whole == {
            "subject": "orders-value",
            "version": 1,
            "id": 1,
            "guid": first["guid"],
            "schemaType": "AVRO",
            "schema": record("a"),
        }
        for latest in ("latest", "-1", "2"):
            assert (await ask.ok("GET", f"subjects/orders-value/versions/{latest}"))["version"] == 2
        assert (await ask("GET", "subjects/orders-value/versions/1/schema")).body.decode() == record("a")
        assert await ask.ok("GET", "subjects/orders-value/versions") == [1, 2]
        assert await ask.ok("GET", "subjects/orders-value/versions?offset=1&limit=5") == [2]
        assert await ask.ok("POST", "subjects/orders-value", {"schema": record("a")}) == whole
        by_id = await ask.ok("GET", "schemas/ids/1")
        assert by_id == {"guid": first["guid"], "schemaType": "AVRO", "schema": record("a")}
        assert (await ask.ok("GET", "schemas/ids/1?subject=orders-value"))["version"] == 1
        assert (await ask.ok("GET", "schemas/ids/1?fetchMaxId=true"))["maxId"] == 2
        assert (await ask("GET", "schemas/ids/1/schema")).body.decode() == record("a")
        assert await ask.ok("GET", "schemas/ids/1/subjects") == ["orders-value"]
        assert await ask.ok("GET", "schemas/ids/1/versions") == [{"subject": "orders-value", "version": 1}]
        assert await ask.ok("GET", f"schemas/guids/{first['guid']}") == by_id
        assert await ask.ok("GET", f"schemas/guids/{first['guid']}/ids") == [{"context": ".", "id": 1}]
        assert [one["version"] for one in await ask.ok("GET", "schemas")] == [1, 2]
        assert [one["version"] for one in await ask.ok("GET", "schemas?latestOnly=true")] == [2]
        assert [one["version"] for one in await ask.ok("GET", "schemas?offset=1&limit=5")] == [2]
        assert set(await ask.ok("GET", "schemas/types")) == {"AVRO", "JSON", "PROTOBUF"}


async def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "LISTED_MAX", 2)
    async with serving() as ask:
        for subject in "abcde":
            await ask.put(subject, subject)
        for start, expected in ((0, "ab"), (2, "cd"), (4, "e"), (5, "")):
            page = await ask.ok("GET", f"schemas?offset={start}&limit=1000")
            assert [one["subject"] for one in page] == list(expected)


async def test_subjects_are_listed_as_asked() -> None:
    async with serving() as ask:
        for subject in ("b", "a", "a/b c+é", ":.ctx:a"):
            await ask.put(subject, "x")
        await ask.ok("DELETE", "subjects/b")
        assert await ask.ok("GET", "subjects") == [":.ctx:a", "a", "a/b c+é"]
        assert await ask.ok("GET", "subjects?deleted=true") == [":.ctx:a", "a", "a/b c+é", "b"]
        assert await ask.ok("GET", "subjects?deletedOnly=true") == ["b"]
        assert await ask.ok("GET", "subjects?subjectPrefix=a%2F") == ["a/b c+é"]
        assert await ask.ok("GET", "subjects?subjectPrefix=:.ctx:") == [":.ctx:a"]
        assert await ask.ok("GET", "subjects?offset=1&limit=1") == ["a"]
        assert await ask.ok("GET", "subjects/a%2Fb%20c+%C3%A9/versions") == [1]
        assert await ask.ok("GET", "subjects/") == await ask.ok("GET", "subjects")


async def test_deleting_in_two_steps() -> None:
    async with serving() as ask:
        await ask.put("s", "a")
        await ask.put("s", "a", "b?")
        assert (await ask("DELETE", "subjects/s?permanent=true")).error == (404, 40405)
        assert (await ask("DELETE", "subjects/s/versions/1?permanent=true")).error == (404, 40407)
        assert await ask.ok("DELETE", "subjects/s/versions/1") == 1
        assert (await ask("DELETE", "subjects/s/versions/1")).error == (404, 40406)
        assert (await ask("GET", "subjects/s/versions/1")).error == (404, 40402)
        assert (await ask.ok("GET", "subjects/s/versions/1?deleted=true"))["deleted"] is True
        assert await ask.ok("GET", "subjects/s/versions?deleted=true") == [1, 2]
        assert await ask.ok("GET", "subjects/s/versions?deletedOnly=true") == [1]
        assert await ask.ok("GET", "subjects/s/versions?deletedAsNegative=true") == [-1, 2]
        assert await ask.ok("DELETE", "subjects/s") == [2]
        assert (await ask("DELETE", "subjects/s")).error == (404, 40404)
        assert (await ask("GET", "subjects/s/versions")).error == (404, 40401)
        assert await ask.ok("GET", "schemas/ids/2"), "by id it is still to be had"
        assert await ask.ok("DELETE", "subjects/s?permanent=true") == [1, 2]
        assert (await ask("GET", "schemas/ids/2")).error == (404, 40403)
        assert (await ask("DELETE", "subjects/s")).error == (404, 40401)


async def test_references_hold_what_they_need() -> None:
    async with serving() as ask:
        await ask.put("base", "x", query="?normalize=false")
        base = [{"name": "R", "subject": "base", "version": 1}]
        outer = json.dumps({"type": "record", "name": "O", "fields": [{"name": "r", "type": "R"}]})
        assert (await ask("POST", "subjects/o/versions", {"schema": outer})).error == (422, 42201)
        sent = {"schema": outer, "references": base}
        assert (await ask.ok("POST", "subjects/o/versions", sent))["id"] == 2
        assert (await ask.ok("GET", "subjects/o/versions/1"))["references"] == base
        assert await ask.ok("GET", "subjects/base/versions/1/referencedby") == [2]
        assert (await ask("DELETE", "subjects/base")).error == (422, 42206)
        resolved = (await ask.ok("GET", "schemas/ids/2?format=resolved"))["schema"]
        assert json.loads(resolved)["fields"][0]["type"]["name"] == "R"
        written_out = {"schema": resolved}
        assert (await ask.ok("POST", "subjects/o", written_out))["version"] == 1, "the same, in one text"
        assert (await ask.ok("POST", "subjects/o/versions", written_out))["id"] == 2
        missing = {"schema": outer, "references": [{"name": "R", "subject": "nobody", "version": 1}]}
        assert (await ask("POST", "subjects/p/versions", missing)).error == (422, 42201)
        invalid = {"schema": outer, "references": [{"name": "R", "subject": "base", "version": 0}]}
        assert (await ask("POST", "subjects/p/versions", invalid)).error == (422, 42202)


async def test_protobuf_comes_in_both_spellings() -> None:
    async with serving() as ask:
        text = 'syntax = "proto3";\n// a comment\nmessage M { string a = 1; }\n'
        sent = {"schema": text, "schemaType": "PROTOBUF"}
        assert (await ask.ok("POST", "subjects/p/versions", sent))["id"] == 1
        serialized = (await ask.ok("GET", "schemas/ids/1?format=serialized"))["schema"]
        again = {"schema": serialized, "schemaType": "PROTOBUF"}
        assert (await ask.ok("POST", "subjects/p/versions", again))["version"] == 1
        assert (await ask("GET", "schemas/ids/1?format=poetry")).error == (400, 400)
        assert "message M" in (await ask.ok("GET", "subjects/p/versions/latest"))["schema"]


async def test_metadata_and_rules_are_kept_and_found() -> None:
    async with serving() as ask:
        metadata = {"properties": {"owner": "me"}, "tags": None}
        rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE"}]}
        await ask.put("s", "a", metadata=metadata, ruleSet=rules)
        found = await ask.ok("GET", "subjects/s/versions/1")
        assert found["metadata"] == {"properties": {"owner": "me"}}
        assert found["ruleSet"] == rules
        assert (await ask.ok("GET", "subjects/s/metadata?key=owner&value=me"))["version"] == 1
        assert (await ask("GET", "subjects/s/metadata?key=owner&value=you")).error == (404, 40403)
        told = await ask.ok("POST", "subjects/s/versions", {"schema": record("a")})
        assert told["metadata"] == {"properties": {"owner": "me"}}, "it hears what it has inherited"


# ── compatibility, settings, modes, contexts ─────────────────────────────────────────────────────────────────────────


async def test_compatibility() -> None:
    async with serving() as ask:
        await ask.put("s", "a")
        worse = {"schema": record("a", "b")}
        refused = await ask("POST", "subjects/s/versions", worse)
        assert refused.error == (409, 409)
        assert "'s'" in refused.json["message"]
        assert "b" in refused.json["message"]
        for path in ("versions", "versions/1", "versions/latest"):
            assert await ask.ok("POST", f"compatibility/subjects/s/{path}", worse) == {"is_compatible": False}
            told = await ask.ok("POST", f"compatibility/subjects/s/{path}?verbose=true", worse)
            assert len(told["messages"]) == 1
            assert await ask.ok("POST", f"compatibility/subjects/s/{path}", {"schema": record("a", "b?")}) == {
                "is_compatible": True
            }
        assert await ask.ok("POST", "compatibility/subjects/none/versions/latest", worse) == {"is_compatible": True}
        assert (await ask("POST", "compatibility/subjects/s/versions/9", worse)).error == (404, 40402)
        broken = {"schema": "{"}
        assert (await ask("POST", "compatibility/subjects/s/versions", broken)).error == (422, 42201)
        told = await ask.ok("POST", "compatibility/subjects/s/versions?verbose=true", broken)
        assert told["is_compatible"] is False


async def test_config() -> None:
    async with serving() as ask:
        assert await ask.ok("GET", "config") == {"compatibilityLevel": "BACKWARD"}
        assert (await ask("GET", "config/s")).error == (404, 40408)
        assert (await ask.ok("GET", "config/s?defaultToGlobal=true")) == {"compatibilityLevel": "BACKWARD"}
        assert await ask.ok("PUT", "config", {"compatibility": "none"}) == {"compatibility": "NONE"}
        assert await ask.ok("GET", "config/s?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
        sent = {"compatibility": "FULL", "normalize": True}
        assert await ask.ok("PUT", "config/s", sent) == sent
        assert await ask.ok("PUT", "config/s", {"normalize": None}) == {"compatibility": "FULL"}
        assert await ask.ok("GET", "config/s") == {"compatibilityLevel": "FULL"}
        assert await ask.ok("DELETE", "config/s") == {"compatibilityLevel": "FULL"}
        assert (await ask("DELETE", "config/s")).error == (404, 40401)
        assert await ask.ok("DELETE", "config") == {"compatibilityLevel": "NONE"}
        assert await ask.ok("GET", "config") == {"compatibilityLevel": "BACKWARD"}
        assert (await ask("PUT", "config", {"compatibility": "SOME"})).error == (422, 42203)
        assert (await ask("PUT", "config", {"normalize": "yes"})).error == (422, 422)
        assert (await ask("PUT", "config", {"defaultMetadata": {"properties": {}}})).error == (422, 422)
        assert (await ask("PUT", "config", {"colour": 1})).error == (422, 422)
        before = len(ask.store._server.names("/schemas/log").ordered)
        await ask.ok("PUT", "config/t", {"compatibility": "FULL"})
        await ask.ok("PUT", "config/t", {"compatibility": "FULL"})
        assert len(ask.store._server.names("/schemas/log").ordered) == before + 1, "what changes nothing is no change"


async def test_an_alias_stands_for_a_subject() -> None:
    async with serving() as ask:
        await ask.put("orders-value", "a")
        await ask.ok("PUT", "config/old-name", {"alias": "orders-value"})
        assert (await ask.ok("GET", "subjects/old-name/versions/latest"))["subject"] == "orders-value"
        assert await ask.put("old-name", "a", "b?") == 2
        assert await ask.ok("GET", "subjects") == ["orders-value"]


async def test_modes() -> None:
    async with serving() as ask:
        assert await ask.ok("GET", "mode") == {"mode": "READWRITE"}
        assert (await ask("GET", "mode/s")).error == (404, 40409)
        assert await ask.ok("GET", "mode/s?defaultToGlobal=true") == {"mode": "READWRITE"}
        await ask.put("s", "a")
        assert await ask.ok("PUT", "mode/s", {"mode": "READONLY"}) == {"mode": "READONLY"}
        assert (await ask("POST", "subjects/s/versions", {"schema": record("b")})).error == (422, 42205)
        assert (await ask("PUT", "config/s", {"compatibility": "NONE"})).error == (422, 42205)
        assert await ask.ok("DELETE", "mode/s") == {"mode": "READONLY"}
        assert (await ask("DELETE", "mode/s")).error == (404, 40401)
        assert (await ask("PUT", "mode", {"mode": "IMPORT"})).error == (422, 42205)
        assert (await ask("PUT", "mode", {"mode": "WRITEONLY"})).error == (422, 42204)
        assert await ask.ok("PUT", "mode?force=true", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
        assert await ask.put("t", "q", id=40, version=3) == 40
        assert await ask.ok("GET", "subjects/t/versions") == [3]
        other = {"schema": record("z"), "id": 40}
        assert (await ask("POST", "subjects/t/versions", other)).error == (422, 42205)
        await ask.ok("PUT", "mode/t", {"mode": "READONLY"})
        assert await ask.ok("DELETE", "mode?recursive=true") == {"mode": "IMPORT"}
        assert (await ask("GET", "mode/t")).error == (404, 40409)


async def test_contexts() -> None:
    async with serving() as ask:
        await ask.put("a", "x")
        assert await ask.put(":.ctx:a", "y") == 1
        assert await ask.ok("GET", "contexts") == [".", ".ctx"]
        assert (await ask.ok("GET", "schemas/ids/1?subject=:.ctx:"))["schema"] == record("y")
        assert (await ask.ok("GET", "contexts/.ctx/schemas/ids/1"))["schema"] == record("y")
        assert await ask.ok("GET", "contexts/.ctx/subjects") == [":.ctx:a"]
        assert (await ask.ok("GET", "contexts/:.ctx:/subjects/a/versions/1"))["subject"] == ":.ctx:a"
        body = {"schema": record("y", "z?")}
        assert (await ask.ok("POST", "contexts/.ctx/subjects/a/versions", body))["version"] == 2
        assert (await ask.ok("GET", "schemas/ids/2?subject=a"))["subject"] == ":.ctx:a", "looked for in all contexts"
        await ask.ok("PUT", "contexts/.ctx/config", {"compatibility": "NONE"})
        assert await ask.ok("GET", "config") == {"compatibilityLevel": "BACKWARD"}
        assert await ask.ok("GET", "config/:.ctx:a?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
        assert (await ask("DELETE", "contexts/.ctx")).error == (422, 42211)
        await ask.ok("DELETE", "subjects/:.ctx:a")
        await ask.ok("DELETE", "subjects/:.ctx:a?permanent=true")
        assert (await ask("DELETE", "contexts/.ctx")).status == 204
        assert (await ask("DELETE", "contexts/.ctx")).error == (404, 40401)
        assert await ask.ok("GET", "contexts") == ["."]


async def test_who_serves() -> None:
    async with serving() as ask:
        assert await ask.ok("GET", "") == {}
        assert (await ask.ok("GET", "v1/metadata/id"))["scope"]["clusters"]["kafka-cluster"] == "my-cluster"
        assert (await ask.ok("GET", "v1/metadata/version"))["version"].startswith("lakestream-")
        plain = await ask("GET", "subjects", headers={"Accept": "application/json"})
        assert plain.headers["content-type"] == "application/json"
        assert (await ask("GET", "subjects", headers={"Accept": f"{VND}, application/json"})).headers[
            "content-type"
        ] == VND


# ── several brokers ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_one_broker_hands_out_every_other_knows_at_once() -> None:
    memory = MemoryServer(SystemClock())
    async with serving(memory) as one, serving(memory) as other:
        assert await other.ok("GET", "subjects") == []
        assert (await other("GET", "schemas/ids/1")).error == (404, 40403)
        assert await one.put("s", "a") == 1
        assert (await other.ok("GET", "schemas/ids/1"))["schema"] == record("a")
        assert await other.put("t", "b") == 2
        assert (await one.ok("GET", "subjects/t/versions/latest"))["id"] == 2
        assert await one.put("u", "c") == 3
        assert await other.ok("GET", "subjects") == ["s", "t", "u"], "it knows of the third, and has not read its text"
        for subject in "su":
            await one.ok("DELETE", f"subjects/{subject}")
            await one.ok("DELETE", f"subjects/{subject}?permanent=true")
        assert (await other("GET", "schemas/ids/3")).error == (404, 40403)
        assert (await other("GET", "subjects/s/versions/latest")).error == (404, 40401)


async def test_a_store_that_does_not_answer_is_said() -> None:
    async with serving() as ask:
        await ask.put("s", "a")
        await ask.store.close()
        assert (await ask("GET", "subjects")).error == (500, 50001)
        assert (await ask("POST", "subjects/s/versions", {"schema": record("b")})).error == (500, 50001)
        assert await ask.ok("GET", "schemas/ids/1"), "what belongs to an id is known"


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


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
async def test_bad_schemas(body: bytes, expected: tuple[int, int]) -> None:
    async with serving() as ask:
        assert (await ask("POST", "subjects/s/versions", body)).error == expected
        assert await ask.ok("GET", "subjects") == []


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
        ("GET", "contexts/a:b/subjects", (422, 42208)),
        ("DELETE", "contexts/.", (422, 42205)),
    ],
)
async def test_bad_paths(method: str, path: str, expected: tuple[int, int]) -> None:
    async with serving() as ask:
        answer = await ask(method, path)
        if method == "PATCH":
            assert answer.status == 405  # answered before it comes to the registry
        else:
            assert answer.error == expected


async def test_a_subject_has_a_name() -> None:
    async with serving() as ask:
        for subject in ("%01", "__GLOBAL", ":.ctx:"):
            assert (await ask("POST", f"subjects/{subject}/versions", {"schema": record("a")})).error == (422, 42208)


async def test_a_body_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_BYTES_MAX", 1_000)
    async with serving() as ask:
        answer = await ask("POST", "subjects/s/versions", {"schema": "x" * 2_000})
        assert answer.error == (413, 413)
