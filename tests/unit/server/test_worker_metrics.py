import subprocess
import sys

from lakestream.server.worker_metrics import PAGE_BYTES, SharedMetricsPages

FORK = """
import os
import subprocess
import sys
from lakestream.server.worker_metrics import SharedMetricsPages
pages = SharedMetricsPages(2)
if os.fork() == 0:
    pages.write(1, b"from the child")
    os._exit(0)
os.wait()
assert pages.read(1) == b"from the child"
"""


def test_parent_reads_the_page_of_a_child() -> None:
    assert subprocess.run([sys.executable, "-c", FORK], check=False).returncode == 0


def test_pages_are_independent() -> None:
    pages = SharedMetricsPages(2)
    pages.write(1, b"one")
    assert (pages.read(0), pages.read(1)) == (None, b"one")
    pages.clear(1)
    assert pages.read(1) is None
    pages.close()


def test_partly_written_page_is_skipped() -> None:
    pages = SharedMetricsPages(1)
    pages.write(0, b"one")
    pages._memory[8:9] = b"O"
    assert pages.read(0) is None
    pages.close()


def test_page_above_the_size_limit_is_not_written() -> None:
    pages = SharedMetricsPages(2)
    pages.write(0, b"x" * PAGE_BYTES)
    assert pages.read(0) is None
    assert pages.read(1) is None
    pages.close()
