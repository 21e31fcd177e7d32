"""The parser process: limits, replacement after failures, temporary files and comparisons."""

import asyncio
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.harness.typed.toy_schema_format import FieldList

from lakestream.coordination.schema_registry import parser_client
from lakestream.coordination.schema_registry.effective_config import CompatibilityLevel
from lakestream.coordination.schema_registry.errors import InvalidSchema
from lakestream.coordination.schema_registry.parser_client import SchemaParserClient
from lakestream.coordination.schema_registry.parser_main import CanonicalText, OlderSource, Parser, PlainText
from lakestream.errors import Unavailable
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.types import Struct

ORDINARY = Source(Format.AVRO, '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
PLAIN = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


ENDLESS: Final = Source(Format.AVRO, '"endless"')
PROGRAM: Final = """
from lakestream.coordination.schema_registry.parser_main import RequestHandler
from lakestream.aio.worker_loop import serve
parser = RequestHandler()
def answer(request):
    while b"endless" in request:
        pass
    return parser.respond(request)
serve(answer, 200 << 20)
"""
"""The parser with a small memory limit, and an endless loop for one schema."""


def doubling(leaf: str, depth: int = 60) -> Source:
    inner: Any = leaf
    for number in reversed(range(depth)):
        again = leaf if number == depth - 1 else f"R{number + 1}"
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        inner = {"type": "record", "name": f"R{number}", "fields": fields}
    return Source(Format.AVRO, json.dumps(inner))


@pytest.fixture
async def parser() -> AsyncIterator[SchemaParserClient]:
    parser = SchemaParserClient()
    yield parser
    await parser.close()


def pid_of(parser: SchemaParserClient) -> int:
    assert parser.worker.process is not None
    return parser.worker.process.pid


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)


def set_program(parser: SchemaParserClient, program: str) -> None:
    parser.worker.command = (*parser.worker.command[:1], "-c", program)


async def test_process_is_started_for_the_first_schema(parser: SchemaParserClient) -> None:
    assert parser.worker.process is None
    assert await parser.plain(ORDINARY) == PLAIN
    assert parser.worker.process is not None


async def test_result_is_cached(parser: SchemaParserClient) -> None:
    assert await parser.plain(ORDINARY) == PLAIN
    assert await parser.canonical(ORDINARY) == '{"name":"R","type":"record","fields":[{"name":"a","type":"int"}]}'
    os.kill(pid_of(parser), signal.SIGSTOP)
    assert await parser.plain(Source(ORDINARY.format, ORDINARY.text)) == PLAIN
    os.kill(pid_of(parser), signal.SIGCONT)


async def test_schema_is_rejected_when_it_exceeds_the_cpu_limit_and_the_next_one_is_parsed(
    parser: SchemaParserClient,
) -> None:
    set_program(parser, PROGRAM)
    parser.worker.cpu_s_max = 0.5
    with pytest.raises(InvalidSchema, match=r"of type AVRO: parsing it takes longer than 0\.5 s: make it smaller"):
        await parser.plain(ENDLESS)
    with pytest.raises(InvalidSchema, match=r"comparing it with version 1 takes longer than 0\.5 s"):
        await parser.incompatibilities(CompatibilityLevel.BACKWARD, ORDINARY, [OlderSource(1, ENDLESS)])
    assert await parser.plain(ORDINARY) == PLAIN


async def test_ordinary_schema_is_parsed_when_many_schemas_exceed_the_cpu_limit(parser: SchemaParserClient) -> None:
    set_program(parser, PROGRAM)
    parser.worker.cpu_s_max = 0.2
    others = [Source(Format.AVRO, f'"endless{number}"') for number in range(10)]
    outcomes = await asyncio.gather(
        *(parser.plain(one) for one in others), parser.plain(ORDINARY), return_exceptions=True
    )
    assert all(isinstance(one, InvalidSchema) for one in outcomes[:10])
    assert outcomes[10] == PLAIN


async def test_retry_is_rejected_immediately_when_the_schema_ended_the_process(parser: SchemaParserClient) -> None:
    set_program(parser, PROGRAM)
    began_s = time.monotonic()
    outcomes = await asyncio.gather(*(parser.plain(ENDLESS) for _ in range(100)), return_exceptions=True)
    assert all(isinstance(one, InvalidSchema) for one in outcomes)
    assert time.monotonic() - began_s < 20


