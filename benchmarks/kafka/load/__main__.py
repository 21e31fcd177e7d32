"""See the package: one task, from the first argument to one line of output."""

import ctypes
import signal
import sys
from typing import Protocol

import msgspec

from benchmarks.kafka.load.bulk import Consuming, Producing
from benchmarks.kafka.load.groups import Committing, Rebalancing
from benchmarks.kafka.load.idle import Connecting, Touching
from benchmarks.kafka.load.single import Requesting
from benchmarks.kafka.load.steady import Stamping, Watching
from benchmarks.kafka.load.tasks import (
    Commit,
    Connect,
    Consume,
    Produce,
    Rebalance,
    Single,
    Stamp,
    Task,
    Told,
    Touch,
    Transact,
    Watch,
)
from benchmarks.kafka.load.transactions import Transacting

_PR_SET_PDEATHSIG = 1


class Worker(Protocol):
    def work(self) -> Told: ...


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no load outlives the benchmark
    worker = _worker(msgspec.json.decode(sys.argv[1], type=Task))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1  # whoever started this is gone
    print(msgspec.json.encode(worker.work()).decode(), flush=True)
    sys.stdin.read()
    return 0


def _worker(task: Task) -> Worker:
    """Connected, and ready to begin."""
    match task:
        case Produce():
            return Producing(task)
        case Consume():
            return Consuming(task)
        case Stamp():
            return Stamping(task)
        case Watch():
            return Watching(task)
        case Single():
            return Requesting(task)
        case Touch():
            return Touching(task)
        case Connect():
            return Connecting(task)
        case Commit():
            return Committing(task)
        case Rebalance():
            return Rebalancing(task)
        case Transact():
            return Transacting(task)


if __name__ == "__main__":
    sys.exit(main())
