"""Parses metadata files of tables: small ones in a thread, large ones in a child process (metadata_parser_main.py)."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from lakestream.aio.cache import LruCache
from lakestream.aio.single_flight import SingleFlightCache
from lakestream.aio.threads import Run
from lakestream.aio.worker_process import RequestFailed, WorkerProcess
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.metadata_files import MetadataFile
from lakestream.data.table.read.metadata_parser_main import (
    IncompatibleMetadata,
    InvalidMetadata,
    ParsedTable,
    TableState,
    parse_table,
)
from lakestream.errors import Unavailable
from lakestream.model import KiB

PROCESS_BYTES_MIN: Final = 256 * KiB
"""Files from this size on are parsed in the process. In a thread this takes one to four milliseconds with the GIL."""
CPU_S_MAX: Final = 10.0
"""CPU time of one request. The largest metadata file that Lakestream writes, of 64 MiB, takes less than 1 s."""
RESPONSE_S_MAX: Final = 30.0
"""Including the wait for other requests."""
WAITING_MAX: Final = 8
"""Requests at once. Each may keep a metadata file of 64 MiB in memory."""
REJECTED_MAX: Final = 1_000
REJECTED_S: Final = 60.0
"""How long a file that ended the process is rejected without another attempt: consumers retry immediately."""

_decode: Final[Callable[[bytes], ParsedTable]] = msgspec.msgpack.Decoder(ParsedTable).decode


class MetadataParserClient:
    def __init__(self, run: Run) -> None:
        self.worker = WorkerProcess("the metadata parser", "lakestream.data.table.read.metadata_parser_main", CPU_S_MAX)
        self._run = run
        self._requests: SingleFlightCache[str, ParsedTable] = SingleFlightCache(
            "table.metadata", 0, lambda _: 1, RESPONSE_S_MAX
        )
        """Without a cache. A request continues if its callers are cancelled, because cancelling ends the process."""
        self._waiting = 0
        self._rejected: LruCache[str, tuple[float, str]] = LruCache(REJECTED_MAX)
        """By location: the loop time until which a file is rejected, and the reason."""

    async def close(self) -> None:
        await self.worker.close()
        await self._requests.close()

    async def parse(self, table: str, file: MetadataFile) -> TableState:
        """Returns what the metadata states. Raises IncompatibleTable; Corrupt if the file is damaged."""
        if is_large(file):
            self.check_location(table, file.location)
            parsed = await self._requests.get(file.location, lambda: self._call(table, file))
        else:
            parsed = await self._run(lambda: parse_table(file.raw))
        match parsed:
            case TableState():
                return parsed
            case IncompatibleMetadata(reason):
                raise IncompatibleTable(f"table {table}: {reason}")
            case InvalidMetadata(reason):
                raise file.damaged(reason)

    def check_location(self, table: str, location: str) -> None:
        """Raises IncompatibleTable if parsing this file ended the process less than REJECTED_S ago."""
        until_s, reason = self._rejected.get(location) or (0.0, "")
        if asyncio.get_running_loop().time() < until_s:
            raise IncompatibleTable(_too_large(table, location, reason))

    async def _call(self, table: str, file: MetadataFile) -> ParsedTable:
        if self._waiting >= WAITING_MAX:
            raise Unavailable(f"table {table}: metadata of {self._waiting} other tables is being parsed: retry")
        self._waiting += 1
        try:
            response = await self.worker.call(lambda _: file.raw)
        except RequestFailed as error:
            until_s = asyncio.get_running_loop().time() + REJECTED_S
            self._rejected.put(file.location, (until_s, str(error)))
            raise IncompatibleTable(_too_large(table, file.location, str(error))) from error
        finally:
            self._waiting -= 1
        return _decode(response)


def is_large(file: MetadataFile) -> bool:
    return len(file.raw) >= PROCESS_BYTES_MIN


def _too_large(table: str, location: str, reason: str) -> str:
    return f"table {table}: parsing its metadata file {location} {reason}: expire snapshots"
