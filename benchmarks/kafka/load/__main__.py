"""Runs the task of the first argument, and prints its result."""

import ctypes
import signal
import sys
from typing import Protocol

import msgspec

from benchmarks.kafka.load.bulk import ConsumeLoad, ProduceLoad
from benchmarks.kafka.load.groups import CommitLoad, RebalanceLoad
from benchmarks.kafka.load.idle import ConnectLoad, TouchLoad
from benchmarks.kafka.load.single import SingleLoad
from benchmarks.kafka.load.steady import StampLoad, WatchLoad
from benchmarks.kafka.load.tasks import (
    Commit,
    Connect,
    Consume,
    LoadResult,
    Produce,
    Rebalance,
    Single,
    Stamp,
    Task,
    Touch,
    Transact,
    Watch,
)
from benchmarks.kafka.load.transactions import TransactLoad

_PR_SET_PDEATHSIG = 1


class Load(Protocol):
    def work(self) -> LoadResult: ...


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no load generator outlives the benchmark
    load = _load(msgspec.json.decode(sys.argv[1], type=Task))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1  # the parent process has ended
    print(msgspec.json.encode(load.work()).decode(), flush=True)
    sys.stdin.read()
    return 0


def _load(task: Task) -> Load:
    """Returns the load, whose clients are connected."""
    match task:
        case Produce():
            return ProduceLoad(task)
        case Consume():
            return ConsumeLoad(task)
        case Stamp():
            return StampLoad(task)
        case Watch():
            return WatchLoad(task)
        case Single():
            return SingleLoad(task)
        case Touch():
            return TouchLoad(task)
        case Connect():
            return ConnectLoad(task)
        case Commit():
            return CommitLoad(task)
        case Rebalance():
            return RebalanceLoad(task)
        case Transact():
            return TransactLoad(task)


if __name__ == "__main__":
    sys.exit(main())
