"""The measurement of a server's CPU by benchmarks."""

import subprocess
import sys

import pytest
from benchmarks.common.measure import measured

BURNT_S = 0.4

PARENT = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.{{care}})
sys.stdin.readline()
if os.fork() == 0:
    while time.process_time() < {BURNT_S}: pass
    time.sleep(2)
    os._exit(0)
time.sleep(0.1)
while True:
    try:
        os.wait()
    except ChildProcessError:
        print("gone", flush=True)
        break
sys.stdin.readline()
"""


@pytest.mark.parametrize("care", ["SIG_DFL", "SIG_IGN"])
def test_a_child_that_has_ended_counts_whether_or_not_its_parent_cares(care: str) -> None:
    command = [sys.executable, "-c", PARENT.format(care=care)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        with measured(parent.pid) as cost:
            parent.stdin.write("go\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "gone\n"
        parent.stdin.close()
    assert BURNT_S - 0.1 < cost.cpu_s < 3 * BURNT_S
