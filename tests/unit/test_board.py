import subprocess
import sys

from lakestream.board import PAGE_BYTES, Board

FORK = """
import os
import subprocess
import sys
from lakestream.board import Board
board = Board(2)
if os.fork() == 0:
    board.write(1, b"from the child")
    os._exit(0)
os.wait()
assert board.read(1) == b"from the child"
"""


def test_what_a_child_writes_its_parent_reads() -> None:
    assert subprocess.run([sys.executable, "-c", FORK], check=False).returncode == 0


def test_each_page_is_its_own() -> None:
    board = Board(2)
    board.write(1, b"one")
    assert (board.read(0), board.read(1)) == (None, b"one")
    board.wipe(1)
    assert board.read(1) is None
    board.close()


def test_a_page_that_is_half_written_is_passed_over() -> None:
    board = Board(1)
    board.write(0, b"one")
    board._memory[8:9] = b"O"
    assert board.read(0) is None
    board.close()


def test_what_does_not_fit_is_left_out() -> None:
    board = Board(2)
    board.write(0, b"x" * PAGE_BYTES)
    assert board.read(0) is None
    assert board.read(1) is None
    board.close()
