"""The supervisor with small workers, in its own process because it forks."""

import subprocess
import sys
import textwrap

from lakestream.cli.process.supervisor import BACKOFF_S_MAX, BACKOFF_S_MIN, STEADY_S, Child, _Process

RUN = """
import os, select, signal, sys
from lakestream.cli.process import supervisor
from lakestream.cli.process.supervisor import Child
from lakestream.errors import Misconfigured

def until_stopped(context, number):
    if context.first_ready >= 0:
        select.select([context.first_ready], [], [])
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    context.report_ready(f"at-{number}")
    while not stopped:
        if select.select([context.parent], [], [], 0.02)[0]:
            return 0
    return 0

def Supervisor(count, work, on_ready):
    return supervisor.Supervisor([Child(f"child={n}", lambda c, n=n: work(c, n)) for n in range(count)], on_ready)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN + textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )


def test_all_workers_are_started_stopped_and_waited_for() -> None:
    ended = run("""
        def ready(listening):
            print(listening, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(Supervisor(3, until_stopped, ready).run())
    """)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "['at-0', 'at-1', 'at-2']\nstopping\n", "")


def test_error_of_all_workers_is_printed_once_and_none_is_restarted() -> None:
    ended = run("""
        def work(context, number):
            if number:
                return until_stopped(context, number)
            raise Misconfigured("no such store")
        sys.exit(Supervisor(3, work, print).run())
    """)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "lakestream: no such store\n")


def test_worker_that_fails_at_start_ends_the_others() -> None:
    ended = run("""
        def work(context, number):
            if number == 1:
                raise Misconfigured("port taken")
            return until_stopped(context, number)
        sys.exit(Supervisor(3, work, print).run())
    """)
    assert (ended.returncode, ended.stderr) == (1, "lakestream: port taken\n")


def test_exit_code_is_1_when_a_worker_fails_at_its_stop() -> None:
    ended = run("""
        def work(context, number):
            until_stopped(context, number)
            return 3
        sys.exit(Supervisor(2, work, lambda _: os.kill(os.getpid(), signal.SIGTERM)).run())
    """)
    assert ended.returncode == 1


def test_worker_that_does_not_stop_is_killed() -> None:
    ended = run("""
        supervisor.STOP_S_MAX = 0.3
        def work(context, number):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            context.report_ready("x")
            while True:
                select.select([], [], [], 60)
        sys.exit(Supervisor(2, work, lambda _: os.kill(os.getpid(), signal.SIGTERM)).run())
    """)
    assert ended.returncode == 1
    assert "process.killed child=0, child=1 after_s" in ended.stderr


def test_restarts_back_off_until_a_worker_runs_steadily() -> None:
    process = _Process(Child("child", lambda _: 0))
    waits = [process.ended(0.0) for _ in range(9)]
    assert waits[:3] == [BACKOFF_S_MIN, 2 * BACKOFF_S_MIN, 4 * BACKOFF_S_MIN]
    assert waits[-1] == BACKOFF_S_MAX
    assert process.ended(STEADY_S) == BACKOFF_S_MIN
