"""The metadata parser: the same results in the thread and in the process, limits, and its restart after failures."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import pytest
import pytest_asyncio
from tests.harness.table.large_metadata import LOCATION, encoded, metadata

from lakestream.aio.single_flight import SingleFlightCache
from lakestream.aio.threads import Threads
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.metadata_files import MetadataFile
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS
from lakestream.data.table.read import metadata_parser_client as client
from lakestream.data.table.read.metadata_parser_client import PROCESS_BYTES_MIN, MetadataParserClient
from lakestream.data.table.read.metadata_parser_main import RESPONSE_BYTES_MAX, TableState
from lakestream.errors import Corrupt, Unavailable
from lakestream.model import MiB

LARGE: Final = 400
"""Snapshots whose metadata is parsed in the process."""
PROGRAM: Final = """
import os, signal, sys
from lakestream.aio.worker_loop import serve
from lakestream.data.table.read.metadata_parser_main import respond
def handle(raw):
    if b"endless" in raw:
        while True:
            pass
    if b"crash" in raw:
        os.kill(os.getpid(), signal.SIGSEGV)
    if b"memory" in raw:
        raise MemoryError
    return respond(raw)
serve(handle, 1 << 30)
"""
"""The parser, which also handles these words as it handles metadata that is too large for it."""


@pytest_asyncio.fixture
async def parser() -> AsyncIterator[MetadataParserClient]:
    threads = Threads()
    parser = MetadataParserClient(threads)
    yield parser
    await parser.close()
    await threads.close()


def file_of(content: dict[str, Any], name: str = "1") -> MetadataFile:
    return MetadataFile(f"{LOCATION}/metadata/{name}.metadata.json", encoded(content))


def large(*words: str) -> MetadataFile:
    content = metadata(LARGE)
    return file_of({**content, "properties": {**content["properties"], "words": " ".join(words)}}, "-".join(words))


def pid_of(parser: MetadataParserClient) -> int:
    assert parser.worker.process is not None
    return parser.worker.process.pid


def set_program(parser: MetadataParserClient, program: str = PROGRAM) -> None:
    parser.worker.command = (*parser.worker.command[:1], "-c", program)


async def in_process(parser: MetadataParserClient, monkeypatch: pytest.MonkeyPatch, file: MetadataFile) -> TableState:
    """Parses it in the process, whatever its size is."""
    with monkeypatch.context() as patched:
        patched.setattr(client, "PROCESS_BYTES_MIN", 0)
        return await parser.parse("default.orders", file)


async def in_thread(parser: MetadataParserClient, monkeypatch: pytest.MonkeyPatch, file: MetadataFile) -> TableState:
    with monkeypatch.context() as patched:
        patched.setattr(client, "PROCESS_BYTES_MIN", 1 << 40)
        return await parser.parse("default.orders", file)


async def test_small_metadata_is_parsed_without_the_process(parser: MetadataParserClient) -> None:
    small = file_of(metadata(20))
    assert len(small.raw) < PROCESS_BYTES_MIN
    state = await parser.parse("default.orders", small)
    assert parser.worker.process is None
    listed = metadata(20)["snapshots"][-1]["manifest-list"]
    assert state == TableState(LOCATION, listed, {0: 5, 7: 9}, {0: 0}, False)


@pytest.mark.parametrize("snapshots", [0, 1, LARGE, 5_000])
async def test_result_is_the_same_in_the_thread_and_in_the_process(
    parser: MetadataParserClient, monkeypatch: pytest.MonkeyPatch, snapshots: int
) -> None:
    file = file_of(metadata(snapshots))
    state = await in_process(parser, monkeypatch, file)
    assert parser.worker.process is not None
    assert state == await in_thread(parser, monkeypatch, file)
    listed = [one["manifest-list"] for one in metadata(snapshots)["snapshots"]]
    assert state == TableState(LOCATION, listed[-1] if listed else None, {0: 5, 7: 9}, {0: 0}, False)


def without_columns(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "schemas": [{**content["schemas"][0], "fields": []}]}


def with_offsets(content: dict[str, Any], text: str) -> dict[str, Any]:
    return {**content, "properties": {NEXT_OFFSETS: text}}


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (without_columns, IncompatibleTable, "table default.orders: column _stream was dropped, without which"),
        (lambda content: with_offsets(content, '{"0":4}'), IncompatibleTable, "table default.orders: main is at"),
        (lambda _: metadata(LARGE, offsets=f'{{"0":{2**63}}}'), IncompatibleTable, "or an offset is above"),
        (lambda content: with_offsets(content, "{" * 9_000), IncompatibleTable, "not a JSON object of partition"),
        (lambda content: {**content, "table-uuid": 1}, Corrupt, r"1\.metadata\.json is damaged: not the metadata of"),
        (
            lambda content: {**content, "schemas": [{**content["schemas"][0], "fields": [{}]}]},
            Corrupt,
            r"1\.metadata\.json is damaged: KeyError: 'id'",
        ),
    ],
    ids=["columns", "rolled back", "large offset", "invalid offsets", "not valid", "no field id"],
)
async def test_error_is_the_same_in_the_thread_and_in_the_process(
    parser: MetadataParserClient, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], kind: Any, reason: str
) -> None:
    file = file_of(change(metadata(LARGE)))
    errors = []
    for parse in (in_thread, in_process):
        with pytest.raises(kind, match=reason) as raised:
            await parse(parser, monkeypatch, file)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "raw", [b"{" + b" " * PROCESS_BYTES_MIN, b"[" * PROCESS_BYTES_MIN, b"\xff" * PROCESS_BYTES_MIN]
)
async def test_damaged_file_is_evicted_from_the_cache(parser: MetadataParserClient, raw: bytes) -> None:
    evicted: list[str] = []
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"orders/x\.metadata\.json is damaged") as raised:
            await parser.parse("default.orders", MetadataFile("orders/x.metadata.json", raw, evicted.append))
        assert not isinstance(raised.value, IncompatibleTable)
    assert evicted == ["orders/x.metadata.json"] * 2


async def test_table_is_incompatible_when_the_response_would_be_too_large(parser: MetadataParserClient) -> None:
    offsets = "{" + ",".join(f'"{n}":{2**62}' for n in range(RESPONSE_BYTES_MAX // 10)) + "}"
    with pytest.raises(IncompatibleTable, match=r"table default\.orders: lakestream\.next-offsets, partition specs"):
        await parser.parse("default.orders", file_of(metadata(1, offsets=offsets)))


@pytest.mark.parametrize(
    ("word", "reason"),
    [("endless", r"takes longer than 0\.3 s"), ("crash", "ended with SIGSEGV"), ("memory", "takes more memory than")],
)
async def test_table_is_incompatible_when_its_metadata_ends_the_process(
    parser: MetadataParserClient, word: str, reason: str
) -> None:
    set_program(parser)
    parser.worker.cpu_s_max = 0.3
    for _ in range(2):
        with pytest.raises(IncompatibleTable) as raised:
            await parser.parse("default.orders", large(word))
        assert str(raised.value).startswith(
            f"table default.orders: parsing its metadata file {LOCATION}/metadata/{word}.metadata.json "
        )
        assert str(raised.value).endswith(": expire snapshots")
        raised.match(reason)
    assert (await parser.parse("default.orders", large("next"))).next_offsets == {0: 5, 7: 9}


async def test_metadata_that_ended_the_process_is_parsed_again_after_a_while(
    parser: MetadataParserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_program(parser)
    monkeypatch.setattr(client, "REJECTED_S", 0.01)
    with pytest.raises(IncompatibleTable, match="SIGSEGV"):
        await parser.parse("default.orders", large("crash"))
    set_program(parser, PROGRAM.replace("crash", "nothing"))
    await asyncio.sleep(0.02)
    assert (await parser.parse("default.orders", large("crash"))).next_offsets == {0: 5, 7: 9}


async def test_table_is_incompatible_when_the_process_has_no_memory_for_its_metadata(
    parser: MetadataParserClient,
) -> None:
    set_program(parser, PROGRAM.replace("1 << 30", "400 << 20"))
    with pytest.raises(IncompatibleTable, match="takes more memory than its limit: expire snapshots"):
        await parser.parse("default.orders", MetadataFile("m.metadata.json", b"[" + b"[]," * 30 * MiB + b"0]"))
    assert (await parser.parse("default.orders", large("next"))).next_offsets == {0: 5, 7: 9}


async def test_process_is_restarted_when_it_was_killed(parser: MetadataParserClient) -> None:
    first = await parser.parse("default.orders", large("a"))
    killed = pid_of(parser)
    os.kill(killed, signal.SIGKILL)
    with suppress(Unavailable):  # if its end was not noticed before the request
        await parser.parse("default.orders", large("a"))
    assert await parser.parse("default.orders", large("a")) == first
    assert pid_of(parser) != killed


async def test_process_ends_when_it_is_idle_and_is_started_again(parser: MetadataParserClient) -> None:
    set_program(parser, PROGRAM.replace("1 << 30", "1 << 30, 0.1"))
    first = await parser.parse("default.orders", large("a"))
    ended = parser.worker.process
    assert ended is not None
    async with asyncio.timeout(20):
        assert await ended.wait() == 0
    assert await parser.parse("default.orders", large("a")) == first
    assert pid_of(parser) != ended.pid


async def test_requests_are_handled_when_the_process_ends_idle_at_the_same_time(parser: MetadataParserClient) -> None:
    set_program(parser, PROGRAM.replace("1 << 30", "1 << 30, 0.02"))
    small_delays = [0.015, 0.02, 0.021, 0.025, 0.03]
    for delay_s in small_delays * 2:
        assert (await parser.parse("default.orders", large("a"))).next_offsets == {0: 5, 7: 9}
        await asyncio.sleep(delay_s)


async def test_request_is_unavailable_when_the_process_hangs(
    parser: MetadataParserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parser.parse("default.orders", large("a"))
    os.kill(pid_of(parser), signal.SIGSTOP)
    parser._requests = SingleFlightCache("table.metadata", 0, lambda _: 1, 0.2)
    with pytest.raises(Unavailable, match=r"table\.metadata: no response within"):
        await parser.parse("default.orders", large("a"))
    parser._requests = SingleFlightCache("table.metadata", 0, lambda _: 1, 20)
    assert (await parser.parse("default.orders", large("a"))).next_offsets == {0: 5, 7: 9}


async def test_cancelled_caller_does_not_end_the_process(parser: MetadataParserClient) -> None:
    await parser.parse("default.orders", large("a"))
    pid = pid_of(parser)
    file = file_of(metadata(20_000))
    for _ in range(3):
        one = asyncio.create_task(parser.parse("default.orders", file))
        await asyncio.sleep(0.01)
        one.cancel()
        await asyncio.wait([one])
    assert (await parser.parse("default.orders", file)).next_offsets == {0: 5, 7: 9}
    assert pid_of(parser) == pid


async def test_request_is_unavailable_when_too_many_wait(
    parser: MetadataParserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WAITING_MAX", 2)
    outcomes = await asyncio.gather(
        *(parser.parse("default.orders", large(str(number))) for number in range(4)), return_exceptions=True
    )
    assert [isinstance(one, Unavailable) for one in outcomes] == [False, False, True, True]
    assert "metadata of 2 other tables is being parsed: retry" in str(outcomes[3])


async def test_close_ends_the_process_during_a_request(parser: MetadataParserClient) -> None:
    set_program(parser)
    parser.worker.cpu_s_max = 60
    waiting = [asyncio.create_task(parser.parse("default.orders", large(word))) for word in ("endless", "next")]
    await asyncio.sleep(0.5)
    began_s = time.monotonic()
    await parser.close()
    for one in waiting:
        with pytest.raises((Unavailable, asyncio.CancelledError)):
            await one
    assert time.monotonic() - began_s < 10
    assert parser.worker.process is None


async def longest_pause_s(work: asyncio.Task[Any]) -> float:
    """Returns the most CPU time of this process between two turns of the event loop while `work` runs.

    CPU time, because other processes of the machine delay the event loop, too.
    """
    longest_s = 0.0
    while not work.done():
        before_s = time.process_time()
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.process_time() - before_s)
    return longest_s


async def test_event_loop_is_responsive_when_metadata_of_40_mib_is_parsed(parser: MetadataParserClient) -> None:
    file = file_of(metadata(60_000))
    assert len(file.raw) > 40 * MiB
    work = asyncio.create_task(parser.parse("default.orders", file))
    assert await longest_pause_s(work) < 0.05
    assert (await work).next_offsets == {0: 5, 7: 9}
