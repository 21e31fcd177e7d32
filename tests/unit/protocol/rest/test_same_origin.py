"""Tests of the checks of Host, origin and content type: the rules, then raw requests on a socket."""

import asyncio
import json

import pytest
from tests.unit.protocol.rest.test_server import serving

from lakestream.protocol.rest.same_origin import LOOPBACK, HostNames, check_name, host_names, refusal

ANY = host_names("0.0.0.0", ["0.0.0.0", "Lake.Example.com", "*.example.org"], "Machine")


def headers(**named: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in named.items()]


def status(method: str = "GET", path: str = "/subjects", allowed: HostNames = LOOPBACK, **named: str) -> int | None:
    refused = refusal(method, path, "1.1", headers(**{"host": "localhost:8080", **named}), allowed)
    return None if refused is None else refused.status


# ── Host ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "on_loopback", "on_any"),
    [
        ("localhost", None, None),
        ("LocalHost:8080", None, None),
        ("localhost.:8080", None, None),
        ("lake.localhost", None, None),
        ("127.0.0.1:18080", None, None),
        ("127.8.9.10", None, None),
        ("127.0.0.1.", None, None),
        ("[::1]:8080", None, None),
        ("[::1]", None, None),
        ("[0:0:0:0:0:0:0:1]", None, None),
        ("[::ffff:127.0.0.1]", None, None),
        ("localhost:", None, None),
        ("192.0.2.1", 421, None),
        ("0.0.0.0:8080", 421, None),
        ("[2001:db8::1]:8080", 421, None),
        ("lake.example.com", 421, None),
        ("LAKE.example.com.:8080", 421, None),
        ("a.b.example.org", 421, None),
        ("machine", 421, None),
        ("example.org", 421, 421),
        ("evil.example", 421, 421),
        ("localhost.evil.example", 421, 421),
        ("127.0.0.1.evil.example", 421, 421),
        ("notlocalhost", 421, 421),
        ("evilexample.org", 421, 421),
        ("127.1", 421, 421),
        ("", 400, 400),
        (":8080", 400, 400),
        (".", 400, 400),
        ("localhost..", 400, 400),
        ("::1", 400, 400),
        ("[localhost]", 400, 400),
        ("[127.0.0.1]", 400, 400),
        ("[::1", 400, 400),
        ("localhost:x", 400, 400),
        ("localhost:65536", 400, 400),
        ("localhost:+80", 400, 400),
        ("evil@localhost", 400, 400),
        ("localhost, evil.example", 400, 400),
        ("localhost evil.example", 400, 400),
        ("localhost/x", 400, 400),
        ("http://localhost", 400, 400),
        ("l\u00f6calhost", 400, 400),
        ("a." * 128 + "localhost", 400, 400),
    ],
)
def test_request_is_rejected_when_its_host_is_not_a_name_of_the_server(
    host: str, on_loopback: int | None, on_any: int | None
) -> None:
    assert (status(host=host), status(host=host, allowed=ANY)) == (on_loopback, on_any)


def test_request_is_rejected_when_it_has_no_host_or_several_unless_it_is_http_1_0() -> None:
    twice = [*headers(host="localhost"), *headers(host="localhost")]
    for version, named, expected in (("1.1", [], 400), ("1.0", [], None), ("1.1", twice, 400), ("1.0", twice, 400)):
        refused = refusal("GET", "/subjects", version, named, LOOPBACK)
        assert (refused and refused.status) == expected
    refused = refusal("POST", "/subjects", "1.0", headers(origin="http://localhost"), LOOPBACK)
    assert refused is not None
    assert refused.status == 403, "without a host, no origin is the same"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_are_served_for_any_host(path: str) -> None:
    assert status("GET", path, host="10.0.0.7:8080") is None
    assert status("HEAD", path, host="pod-1.evil.example") is None
    assert refusal("GET", path, "1.1", [], LOOPBACK) is None
    assert status("POST", path, host="evil.example") == 421
    assert status("GET", f"{path}/", host="evil.example") == 421
    assert status("GET", "/metrics", host="evil.example") == 421, "metrics name topics"


@pytest.mark.parametrize(
    ("listens", "names", "host", "expected"),
    [
        ("127.0.0.1", ["127.0.0.1"], "machine", 421),
        ("127.0.1.1", ["lake"], "lake", None),
        ("127.0.0.1", ["127.0.0.1", "lake.example.com"], "lake.example.com", None),
        ("::1", ["::1"], "192.0.2.1", 421),
        ("10.0.0.7", ["10.0.0.7"], "10.0.0.7:8080", None),
        ("10.0.0.7", ["lake"], "lake", None),
        ("10.0.0.7", ["lake"], "MACHINE", None),
        ("::", ["::"], "lake", 421),
    ],
)
def test_listener_accepts_the_names_in_its_settings(
    listens: str, names: list[str], host: str, expected: int | None
) -> None:
    assert status(host=host, allowed=host_names(listens, names, "machine")) == expected


def test_host_name_is_normalized_or_rejected_when_it_is_invalid() -> None:
    assert [check_name(name) for name in ("A.b.", "*.A.b", "[::1]", " my_host")] == ["a.b", "*.a.b", "::1", "my_host"]
    for invalid in ("", "*", "a:1", "http://a", "a/b", "-a", "a b"):
        with pytest.raises(ValueError, match="is not a host name"):
            check_name(invalid)


