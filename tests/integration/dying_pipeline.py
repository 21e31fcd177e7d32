"""A pipeline that moves everything there is, without Spark, and dies at its first commit to a Delta table.

    python dying_pipeline.py before|after DATA_DIR METADATA STORAGE

`before`: Iceberg has the rows and Delta has not. `after`: both have them, and nobody was told.
"""

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lakestream.catalog.delta.actions import Action
from lakestream.catalog.delta.log import DeltaLog
from lakestream.catalog.delta.state import State
from lakestream.moving import open_driver
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.job import LocalJob, WorkSettings
from lakestream.pipeline.work import open_work
from lakestream.settings import Settings

SCRIPT: Final = str(Path(__file__))
DIED: Final = 9


async def main(when: str, settings: Settings) -> None:
    commit = DeltaLog.commit

    async def deadly(self: DeltaLog, state: State, actions: Iterable[Action]) -> State:
        if when == "after":
            await commit(self, state, actions)
        os._exit(DIED)

    setattr(DeltaLog, "commit", deadly)  # noqa: B010 -- nobody else may
    folder = str(settings.segments_dir) if settings.segments_dir else None
    job = LocalJob(open_work(WorkSettings(storage_url=settings.storage_url, segments_dir=folder)))
    async with open_driver(settings, PipelineOptions(once=True), job) as driver:
        await driver.run_once()


if __name__ == "__main__":
    when, data_dir, metadata, storage = sys.argv[1:]
    asyncio.run(main(when, Settings(data_dir=Path(data_dir), metadata=metadata, storage=storage)))
