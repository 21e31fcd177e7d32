"""The process that judges JSON: whatever becomes of it, a broker has an answer, and the next one is judged again."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator

import pytest

from lakestream.coordination import judging
from lakestream.coordination.judging import Judges
from lakestream.data.typed.json_rules import rules_of
from lakestream.errors import Unavailable

INTEGER = rules_of('{"type": "integer"}')
WRONG = [(0, '"x" is not of type "integer"')]


def endless() -> str:
    """Each part asks for the next one twice: 2^60 looks at one number."""
    parts: dict[str, object] = {"d0": {"type": "integer"}}
    for number in range(1, 60):
        parts[f"d{number}"] = {"allOf": [{"$ref": f"#/definitions/d{number - 1}"}] * 2}
    return json.dumps({"definitions": parts, "$ref": "#/definitions/d59"})


@pytest.fixture
async def judges() -> AsyncIterator[Judges]:
    judges = Judges()
    yield judges
    await judges.close()


async def test_values_in_several_parts(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "BYTES_MAX", 5)
    values = [b"1", b'"aaaaaaaaa"', b"2", b"3", b'"b"', b"4"]
    assert [place for place, _ in await judges.wrong(INTEGER, values)] == [1, 4]
    monkeypatch.setattr(judging, "VALUES_MAX", 2)
    assert [place for place, _ in await judges.wrong(INTEGER, [b"1", b"2", b"{}", b"3", b"4"])] == [2]
    assert await judges.wrong(INTEGER, []) == []
    assert await judges.wrong(rules_of("true"), values) == []


async def test_rules_that_cannot_be_used(judges: Judges) -> None:
    ((place, reason),) = await judges.wrong(rules_of('{"pattern": "["}'), [b"1"])
    assert place == 0
    assert reason.startswith("the schema cannot be held against values: /pattern: ")


async def test_one_that_computes_for_ever_is_ended(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system, after so much computing; then there is another one."""
    monkeypatch.setattr(judging, "CPU_S_MAX", 0.1)
    assert await judges.wrong(rules_of(endless()), [b"1"]) == [
        (0, "holding the records against their schema takes longer than 0.1 s")
    ]
    assert await judges.wrong(INTEGER, [b'"x"']) == WRONG


async def test_one_that_dies(judges: Judges) -> None:
    assert await judges.wrong(INTEGER, [b'"x"']) == WRONG
    assert judges._process is not None
    os.kill(judges._process.pid, signal.SIGSEGV)
    ((_, reason),) = await judges.wrong(INTEGER, [b'"x"'])
    assert reason == "holding the records against their schema ended with SIGSEGV"
    assert await judges.wrong(INTEGER, [b'"x"']) == WRONG


async def test_one_that_somebody_ends(judges: Judges) -> None:
    """No fault of the records: their producer tries again. Who stops a broker with all that belongs to it does not."""
    assert await judges.wrong(INTEGER, [b'"x"']) == WRONG
    assert judges._process is not None
    os.kill(judges._process.pid, signal.SIGTERM)
    assert await judges.wrong(INTEGER, [b'"x"']) == WRONG
    os.kill(judges._process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="ended with code -9"):
        await judges.wrong(INTEGER, [b'"x"'])
    assert await judges.wrong(INTEGER, [b'"x"']) == WRONG


async def test_one_that_does_not_answer(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await judges.wrong(INTEGER, [b"1"]) == []
    assert judges._process is not None
    os.kill(judges._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(judging, "ANSWER_S_MAX", 0.2)
    with pytest.raises(Unavailable, match="within"):
        await judges.wrong(INTEGER, [b'"x"'])
    monkeypatch.undo()
    assert await judges.wrong(INTEGER, [b'"x"']) == WRONG


async def test_who_leaves_in_the_middle_harms_nobody(judges: Judges) -> None:
    gone = asyncio.create_task(judges.wrong(rules_of(endless()), [b"1"]))
    other = asyncio.create_task(judges.wrong(INTEGER, [b'"x"']))
    await asyncio.sleep(0.1)
    gone.cancel()
    assert await other == WRONG
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_one_that_cannot_be_started(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "COMMAND", (judging.COMMAND[0], "-c", "raise SystemExit(3)"))
    with pytest.raises(Unavailable, match="ended with code 3"):
        await judges.wrong(INTEGER, [b"1"])
