"""`lakestream pipeline` with maintenance in a hurry, for tests that cannot wait for files to be a minute old.

    python eager_pipeline.py --metadata … --storage … --interval 1s

Else it is the same program.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Final

from lakestream import moving
from lakestream.cli.main import main
from lakestream.pipeline import driver
from lakestream.pipeline.maintenance import compacting
from lakestream.pipeline.maintenance.maintain import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.merging import MergeSettings

COMMAND: Final = [sys.executable, str(Path(__file__))]
EVERY_MS: Final = 1_000
SETTINGS: Final = MaintenanceSettings(look_ms=0, idle_ms=5_000, merge=MergeSettings(files_min=3, young_ms=0))

if __name__ == "__main__":
    setattr(driver, "MAINTENANCE_EVERY_MS", EVERY_MS)  # noqa: B010 -- it is final for everybody else
    setattr(compacting, "PAUSE_MS", EVERY_MS)  # noqa: B010
    setattr(moving, "Maintenance", partial(Maintenance, settings=SETTINGS))  # noqa: B010
    sys.exit(main(["pipeline", *sys.argv[1:]]))
