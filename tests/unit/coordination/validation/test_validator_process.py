"""Values are validated in a child process. After any failure of it, the next request starts another process."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from lakestream.coordination.validation import validator_process
from lakestream.coordination.validation.validator_process import ValidatorProcess
from lakestream.data.typed.json_schema.messages import ValidatorSchema
from lakestream.data.typed.json_schema.validator_input import validator_schema
from lakestream.errors import Unavailable

INTEGER = validator_schema('{"type": "integer"}')
INVALID = [(0, '"x" is not of type "integer"')]


def endless() -> str:
    """Returns a schema whose parts each refer to the next one twice: 2^60 validations of one number."""
    parts: dict[str, object] = {"d0": {"type": "integer"}}
    for number in range(1, 60):
        parts[f"d{number}"] = {"allOf": [{"$ref": f"#/definitions/d{number - 1}"}] * 2}
    return json.dumps({"definitions": parts, "$ref": "#/definitions/d59"})


@pytest.fixture
async def validator() -> AsyncIterator[ValidatorProcess]:
    validator = ValidatorProcess()
    yield validator
    await validator.close()


async def find_invalid(
    validator: ValidatorProcess, schema: ValidatorSchema, values: Sequence[bytes]
) -> list[tuple[int, str]]:
    return await validator.find_invalid(schema, values, validator.deadline_s())


async def test_indexes_count_all_values_when_they_are_sent_in_several_requests(
    validator: ValidatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator_process, "BYTES_MAX", 5)
    values = [b"1", b'"aaaaaaaaa"', b"2", b"3", b'"b"', b"4"]
    assert [index for index, _ in await find_invalid(validator, INTEGER, values)] == [1, 4]
    monkeypatch.setattr(validator_process, "VALUES_MAX", 2)
    assert [index for index, _ in await find_invalid(validator, INTEGER, [b"1", b"2", b"{}", b"3", b"4"])] == [2]
    assert await find_invalid(validator, INTEGER, []) == []
    assert await find_invalid(validator, validator_schema("true"), values) == []


async def test_reason_contains_the_problem_of_the_schema_when_it_is_invalid(validator: ValidatorProcess) -> None:
    ((index, reason),) = await find_invalid(validator, validator_schema('{"pattern": "["}'), [b"1"])
    assert index == 0
    assert reason.startswith("the schema cannot be used to validate records: /pattern: ")


async def test_process_is_killed_and_replaced_when_it_exceeds_its_cpu_limit(validator: ValidatorProcess) -> None:
    validator.worker.cpu_s_max = 0.1
    assert await find_invalid(validator, validator_schema(endless()), [b"1"]) == [
        (0, "the validation of the records against their schema takes longer than 0.1 s")
    ]
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID


async def test_remaining_values_are_not_tried_when_a_request_exceeded_the_cpu_limit(
    validator: ValidatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    validator.worker.cpu_s_max = 0.1
    monkeypatch.setattr(validator_process, "VALUES_MAX", 1)
    began_s = time.monotonic()
    assert [index for index, _ in await find_invalid(validator, validator_schema(endless()), [b"1"] * 1_000)] == list(
        range(1_000)
    )
    assert time.monotonic() - began_s < 30


async def test_values_are_rejected_when_the_process_crashes_during_their_validation(
    validator: ValidatorProcess,
) -> None:
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID
    crashing = asyncio.create_task(find_invalid(validator, validator_schema(endless()), [b"1"]))
    await asyncio.sleep(0.1)
    assert validator.worker.process is not None
    os.kill(validator.worker.process.pid, signal.SIGSEGV)
    assert await crashing == [(0, "the validation of the records against their schema ended with SIGSEGV")]
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID


async def test_process_is_replaced_when_it_was_killed_while_idle(validator: ValidatorProcess) -> None:
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID
    assert validator.worker.process is not None
    os.kill(validator.worker.process.pid, signal.SIGKILL)
    await validator.worker.process.wait()
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (
            validator_schema('{"type": "object"}'),
            b"[" * 300 + b"1" + b"]" * 300,
            "cannot be parsed: Recursion limit reached",
        ),
        (
            validator_schema('{"type": "object", "title": "\\udc00"}'),
            b"{}",
            "the schema cannot be used to validate records: ",
        ),
    ],
    ids=["nested deeply", "half of a character"],
)
async def test_values_are_rejected_and_the_process_continues_when_they_cannot_be_read(
    validator: ValidatorProcess, schema: ValidatorSchema, value: bytes, reason: str
) -> None:
    ((_, actual),) = await find_invalid(validator, schema, [value])
    assert actual.startswith(reason)
    assert validator.worker.process is not None
    assert validator.worker.process.returncode is None


async def test_unavailable_when_the_process_is_killed_during_a_request(validator: ValidatorProcess) -> None:
    """The records are not invalid, so the producer may retry. SIGTERM, sent to the whole process group, is ignored."""
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID
    assert validator.worker.process is not None
    os.kill(validator.worker.process.pid, signal.SIGTERM)
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID
    killed = asyncio.create_task(find_invalid(validator, validator_schema(endless()), [b"1"]))
    await asyncio.sleep(0.1)
    os.kill(validator.worker.process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="exited with code -9"):
        await killed
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID


async def test_unavailable_when_the_process_does_not_respond_in_time(
    validator: ValidatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await find_invalid(validator, INTEGER, [b"1"]) == []
    assert validator.worker.process is not None
    os.kill(validator.worker.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(validator_process, "RESPONSE_S_MAX", 0.2)
    with pytest.raises(Unavailable, match="within"):
        await find_invalid(validator, INTEGER, [b'"x"'])
    monkeypatch.undo()
    assert await find_invalid(validator, INTEGER, [b'"x"']) == INVALID


async def test_other_requests_succeed_when_a_caller_is_cancelled(validator: ValidatorProcess) -> None:
    cancelled = asyncio.create_task(find_invalid(validator, validator_schema(endless()), [b"1"]))
    other = asyncio.create_task(find_invalid(validator, INTEGER, [b'"x"']))
    await asyncio.sleep(0.1)
    cancelled.cancel()
    assert await other == INVALID
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_unavailable_when_the_process_cannot_be_started(validator: ValidatorProcess) -> None:
    validator.worker.command = (*validator.worker.command[:1], "-c", "raise SystemExit(3)")
    with pytest.raises(Unavailable, match="exited with code 3"):
        await find_invalid(validator, INTEGER, [b"1"])
    validator.worker.command = ("/nowhere/python",)
    with pytest.raises(Unavailable, match="cannot be started"):
        await find_invalid(validator, INTEGER, [b"1"])
