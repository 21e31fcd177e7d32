"""Validates the records of produced batches, compressed and large ones in threads.

Before: protocol/kafka/handlers/records/produce.py.  After: data/table/write/record_validation.py, compiled code that
opens a batch.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

from lakestream.aio.threads import Threads
from lakestream.errors import Rejected
from lakestream.model import Buffer, KiB, MiB
from lakestream.records.batch import RecordBatch, Timestamps, is_compressed
from lakestream.records.compression import NeedsLargeBuffer, without_large_buffer

BATCH_INLINE_BYTES_MAX: Final = 256 * KiB
"""Larger batches are validated in a thread: with the smallest records possible, this many bytes take 0.4 ms."""
REQUEST_INLINE_BYTES_MAX: Final = 4 * MiB
"""The same of all batches of a request: these take 7 ms, the 100 MiB that a request may have 160 ms."""
AT_ONCE: Final = 8
"""Batches that a thread validates before the next request has its turn: a small batch may take a tenth of a second."""

T = TypeVar("T")
Validated: TypeAlias = Timestamps | Rejected


class Candidate(Protocol):
    """A batch whose records are to be validated."""

    @property
    def batch(self) -> RecordBatch: ...

    @property
    def keys_needed(self) -> bool: ...


def needs_thread(batches: Iterable[Buffer]) -> bool:
    """Returns whether the batches of a request cost too much to be validated on the event loop."""
    size = 0
    for batch in batches:
        size += len(batch)
        if is_compressed(batch) or len(batch) > BATCH_INLINE_BYTES_MAX:
            return True
    return size > REQUEST_INLINE_BYTES_MAX


class RecordValidator:
    def __init__(self) -> None:
        self._validate: Callable[..., Timestamps] | None = None
        self._threads = Threads("record-validator")
        self._large_batches = Threads("large-batch-validator", 1)

    async def load(self) -> None:
        """Loads the compiled code; the first time after an installation, this compiles it for some seconds."""
        self._validate = await asyncio.to_thread(_loaded)

    def validate(self, batch: RecordBatch, *, keys_needed: bool) -> Timestamps:
        """Returns the timestamps of a valid batch. Raises Rejected with the reason if it is invalid."""
        if self._validate is None:
            self._validate = _loaded()
        return self._validate(batch, keys_needed=keys_needed)

    async def validate_all(self, candidates: Sequence[Candidate]) -> list[Validated]:
        """Validates the batches of a request. Returns the timestamps of each, or why it is rejected."""
        if not needs_thread(candidate.batch.data for candidate in candidates):
            return _Part(self, candidates).validated()
        validated: list[Validated] = []
        for start in range(0, len(candidates), AT_ONCE):
            part = _Part(self, candidates[start : start + AT_ONCE])
            try:
                validated += await self.in_thread(part.validated)
            finally:
                part.abandon()
        return validated

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs work on the records of batches in threads that bound its memory.

        One thread serves the batches that need the large buffer, so that other batches do not wait for them. The work
        is called a second time there.
        """
        with suppress(NeedsLargeBuffer):
            return await self._threads(partial(without_large_buffer, work))
        return await self._large_batches(work)

    async def close(self) -> None:
        await self._threads.close()
        await self._large_batches.close()


class _Part:
    """Batches that a thread validates together."""

    def __init__(self, validator: RecordValidator, candidates: Sequence[Candidate]) -> None:
        self._validator = validator
        self._candidates = candidates
        self._results: list[Validated] = []

    def validated(self) -> list[Validated]:
        """Validates the batches. A second call continues with the batch at which the first call was interrupted."""
        while rest := self._candidates[len(self._results) :]:
            self._results.append(self._validated(rest[0]))
        return self._results

    def abandon(self) -> None:
        """Releases the batches: when the client has closed its connection, a thread begins with no other batch."""
        self._candidates = ()

    def _validated(self, candidate: Candidate) -> Validated:
        try:
            return self._validator.validate(candidate.batch, keys_needed=candidate.keys_needed)
        except Rejected as error:
            return error


def _loaded() -> Callable[..., Timestamps]:
    # Imported late: it loads numba, which most commands do not need.
    from lakestream.data.table.write.record_validation import validate

    return validate
