"""Compares docs/coverage.md with the headers of the handlers."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "coverage.py"


def test_coverage_page_is_up_to_date() -> None:
    """Also checks that every header can be parsed, and that every request without a handler has a reason."""
    process = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout + process.stderr) == (0, "")
