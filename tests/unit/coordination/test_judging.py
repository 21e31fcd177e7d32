"""The process that judges JSON: whatever becomes of it, a broker has an answer, and the next one is judged again."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from lakestream.coordination import judging
from lakestream.coordination.judging import Judges
from lakestream.data.typed.json_rules import rules_of
from lakestream.data.typed.judged import Rules
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


async def wrong(judges: Judges, rules: Rules, values: Sequence[bytes]) -> list[tuple[int, str]]:
    return await judges.wrong(rules, values, judges.deadline_s())


async def test_values_in_several_parts(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "BYTES_MAX", 5)
    values = [b"1", b'"aaaaaaaaa"', b"2", b"3", b'"b"', b"4"]
    assert [place for place, _ in await wrong(judges, INTEGER, values)] == [1, 4]
    monkeypatch.setattr(judging, "VALUES_MAX", 2)
    assert [place for place, _ in await wrong(judges, INTEGER, [b"1", b"2", b"{}", b"3", b"4"])] == [2]
    assert await wrong(judges, INTEGER, []) == []
    assert await wrong(judges, rules_of("true"), values) == []


async def test_rules_that_cannot_be_used(judges: Judges) -> None:
    ((place, reason),) = await wrong(judges, rules_of('{"pattern": "["}'), [b"1"])
    assert place == 0
    assert reason.startswith("the schema cannot be held against values: /pattern: ")


async def test_one_that_computes_for_ever_is_ended(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system, after so much computing; then there is another one."""
    monkeypatch.setattr(judging, "CPU_S_MAX", 0.1)
    assert await wrong(judges, rules_of(endless()), [b"1"]) == [
        (0, "holding the records against their schema takes longer than 0.1 s")
    ]
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG


async def test_what_computes_for_ever_is_not_tried_for_every_part(
    judges: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "CPU_S_MAX", 0.1)
    monkeypatch.setattr(judging, "VALUES_MAX", 1)
    began_s = time.monotonic()
    assert [place for place, _ in await wrong(judges, rules_of(endless()), [b"1"] * 1_000)] == list(range(1_000))
    assert time.monotonic() - began_s < 30


async def test_one_that_dies(judges: Judges) -> None:
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG
    dying = asyncio.create_task(wrong(judges, rules_of(endless()), [b"1"]))
    await asyncio.sleep(0.1)
    assert judges._process is not None
    os.kill(judges._process.pid, signal.SIGSEGV)
    assert await dying == [(0, "holding the records against their schema ended with SIGSEGV")]
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG


async def test_one_that_died_when_it_had_nothing_to_do(judges: Judges) -> None:
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG
    assert judges._process is not None
    os.kill(judges._process.pid, signal.SIGKILL)
    await judges._process.wait()
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG


@pytest.mark.parametrize(
    ("rules", "value", "reason"),
    [
        (rules_of('{"type": "object"}'), b"[" * 300 + b"1" + b"]" * 300, "it cannot be read: Recursion limit reached"),
        (rules_of('{"type": "object", "title": "\\udc00"}'), b"{}", "the schema cannot be held against values: "),
    ],
    ids=["nested deeply", "half of a character"],
)
async def test_what_the_validator_cannot_read(judges: Judges, rules: Rules, value: bytes, reason: str) -> None:
    """It is refused, and the judge goes on."""
    ((_, said),) = await wrong(judges, rules, [value])
    assert said.startswith(reason)
    assert judges._process is not None
    assert judges._process.returncode is None


async def test_one_that_somebody_ends(judges: Judges) -> None:
    """No fault of the records: their producer tries again. Who stops a broker with all that belongs to it does not."""
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG
    assert judges._process is not None
    os.kill(judges._process.pid, signal.SIGTERM)
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG
    ended = asyncio.create_task(wrong(judges, rules_of(endless()), [b"1"]))
    await asyncio.sleep(0.1)
    os.kill(judges._process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="ended with code -9"):
        await ended
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG


async def test_one_that_does_not_answer(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await wrong(judges, INTEGER, [b"1"]) == []
    assert judges._process is not None
    os.kill(judges._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(judging, "ANSWER_S_MAX", 0.2)
    with pytest.raises(Unavailable, match="within"):
        await wrong(judges, INTEGER, [b'"x"'])
    monkeypatch.undo()
    assert await wrong(judges, INTEGER, [b'"x"']) == WRONG


async def test_who_leaves_in_the_middle_harms_nobody(judges: Judges) -> None:
    gone = asyncio.create_task(wrong(judges, rules_of(endless()), [b"1"]))
    other = asyncio.create_task(wrong(judges, INTEGER, [b'"x"']))
    await asyncio.sleep(0.1)
    gone.cancel()
    assert await other == WRONG
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_one_that_cannot_be_started(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "COMMAND", (judging.COMMAND[0], "-c", "raise SystemExit(3)"))
    with pytest.raises(Unavailable, match="ended with code 3"):
        await wrong(judges, INTEGER, [b"1"])
    monkeypatch.setattr(judging, "COMMAND", ("/nowhere/python",))
    with pytest.raises(Unavailable, match="cannot be started"):
        await wrong(judges, INTEGER, [b"1"])
