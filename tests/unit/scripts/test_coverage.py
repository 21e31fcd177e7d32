"""docs/coverage.md says what the handlers do."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "coverage.py"


def test_the_page_is_up_to_date() -> None:
    """Also: every handler's header can be read, and every request without a handler has a reason."""
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
