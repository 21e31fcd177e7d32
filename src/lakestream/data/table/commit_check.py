"""Checks the commits of clients to the table of a topic.

The rules are in catalog/commit_checks/topic_table.py. This module is light: `read/changed_files.py`, which reads the
manifests and footers that the rules need, loads Arrow and the kernels. It is imported when a client first commits a
snapshot to a topic's table.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from lakestream.aio.threads import Threads
from lakestream.catalog.commit_checks.added_files import CHECK_S_MAX
from lakestream.catalog.commit_checks.topic_table import (
    check_own_properties,
    check_stream_columns_unchanged,
    check_summaries,
    snapshots_to_check,
)
from lakestream.catalog.locations import Locations, TableFolder
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.topic_table.checks import wrong_columns
from lakestream.catalog.topic_table.offsets import ancestors
from lakestream.errors import Corrupt, Missing, Rejected, Unavailable
from lakestream.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from lakestream.data.table.read.changed_files import CommitFiles


class CommitGuard:
    def __init__(self, store: ObjectStore, locations: Locations) -> None:
        self._store = store
        self._locations = locations
        self._threads = Threads()
        self._loading = asyncio.Lock()
        self._files: CommitFiles | None = None

    async def close(self) -> None:
        if self._files is not None:
            await self._files.close()
        await self._threads.close()

    async def check(self, before: Json | None, after: Json, topic_id: str) -> None:
        """Raises Rejected if a client may not commit this; Unavailable if the check did not end in time."""
        check_own_properties({} if before is None else before["properties"], after["properties"])
        check_summaries(before, after)
        if not topic_id or before is None:
            return
        check_stream_columns_unchanged(before, after)
        if (pair := snapshots_to_check(before, after)) is None:
            return
        await self._checked(lambda files, folder: files.check(folder, pair, before, after), after)

    async def check_registered(self, metadata: Json) -> None:
        """Raises Rejected if a client may not register this metadata for a topic's table; Unavailable if the check did
        not end in time."""
        if fault := next(wrong_columns(schema_of(metadata), metadata), ""):
            raise Rejected(
                f"{fault}, but the topic of this table needs the column unchanged: register an older metadata file"
            )
        if next(ancestors(metadata), None) is not None:
            await self._checked(lambda files, folder: files.check_all(folder, metadata), metadata)

    async def _checked(self, check: Callable[["CommitFiles", TableFolder], Awaitable[None]], metadata: Json) -> None:
        files = await self._loaded()
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                await check(files, self._locations.table(metadata["location"]))
        except TimeoutError as error:
            raise Unavailable(
                f"the files of the commit could not be checked in {CHECK_S_MAX} s: commit fewer files, or retry"
            ) from error
        except (Corrupt, Missing) as error:
            raise Rejected(f"the files of the commit cannot be read: {error}") from error

    async def _loaded(self) -> "CommitFiles":
        async with self._loading:
            if self._files is None:
                make = await self._threads(_commit_files)
                self._files = make(self._store, self._threads)
            return self._files


def _commit_files() -> "type[CommitFiles]":
    """Imports the class, which takes a second; several the first time, when kernels are compiled."""
    from lakestream.data.table.read.changed_files import CommitFiles

    return CommitFiles
