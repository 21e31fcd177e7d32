"""The simulation's own modules stand beside its tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
