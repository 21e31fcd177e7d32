"""What every object store must do: memory, local disk, a real S3 server, a real Azure server, a stand-in for GCS.

The remote ones are opened as a user opens them: one URL, the rest from the environment.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from tests.harness.stores import fake_gcs

from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Conflict, Misconfigured, Missing, OutOfRange, Rejected, Unavailable
from lakestream.model import Buffer, MiB, Span
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import ObjectInfo, ObjectStore
from lakestream.storage.open_store import open_store
from lakestream.storage.startup_check import check_clock, check_store
from lakestream.testing.servers import AzureServer, S3Server, azurite, s3_server

CLOCK, IDS = SystemClock(), RandomIds()

NO_TOKENS = json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""})
"""Credentials without OAuth: without them, obstore would use those of this machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Server]:
    async with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("lake")
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def azure(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AzureServer]:
    async with azurite(tmp_path_factory.mktemp("azure")) as server:
        await server.container("lake")
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[str]:
    with fake_gcs.fake_gcs("lake") as endpoint:
        yield endpoint


@pytest.fixture(params=["memory", "file", "s3", "azure", "gcs"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns a new URL for each test, and sets endpoint and credentials in the environment."""
    kind, folder = request.param, IDS.new()
    if kind == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
        return f"s3://lake/{folder}"
    if kind == "azure":
        azure: AzureServer = request.getfixturevalue("azure")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", azure.account_name)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azure.account_key)
        return f"az://lake/{folder}/deep"
    if kind == "gcs":
        monkeypatch.setenv("GOOGLE_BASE_URL", request.getfixturevalue("gcs"))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", NO_TOKENS)
        return f"gs://lake/{folder}"
    return f"file://{tmp_path}/lake%20house" if kind == "file" else "memory"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ObjectStore]:
    store = MemoryObjectStore(CLOCK) if url == "memory" else open_store(url, CLOCK, IDS)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(url: str) -> AsyncIterator[ObjectStore]:
    async with opened(url) as store:
        yield store


async def listed(store: ObjectStore, prefix: str = "", after: str = "") -> list[ObjectInfo]:
    return [info async for page in store.walk(prefix, after) for info in page]


async def keys(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [info.key for info in await listed(store, prefix, after)]


async def fill(store: ObjectStore, *names: str) -> None:
    await asyncio.gather(*(store.put(name, [name.encode()]) for name in names))


# Writing


async def test_a_put_can_be_read_back(store: ObjectStore) -> None:
    await store.put("a/b/c", [b"hello"])
    assert bytes(await store.get("a/b/c")) == b"hello"


async def test_put_replaces_an_existing_object(store: ObjectStore) -> None:
    await store.put("k", [b"a longer first body"])
    await store.put("k", [b"second"])
    assert bytes(await store.get("k")) == b"second"
    assert (await store.head("k")).size == 6


async def test_body_may_have_buffers_of_any_type(store: ObjectStore) -> None:
    view = memoryview(b"--cdef--")[2:6]
    signed = memoryview(pa.py_buffer(b"kl"))  # the buffer type of Arrow's writers
    body: list[Buffer] = [b"ab", view, b"", bytearray(b"gh"), memoryview(bytearray(b"ij")), signed]
    await store.put("put", body)
    await store.create("created", tuple(body))
    assert bytes(await store.get("put")) == bytes(await store.get("created")) == b"abcdefghijkl"


async def test_buffers_may_be_used_again_after_the_write(store: ObjectStore) -> None:
    buffer = bytearray(b"first")
    await store.put("k", [buffer])
    buffer[:] = b"other bytes"
    assert bytes(await store.get("k")) == b"first"


async def test_body_may_have_very_many_buffers(store: ObjectStore) -> None:
    pieces = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    await store.put("k", pieces)
    assert bytes(await store.get("k")) == b"".join(pieces)


@pytest.mark.parametrize("body", [[], [b""], [b"", b""]], ids=["no buffers", "one empty", "two empty"])
async def test_an_object_may_be_empty(store: ObjectStore, body: Sequence[Buffer]) -> None:
    await store.create("empty", body)
    assert bytes(await store.get("empty")) == b""
    assert (await store.head("empty")).size == 0
    assert [bytes(piece) for piece in await store.get_ranges("empty", [Span(0, 0)])] == [b""]
    with pytest.raises(OutOfRange):
        await store.get_ranges("empty", [Span(0, 1)])


async def test_a_large_object(store: ObjectStore) -> None:
    block = bytes(range(256)) * 4096
    await store.put("large", [block] * 12)
    assert (await store.head("large")).size == 12 * MiB
    assert memoryview(await store.get("large")) == block * 12
    [tail] = await store.get_ranges("large", [Span(12 * MiB - 3, 12 * MiB)])
    assert bytes(tail) == b"\xfd\xfe\xff"


async def test_create_conflicts_when_the_key_exists(store: ObjectStore) -> None:
    await store.create("k", [b"first"])
    with pytest.raises(Conflict):
        await store.create("k", [b"second"])
    await store.delete(["k"])
    await store.create("k", [b"third"])
    assert bytes(await store.get("k")) == b"third"


async def test_large_create_that_conflicts_changes_nothing(store: ObjectStore) -> None:
    """A server may close the connection before it has read the body; the result is then Uncertain (an Unavailable)."""
    await store.create("k", [b"first"])
    with pytest.raises((Conflict, Unavailable)):
        await store.create("k", [bytes(MiB)] * 12)
    assert bytes(await store.get("k")) == b"first"


async def test_one_of_concurrent_creates_succeeds(store: ObjectStore) -> None:
    for round_number in range(20):
        key = f"race/{round_number}"
        creates = [store.create(key, [b"creator %d" % number]) for number in range(8)]
        answers = await asyncio.gather(*creates, return_exceptions=True)
        winners = [number for number, answer in enumerate(answers) if answer is None]
        assert len(winners) == 1, answers
        assert sum(isinstance(answer, Conflict) for answer in answers) == 7, answers
        assert bytes(await store.get(key)) == b"creator %d" % winners[0]


# Reading


async def test_ranges_are_returned_in_order_of_the_spans(store: ObjectStore) -> None:
    await store.put("k", [b"0123456789"])
    spans = [Span(7, 10), Span(0, 3), Span(2, 8), Span(0, 10), Span(5, 5), Span(0, 3), Span(10, 10)]
    answers = [bytes(piece) for piece in await store.get_ranges("k", spans)]
    assert answers == [b"789", b"012", b"234567", b"0123456789", b"", b"012", b""]
    assert await store.get_ranges("k", []) == []


async def test_ranges_far_apart(store: ObjectStore) -> None:
    block = bytes(range(256)) * 4096
    await store.put("k", [block] * 8)
    spans = [Span(index * MiB + index, index * MiB + index + 4) for index in (7, 0, 3, 5, 2)]
    answers = await store.get_ranges("k", spans)
    assert [bytes(piece) for piece in answers] == [bytes(range(start, start + 4)) for start in (7, 0, 3, 5, 2)]


@pytest.mark.parametrize(
    "spans",
    [
        [Span(0, 11)],
        [Span(10, 11)],
        [Span(20, 30)],
        [Span(0, 2), Span(9, 12)],
        [Span(0, 2), Span(50, 60)],
        [Span(11, 11)],
    ],
    ids=str,
)
async def test_range_beyond_the_end_is_out_of_range(store: ObjectStore, spans: list[Span]) -> None:
    await store.put("k", [b"0123456789"])
    with pytest.raises(OutOfRange, match="beyond"):
        await store.get_ranges("k", spans)


@pytest.mark.parametrize("span", [Span(3, 2), Span(-1, 2)])
async def test_invalid_range_is_rejected(store: ObjectStore, span: Span) -> None:
    await store.put("k", [b"0123456789"])
    with pytest.raises(Rejected):
        await store.get_ranges("k", [span])


async def test_head_returns_size_and_time(store: ObjectStore) -> None:
    before_ms = CLOCK.now_ms()
    await store.put("a/k", [b"hello"])
    info = await store.head("a/k")
    assert info[:2] == ("a/k", 5)
    assert before_ms - 2000 <= info.modified_ms <= CLOCK.now_ms() + 2000
    assert await listed(store, "a") == [info]


async def test_missing_object_is_missing_in_every_call(store: ObjectStore) -> None:
    await store.put("there/k", [b"x"])
    for key in ("no", "there", "there/no", "no/no"):
        with pytest.raises(Missing):
            await store.get(key)
        with pytest.raises(Missing):
            await store.head(key)
        with pytest.raises(Missing):
            await store.get_ranges(key, [Span(0, 1)])
        with pytest.raises(Missing):
            await store.get_ranges(key, [Span(0, 0)])


# Listing and deleting


async def test_walk_prefix_matches_whole_segments(store: ObjectStore) -> None:
    await fill(store, "a/b/1", "a/b/2/x", "a/bc/1", "a/b-c", "ab/1", "z")
    assert await keys(store, "a/b") == await keys(store, "a/b/") == ["a/b/1", "a/b/2/x"]
    assert await keys(store, "a") == ["a/b-c", "a/b/1", "a/b/2/x", "a/bc/1"]
    assert await keys(store) == ["a/b-c", "a/b/1", "a/b/2/x", "a/bc/1", "ab/1", "z"]
    assert await keys(store, "z") == await keys(store, "none") == await keys(store, "a/b/1") == []


async def test_walk_begins_after_a_key(store: ObjectStore) -> None:
    everything = ["a/b-c", "a/b/1", "a/b/2/x", "a/b/3", "a/bc/1", "b"]
    await fill(store, *everything)
    for index, key in enumerate(everything):
        assert await keys(store, "", key) == everything[index + 1 :]
    assert await keys(store, "a", "a/b/2") == ["a/b/2/x", "a/b/3", "a/bc/1"]
    assert await keys(store, "a/b", "a/b/2/x") == ["a/b/3"]
    assert await keys(store, "a", "zzz") == []
    assert await keys(store, "a/b", "a") == ["a/b/1", "a/b/2/x", "a/b/3"]


async def test_walk_yields_many_pages(store: ObjectStore) -> None:
    names = sorted(f"many/{number % 3}/{number:05d}" for number in range(2345))
    for first in range(0, len(names), 100):
        await fill(store, *names[first : first + 100])
    assert await keys(store, "many") == names
    assert await keys(store, "many", names[1500]) == names[1501:]
    assert all([len(page) <= 1000 async for page in store.walk("many")])
    await store.delete(names)
    assert await keys(store) == []


async def test_walk_can_be_closed_early(store: ObjectStore) -> None:
    await fill(store, "a/1", "a/2")
    async for page in store.walk("a"):
        assert page
        break


async def test_delete_ignores_missing_objects(store: ObjectStore) -> None:
    await fill(store, "d/1", "d/2", "d/3", "d/4")
    await store.delete(["d/1", "d/no", "d/3", "none/at/all", "d/4", "d/4"])
    assert await keys(store) == ["d/2"]
    await store.delete(["d/2"])
    await store.delete(["d/2"])
    await store.delete([])
    assert await keys(store) == []


# Keys

WEIRD = [
    "sp ace", "plus+and", "per%41cent", "eq=x&y", "~tilde", "br[1]{2}", "hash#q?r", "col:on", "a@!$'()*,;", "st*r",
    '"quoted"', "..dots", ".hidden", "pi|pe", "<>^`", "ümlaut", "日本", "😀", "-dash", "x" * 255, "UPPER", "upper",
]  # fmt: skip


async def test_unusual_valid_keys_are_accepted(store: ObjectStore) -> None:
    names = [f"w/{name}" for name in WEIRD]
    await fill(store, *names)
    for name in names:
        assert bytes(await store.get(name)) == name.encode()
        assert (await store.head(name)).key == name
        assert len(await store.get_ranges(name, [Span(0, 1)])) == 1
    assert await keys(store) == sorted(names)
    for index, name in enumerate(sorted(names)):
        assert await keys(store, "w", name) == sorted(names)[index + 1 :]
    await store.delete(names)
    assert await keys(store) == []


@pytest.mark.parametrize(
    "key",
    ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\nb", "a\0b", "a\\b", "x" * 256, "a/" * 500],
)
async def test_illegal_keys_are_rejected(store: ObjectStore, key: str) -> None:
    for call in (
        store.put(key, [b"x"]),
        store.create(key, [b"x"]),
        store.get(key),
        store.get_ranges(key, [Span(0, 1)]),
        store.head(key),
        store.delete([key]),
    ):
        with pytest.raises(Rejected, match="object key"):
            await call


# Startup


async def test_startup_check_succeeds(store: ObjectStore) -> None:
    found = await check_store(store, "the store", CLOCK, IDS)
    assert abs(found.clock_offset_ms) < 2000
    check_clock(found, "the store")
    assert await keys(store) == []


async def test_missing_bucket_is_misconfigured(url: str) -> None:
    if not url.startswith(("s3", "az", "gs")):
        pytest.skip("has no buckets")
    async with opened(url.replace("lake", "nowhere", 1)) as store:
        for call in (
            store.put("k", [b"x"]),
            store.create("k", [b"x"]),
            store.delete(["k"]),
            check_store(store, url, CLOCK, IDS),
        ):
            with pytest.raises(Misconfigured, match=r"the bucket does not exist\. Create it") as raised:
                await call
            assert "\n" not in str(raised.value)
        with pytest.raises(Misconfigured):
            await keys(store)


async def test_wrong_credentials_are_misconfigured(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not url.startswith(("s3", "az")):
        pytest.skip("asks for none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    async with opened(url) as store:
        with pytest.raises(Misconfigured, match="Check the credentials") as raised:
            await check_store(store, url, CLOCK, IDS)
    assert "\n" not in str(raised.value)
    assert "wrong" not in str(raised.value)


async def test_endpoint_without_a_listener_is_unavailable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not url.startswith(("s3", "az", "gs")):
        pytest.skip("has no endpoint")
    for name in ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with opened(url) as store:
        with pytest.raises(Unavailable, match=r"no connection \(connection refused\)\. Check the endpoint") as raised:
            await check_store(store, url, CLOCK, IDS)
    assert "\n" not in str(raised.value)


def test_fake_gcs_accepts_many_concurrent_connections() -> None:
    """No connection is accepted yet, as on a busy machine: each one must still be established and kept."""
    with fake_gcs.FakeGcsServer(("127.0.0.1", 0), fake_gcs._Handler) as server, ExitStack() as connections:
        for _ in range(200):
            connections.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=2))