# ── origin ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("http://localhost:8080", "localhost:8080", None),
        ("http://LOCALHOST:8080", "localhost.:8080", None),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", None),
        ("http://[::1]:8080", "[::1]:8080", None),
        ("http://localhost", "localhost:80", None),
        ("http://localhost", "localhost", None),
        ("https://localhost", "localhost", None),
        ("https://localhost:443", "localhost", None),
        ("http://evil.example", "localhost:8080", 403),
        ("http://localhost:3000", "localhost:8080", 403),
        ("http://localhost", "localhost:8080", 403),
        ("http://127.0.0.1:8080", "localhost:8080", 403),
        ("http://localhost:8080.evil.example", "localhost:8080", 403),
        ("http://evil.example@localhost:8080", "localhost:8080", 403),
        ("http://localhost:8080/", "localhost:8080", 403),
        ("http://localhost:8080 http://evil.example", "localhost:8080", 403),
        ("chrome-extension://localhost", "localhost", 403),
        ("file://", "localhost", 403),
        ("localhost:8080", "localhost:8080", 403),
        ("null", "localhost:8080", 403),
        ("", "localhost:8080", 403),
    ],
)
def test_write_is_rejected_when_its_origin_is_another_site(origin: str, host: str, expected: int | None) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "NEW"):
        assert status(method, origin=origin, host=host) == expected
    for method in ("GET", "HEAD", "OPTIONS"):
        assert status(method, origin=origin, host=host) is None, "a page of another origin cannot read the response"


def test_write_is_rejected_when_any_of_its_origins_is_another_site() -> None:
    named = [*headers(host="localhost", origin="http://localhost"), *headers(origin="http://evil.example")]
    refused = refusal("POST", "/subjects", "1.1", named, LOOPBACK)
    assert refused is not None
    assert refused.status == 403


@pytest.mark.parametrize(
    ("site", "expected"),
    [("same-origin", None), ("none", None), ("same-site", 403), ("cross-site", 403), ("CROSS-SITE", 403), ("", 403)],
)
def test_write_is_rejected_when_sec_fetch_site_is_another_site(site: str, expected: int | None) -> None:
    assert status("POST", sec_fetch_site=site) == expected
    assert status("GET", sec_fetch_site=site) is None


# ── content type ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", None),
        ("application/vnd.schemaregistry.v1+json", None),
        ("application/vnd.schemaregistry.v1+json; charset=utf-8", None),
        ("application/octet-stream", None),
        ("", None),
        ("text/plain", 415),
        ("Text/Plain;charset=UTF-8", 415),
        ("text/plain; application/json", 415),
        (" application/x-www-form-urlencoded ", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_write_is_rejected_when_its_content_type_is_one_of_html_forms(content_type: str, expected: int | None) -> None:
    assert status("POST", content_type=content_type, content_length="2") == expected
    assert status("PUT", content_type=content_type, transfer_encoding="chunked") == expected
    assert status("DELETE", content_type=content_type, content_length="0") is None
    assert status("POST", content_type=content_type) is None, "there is no body"


def test_write_is_accepted_when_it_has_no_content_type() -> None:
    assert status("POST", content_length="2") is None, "some clients send no Content-Type"


# ── on a socket ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def send(port: int, request: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("request_line", "host", "expected"),
    [
        ("GET /metrics HTTP/1.1", "Host: LOCALHOST:1", 200),
        ("GET http://evil.example/metrics HTTP/1.1", "Host: localhost", 200),
        ("GET http://localhost/metrics HTTP/1.1", "Host: evil.example", 421),
        ("GET /metrics HTTP/1.1", "Host: localhost\nHost: localhost", 400),
        ("GET /metrics HTTP/1.1", "X: y", 400),
        ("GET /metrics HTTP/1.0", "X: y", 200),
        ("GET /healthz HTTP/1.0", "X: y", 200),
        ("GET //healthz HTTP/1.1", "Host: evil.example", 421),
        ("OPTIONS /subjects HTTP/1.1", "Host: localhost\nOrigin: http://evil.example", 404),
    ],
)
async def test_host_header_is_checked_for_every_form_of_request_target(
    request_line: str, host: str, expected: int
) -> None:
    async with serving() as port:
        assert (await send(port, f"{request_line}\n{host}\nConnection: close"))[0] == expected


async def test_rejection_has_the_error_format_of_the_api_at_the_path() -> None:
    async with serving() as port:
        end = "HTTP/1.1\nHost: evil.example\nConnection: close"
        status, body = await send(port, f"GET /v1/config {end}")
        text = "Host: 'evil.example' is not a name of this server: use its IP address, or add the name to --http-hosts"
        assert (status, json.loads(body)) == (
            421,
            {"error": {"code": 421, "type": "BadRequestException", "message": text}},
        )
        for path in ("/subjects", "/v1/metadata/id"):
            status, body = await send(port, f"GET {path} {end}")
            assert (status, json.loads(body)) == (421, {"error_code": 421, "message": text})
