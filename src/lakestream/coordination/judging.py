"""The judge of JSON values, a process beside the broker: started when it is first needed, asked one thing at a time.

Before: admission.py, with values that were read.  After: data/typed/judge.py, which says why it is no thread.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from lakestream.data.typed.judged import LENGTH, RULES_MAX, Answer, Ask, Rules
from lakestream.errors import Unavailable
from lakestream.model import MiB

log = logging.getLogger(__name__)

CPU_S_MAX: Final = 2.0
"""Of computing for one ask; then the judge is ended. What is honest takes some microseconds for each value."""
ANSWER_S_MAX: Final = 20.0
"""With the wait for others: less than clients wait. A judge that computes for too long ends long before."""
PATIENCE_S: Final = 2.0
BYTES_MAX: Final = 4 * MiB
VALUES_MAX: Final = 4_096
"""In one ask: then each may take half a millisecond."""
CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
INHERITED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What Python may need to start. Credentials are nothing for a judge."""
COMMAND: Final = (sys.executable, "-P", "-m", "lakestream.data.typed.judge")


class Judges:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._told: OrderedDict[Rules, int] = OrderedDict()
        """Rules that the process knows, by number."""
        self._number = 0

    def deadline_s(self) -> float:
        """For all that one client waits for, if it begins now."""
        return asyncio.get_running_loop().time() + ANSWER_S_MAX

    async def wrong(self, rules: Rules, values: Sequence[bytes], until_s: float) -> list[tuple[int, str]]:
        """Places of values that are not what they should be, and why. Unavailable: nobody could say."""
        found: list[tuple[int, str]] = []
        try:
            async with asyncio.timeout_at(until_s):
                for start, end in _parts(values):
                    async with self._turn:  # others may come between
                        said = await self._asked(rules, values[start:end])
                    if isinstance(said, str):
                        return found + [(place, said) for place in range(start, len(values))]
                    found += [(start + place, why) for place, why in said]
        except TimeoutError:
            raise Unavailable(f"values were not held against their schema within {ANSWER_S_MAX:g} s") from None
        return found

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _asked(self, rules: Rules, values: Sequence[bytes]) -> Sequence[tuple[int, str]] | str:
        """Or why there is nothing to hope for, also for other values."""
        try:
            said = await self._exchanged(rules, values)
        except (EOFError, ConnectionError):
            code = await self._end(PATIENCE_S)
            log.warning("judge.ended code=%d", code)
            if code == -signal.SIGPROF:
                return f"holding the records against their schema takes longer than {CPU_S_MAX:g} s"
            if -code in CRASHES:
                return f"holding the records against their schema ended with {signal.Signals(-code).name}"
            # Somebody ended it, or it cannot run: no fault of the records.
            raise Unavailable(f"the judge of JSON values ended with code {code}: try again") from None
        except BaseException:
            await asyncio.shield(self._end())  # who left in the middle of an exchange leaves nothing to the next
            raise
        answer = msgspec.msgpack.decode(said, type=Answer)
        if answer.refusal:
            return f"the schema cannot be held against values: {answer.refusal}"
        return answer.wrong

    async def _exchanged(self, rules: Rules, values: Sequence[bytes]) -> bytes:
        process = await self._running()
        to_it, from_it = process.stdin, process.stdout
        assert to_it is not None
        assert from_it is not None
        is_new = rules not in self._told
        if is_new:
            self._number += 1
            self._told[rules] = self._number
            if len(self._told) > RULES_MAX:
                self._told.popitem(last=False)
        ask = msgspec.msgpack.encode(Ask(self._told[rules], rules if is_new else None, values))
        to_it.writelines((LENGTH.pack(len(ask)), ask))
        await to_it.drain()
        return await from_it.readexactly(LENGTH.unpack(await from_it.readexactly(LENGTH.size))[0])

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is not None:
            await self._end()  # while it had nothing to do
        if self._process is None:
            env = {name: os.environ[name] for name in INHERITED if name in os.environ}
            command = *COMMAND, str(CPU_S_MAX)
            try:
                self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=env)
            except OSError as error:
                raise Unavailable(f"the judge of JSON values cannot be started ({error}): try again") from error
        return self._process

    async def _end(self, patience_s: float = 0.0) -> int:
        """Its exit code. `patience_s`: it is about to end by itself. The next ask starts another one."""
        process, self._process = self._process, None
        self._told.clear()
        if process is None:
            return 0
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(patience_s):
                return await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            return await process.wait()


def _parts(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Ranges of values that are not too much for one ask."""
    start = size = 0
    for place, value in enumerate(values):
        if place > start and (size + len(value) > BYTES_MAX or place - start == VALUES_MAX):
            yield start, place
            start, size = place, 0
        size += len(value)
    if start < len(values):
        yield start, len(values)
