"""The supervisor with small workers of its own making, in a process of its own: it forks."""

import subprocess
import sys
import textwrap

from lakestream.cli.workers import BACKOFF_S_MAX, BACKOFF_S_MIN, STEADY_S, Worker

RUN = """
import os, select, signal, sys
from lakestream.cli import workers
from lakestream.cli.workers import Seat, Supervisor
from lakestream.errors import Misconfigured

def until_told(seat):
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    seat.say_ready(f"at-{seat.number}")
    while not told:
        if select.select([seat.parent], [], [], 0.02)[0]:
            return 0
    return 0
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN + textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )


def test_all_are_started_told_to_stop_and_waited_for() -> None:
    ended = run("""
        def ready(listening):
            print(listening, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(Supervisor(3, until_told, ready).run())
    """)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "['at-0', 'at-1', 'at-2']\n", "")


def test_what_is_wrong_for_all_is_said_once_and_nobody_is_started_again() -> None:
    ended = run("""
        def work(seat):
            raise Misconfigured("no such store")
        sys.exit(Supervisor(3, work, print).run())
    """)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "lakestream: no such store\n")


def test_one_that_fails_at_the_start_ends_the_others() -> None:
    ended = run("""
        def work(seat):
            if seat.number == 1:
                raise Misconfigured("port taken")
            return until_told(seat)
        sys.exit(Supervisor(3, work, print).run())
    """)
    assert (ended.returncode, ended.stderr) == (1, "lakestream: port taken\n")


def test_one_that_ends_badly_when_told_is_in_the_exit_code() -> None:
    ended = run("""
        def work(seat):
            until_told(seat)
            return 3
        sys.exit(Supervisor(2, work, lambda _: os.kill(os.getpid(), signal.SIGTERM)).run())
    """)
    assert ended.returncode == 1


def test_one_that_does_not_stop_is_killed() -> None:
    ended = run("""
        workers.STOP_S_MAX = 0.3
        def work(seat):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            seat.say_ready("x")
            while True:
                select.select([], [], [], 60)
        sys.exit(Supervisor(2, work, lambda _: os.kill(os.getpid(), signal.SIGTERM)).run())
    """)
    assert ended.returncode == 1
    assert "workers.killed" in ended.stderr


def test_a_restart_waits_longer_each_time_until_one_lives() -> None:
    worker = Worker(0)
    waits = [worker.ended(0.0) for _ in range(9)]
    assert waits[:3] == [BACKOFF_S_MIN, 2 * BACKOFF_S_MIN, 4 * BACKOFF_S_MIN]
    assert waits[-1] == BACKOFF_S_MAX
    assert worker.ended(STEADY_S) == BACKOFF_S_MIN
