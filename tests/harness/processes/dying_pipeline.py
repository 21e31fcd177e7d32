"""A pipeline without Spark that moves all records, and exits at its first commit to a Delta table.

    python dying_pipeline.py before|after DATA_DIR METADATA STORAGE

`before`: only the Iceberg table has the rows. `after`: both tables have the rows, and the pipeline exits before the
commit returns.
"""

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lakestream.catalog.delta.actions import Action
from lakestream.catalog.delta.log import DeltaLog
from lakestream.catalog.delta.state import DeltaState
from lakestream.config.settings import Settings
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.tasks import WorkSettings
from lakestream.pipeline.worker import open_work
from lakestream.server.pipeline import open_driver

SCRIPT: Final = str(Path(__file__))
DIED: Final = 9


async def main(when: str, settings: Settings) -> None:
    commit = DeltaLog.commit

    async def commit_and_exit(self: DeltaLog, state: DeltaState, actions: Iterable[Action]) -> DeltaState:
        if when == "after":
            await commit(self, state, actions)
        os._exit(DIED)

    setattr(DeltaLog, "commit", commit_and_exit)  # noqa: B010 -- it replaces a method
    folder = str(settings.segments_dir) if settings.segments_dir else None
    job = LocalJob(open_work(WorkSettings(storage_url=settings.storage_url, segments_dir=folder)))
    async with open_driver(settings, PipelineOptions(once=True), job) as driver:
        await driver.run_once()


if __name__ == "__main__":
    when, data_dir, metadata, storage = sys.argv[1:]
    asyncio.run(main(when, Settings(data_dir=Path(data_dir), metadata=metadata, storage=storage)))
