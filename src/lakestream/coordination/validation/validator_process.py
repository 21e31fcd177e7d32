"""Validates JSON values against their JSON Schema in a child process, which handles one request at a time.

The process starts with the first request. Before: schema_validation.py, with values that are valid JSON.  After:
data/typed/json_schema/validator_main.py, which explains why it is not a thread.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from lakestream.aio.worker_process import RequestFailed, WorkerProcess
from lakestream.data.typed.json_schema.messages import (
    SCHEMAS_MAX,
    ValidationRequest,
    ValidationResponse,
    ValidatorSchema,
)
from lakestream.errors import Unavailable
from lakestream.model import MiB

CPU_S_MAX: Final = 2.0
"""CPU time for one request, after which the process is killed. Ordinary schemas take a few microseconds per value."""
RESPONSE_S_MAX: Final = 20.0
"""Includes the wait for other requests. Shorter than the request timeout of clients, and longer than `CPU_S_MAX`."""
BYTES_MAX: Final = 4 * MiB
VALUES_MAX: Final = 4_096
"""Per request: so each value may take half a millisecond."""
SENT_SIZE_MAX: Final = 16 * MiB
"""In characters: schemas that are recorded as cached by the process. The process may have cached more."""


class ValidatorProcess:
    def __init__(self) -> None:
        self.worker = WorkerProcess(
            "the JSON Schema validator", "lakestream.data.typed.json_schema.validator_main", CPU_S_MAX
        )
        self._sent: OrderedDict[ValidatorSchema, int] = OrderedDict()
        """Numbers of the schemas that were sent to the process, which caches them."""
        self._process = 0
        """Number of that process."""
        self._number = 0
        self._sent_size = 0

    def deadline_s(self) -> float:
        """Returns the deadline of all validations for one request that begins now."""
        return asyncio.get_running_loop().time() + RESPONSE_S_MAX

    async def find_invalid(
        self, schema: ValidatorSchema, values: Sequence[bytes], deadline_s: float
    ) -> list[tuple[int, str]]:
        """Returns the index of each invalid value, and the reason. Raises Unavailable if they cannot be validated."""
        problems: list[tuple[int, str]] = []
        try:
            async with asyncio.timeout_at(deadline_s):
                for start, end in _parts(values):  # requests of other callers may run in between
                    result = await self._validate(schema, values[start:end])
                    if isinstance(result, str):
                        return problems + [(index, result) for index in range(start, len(values))]
                    problems += [(start + index, reason) for index, reason in result]
        except TimeoutError:
            raise Unavailable(f"records were not validated within {RESPONSE_S_MAX:g} s: retry") from None
        return problems

    async def close(self) -> None:
        await self.worker.close()

    async def _validate(self, schema: ValidatorSchema, values: Sequence[bytes]) -> Sequence[tuple[int, str]] | str:
        """Returns the invalid values, or a reason that applies to all values of this schema."""
        try:
            response = await self.worker.call(lambda process: self._request(process, schema, values))
        except RequestFailed as error:
            return f"the validation of the records against their schema {error}"
        decoded = msgspec.msgpack.decode(response, type=ValidationResponse)
        if decoded.error:
            return f"the schema cannot be used to validate records: {decoded.error}"
        return decoded.invalid

    def _request(self, process: int, schema: ValidatorSchema, values: Sequence[bytes]) -> bytes:
        if process != self._process:
            self._process = process
            self._sent.clear()
            self._sent_size = 0
        is_new = schema not in self._sent
        if is_new:
            self._number += 1
            self._sent[schema] = self._number
            self._sent_size += len(schema.text)
            while len(self._sent) > SCHEMAS_MAX or (self._sent_size > SENT_SIZE_MAX and len(self._sent) > 1):
                self._sent_size -= len(self._sent.popitem(last=False)[0].text)
        return msgspec.msgpack.encode(ValidationRequest(self._sent[schema], schema if is_new else None, values))


def _parts(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yields ranges of values that are small enough for one request."""
    start = size = 0
    for index, value in enumerate(values):
        if index > start and (size + len(value) > BYTES_MAX or index - start == VALUES_MAX):
            yield start, index
            start, size = index, 0
        size += len(value)
    if start < len(values):
        yield start, len(values)