async def test_rejected_schema_is_parsed_again_after_a_while(
    parser: SchemaParserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_program(parser, PROGRAM)
    parser.worker.cpu_s_max = 0.2
    monkeypatch.setattr(parser_client, "REJECTED_S", 0.01)
    with pytest.raises(InvalidSchema, match="takes longer"):
        await parser.plain(ENDLESS)
    set_program(parser, PROGRAM.replace("endless", "nothing"))
    await asyncio.sleep(0.01)
    with pytest.raises(InvalidSchema, match="the type is not defined"):
        await parser.plain(ENDLESS)


async def test_comparison_takes_little_memory_when_records_double(parser: SchemaParserClient) -> None:
    set_program(parser, PROGRAM)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = await parser.incompatibilities(
        CompatibilityLevel.BACKWARD, doubling("string"), [OlderSource(1, doubling("int"))]
    )
    assert len(found) == 101
    assert found[-1] == "and more"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


async def test_request_is_repeated_in_a_new_process_when_the_old_one_has_no_memory(parser: SchemaParserClient) -> None:
    """If cached schemas used up the memory, the request is repeated. If the request itself did, it is rejected."""
    program = """
import sys
from lakestream.aio.worker_loop import serve
def answer(request):
    global count
    count += 1
    if request == b"large" or count > 2:
        raise MemoryError
    return request
count = 0
serve(answer, 1 << 30)
"""
    set_program(parser, program)
    worker = parser.worker
    assert [await worker.call(lambda number: f"{number}".encode()) for _ in range(5)] == [b"1", b"1", b"2", b"2", b"3"]


async def test_schema_is_rejected_when_it_exceeds_the_memory_limit(parser: SchemaParserClient) -> None:
    program = "from lakestream.aio.worker_loop import serve; serve(lambda request: bytes(1 << 31), 1 << 30)"
    set_program(parser, program)
    with pytest.raises(InvalidSchema, match="takes more memory than its limit"):
        await parser.plain(ORDINARY)


async def test_process_is_replaced_when_it_hangs(parser: SchemaParserClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await parser.plain(ORDINARY)
    os.kill(pid_of(parser), signal.SIGSTOP)
    monkeypatch.setattr(parser_client, "RESPONSE_S_MAX", 0.2)
    with pytest.raises(Unavailable, match=r"not parsed within 0\.2 s"):
        await parser.plain(Source(Format.AVRO, '"int"'))
    monkeypatch.undo()
    assert await parser.plain(Source(Format.AVRO, '"int"')) == '"int"'


async def test_close_does_not_wait_for_a_request() -> None:
    parser = SchemaParserClient()
    set_program(parser, PROGRAM)
    parser.worker.cpu_s_max = 60
    waiting = [asyncio.create_task(parser.plain(one)) for one in (ENDLESS, ORDINARY)]
    await asyncio.sleep(0.5)
    began_s = time.monotonic()
    await parser.close()
    for one in waiting:
        with pytest.raises(Unavailable, match="the schema parser"):
            await one
    assert time.monotonic() - began_s < 10


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files that the operator configured."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


async def test_temporary_files_are_deleted_when_the_process_ends(temporary: Path, parser: SchemaParserClient) -> None:
    fields = "".join(f"int32 f{number} = {number + 20_000};" for number in range(30_000))
    parsing = asyncio.create_task(parser.plain(Source(Format.PROTOBUF, f'syntax = "proto3"; message M {{ {fields} }}')))
    await wait_until(lambda: list(temporary.glob("*/lakestream-protoc-*/errors")))
    parsing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parsing
    assert list(temporary.iterdir()) == []
    assert await parser.plain(ORDINARY) == PLAIN
    assert len(list(temporary.iterdir())) == 1
    await parser.close()
    assert list(temporary.iterdir()) == []


async def test_temporary_folder_is_deleted_when_the_broker_is_killed(temporary: Path) -> None:
    program = f"""
import asyncio, os, signal
from lakestream.coordination.schema_registry.parser_client import SchemaParserClient
from lakestream.schemas.model import Format, Source
async def main():
    parser = SchemaParserClient()
    await parser.plain(Source(Format.AVRO, {ORDINARY.text!r}))
    print(os.listdir({str(temporary)!r}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    broker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    said, _ = await broker.communicate()
    assert b"lakestream-worker-" in said
    await wait_until(lambda: not list(temporary.iterdir()))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (Source(Format.AVRO, "{"), "type AVRO: the schema is not valid JSON"),
        (Source(Format.JSON, '{"type": 3}'), "type JSON: not a valid JSON Schema: at '#/type'"),
        (Source(Format.PROTOBUF, "message"), "type PROTOBUF: the Protobuf schema does not compile"),
        (Source(Format.AVRO, '{"type": "enum", "name": "E", "symbols": [], "doc": "\\ud800"}'), "unpaired surrogate"),
    ],
    ids=["avro", "json", "protobuf", "unpaired surrogate"],
)
async def test_invalid_schema_is_rejected_with_the_reason(parser: SchemaParserClient, source: Source, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        await parser.canonical(source)


async def test_comparison_is_rejected_with_the_older_version_that_cannot_be_parsed(parser: SchemaParserClient) -> None:
    older = [OlderSource(1, ORDINARY), OlderSource(2, Source(Format.AVRO, '"unknown"'))]
    with pytest.raises(InvalidSchema, match="the older version 2 cannot be parsed"):
        await parser.incompatibilities(CompatibilityLevel.FULL_TRANSITIVE, ORDINARY, older)


async def test_older_versions_are_compared_in_several_requests(
    parser: SchemaParserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser_client, "COMPARED_MAX", 2)
    older = [OlderSource(number, Source(Format.AVRO, '"string"')) for number in range(1, 6)]
    found = await parser.incompatibilities(CompatibilityLevel.BACKWARD_TRANSITIVE, Source(Format.AVRO, '"int"'), older)
    assert [one.partition(":")[0] for one in found] == [
        f"the new schema cannot read version {number}" for number in range(1, 6)
    ]
    assert await parser.incompatibilities(CompatibilityLevel.NONE, ORDINARY, older) == []


async def test_comparison_is_repeated_in_halves_when_it_exceeds_the_cpu_limit(parser: SchemaParserClient) -> None:
    """Each older version takes 0.1 s; all of them together exceed the limit of one request."""
    slow = """
import time
def answer(request):
    until_s = time.process_time() + 0.1 * request.count(b"slow")
    while time.process_time() < until_s:
        pass
    return parser.respond(request)
serve(answer"""
    set_program(parser, PROGRAM.replace("serve(answer", slow))
    parser.worker.cpu_s_max = 0.5
    older = [
        OlderSource(number, Source(Format.AVRO, f'{{"type": "string", "slow": {number}}}')) for number in range(12)
    ]
    found = await parser.incompatibilities(CompatibilityLevel.BACKWARD_TRANSITIVE, Source(Format.AVRO, '"int"'), older)
    assert [one.partition(":")[0] for one in found] == [f"the new schema cannot read version {n}" for n in range(12)]
    older[7] = OlderSource(7, Source(Format.AVRO, f'"{"slow" * 10}"'))
    with pytest.raises(InvalidSchema, match=r"comparing it with version 7 takes longer than 0\.5 s"):
        await parser.incompatibilities(CompatibilityLevel.BACKWARD_TRANSITIVE, Source(Format.AVRO, '"int"'), older)


async def test_other_requests_are_served_between_older_protobuf_versions(parser: SchemaParserClient) -> None:
    await parser.plain(Source(Format.AVRO, '"int"'))
    text = 'syntax = "proto3"; message M {{ int32 f = 1; /* {} */ }}'
    older = [OlderSource(number, Source(Format.PROTOBUF, text.format(number))) for number in range(1, 21)]
    comparing = asyncio.create_task(
        parser.incompatibilities(CompatibilityLevel.FULL_TRANSITIVE, older[0].source, older[1:])
    )
    await asyncio.sleep(0.1)
    assert await parser.plain(ORDINARY) == PLAIN
    assert not comparing.done()
    assert await comparing == []


async def test_references_are_parsed_and_resolved(parser: SchemaParserClient) -> None:
    inner = Reference("R", ORDINARY.text)
    outer = '{"type":"record","name":"T","fields":[{"name":"r","type":"R"}]}'
    with_references = Source(Format.AVRO, outer, (inner,))
    resolved = Source(Format.AVRO, outer.replace('"R"', ORDINARY.text))
    assert await parser.is_resolved(resolved, with_references)
    assert not await parser.is_resolved(ORDINARY, with_references)
    assert json.loads(await parser.formatted(with_references, "resolved"))["fields"][0]["type"]["name"] == "R"


def chain(leaf: str, depth: int) -> Source:
    """Returns a schema with a chain of definitions, each of which refers to the next."""
    inner = {
        f"d{n}": {"type": "object", "properties": {"next": {"$ref": f"#/definitions/d{n + 1}"}}} for n in range(depth)
    }
    whole = {"$ref": "#/definitions/d0", "definitions": {**inner, f"d{depth}": {"type": leaf}}}
    return Source(Format.JSON, json.dumps(whole))


async def test_comparison_is_rejected_when_definitions_are_nested_too_deeply(parser: SchemaParserClient) -> None:
    for leaf in ("integer", "string"):
        await parser.plain(chain(leaf, 300))
    with pytest.raises(InvalidSchema, match="the schemas are nested deeper than 150 levels"):
        await parser.incompatibilities(
            CompatibilityLevel.BACKWARD, chain("string", 300), [OlderSource(1, chain("integer", 300))]
        )
    found = await parser.incompatibilities(
        CompatibilityLevel.BACKWARD, chain("string", 140), [OlderSource(1, chain("integer", 140))]
    )
    assert len(found) == 1


class Panic(BaseException):
    """A panic, as Rust libraries raise it."""


@pytest.mark.parametrize("error", [Panic(), RecursionError()], ids=["panic", "recursion"])
@pytest.mark.parametrize("request_of", [PlainText, CanonicalText])
def test_schema_is_rejected_when_its_columns_cannot_be_derived(error: BaseException, request_of: Any) -> None:
    class Deep(FieldList):
        def shape(self) -> Struct:
            raise error

    response = Parser(lambda source: Deep(source, frozenset())).respond(request_of(Source(Format.JSON, "[]")))
    assert response.invalid == "Invalid schema of type JSON: it is nested too deeply"
