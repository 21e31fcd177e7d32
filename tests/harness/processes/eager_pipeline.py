"""`lakestream pipeline` with frequent maintenance, for tests that cannot wait until a file is a minute old.

    python eager_pipeline.py --metadata … --storage … --interval 1s

Apart from that it is the same program.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Final

from lakestream.cli.main import main
from lakestream.pipeline import driver
from lakestream.pipeline.maintenance import key_compaction
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.server import pipeline

COMMAND: Final = [sys.executable, str(Path(__file__))]
EVERY_MS: Final = 1_000
SETTINGS: Final = MaintenanceSettings(visit_ms=0, idle_ms=5_000, merge=MergeSettings(files_min=3, young_ms=0))

if __name__ == "__main__":
    setattr(driver, "MAINTENANCE_EVERY_MS", EVERY_MS)  # noqa: B010 -- it replaces a constant
    setattr(key_compaction, "PAUSE_MS", EVERY_MS)  # noqa: B010
    setattr(pipeline, "Maintenance", partial(Maintenance, settings=SETTINGS))  # noqa: B010
    sys.exit(main(["pipeline", *sys.argv[1:]]))
