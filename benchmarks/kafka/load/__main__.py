"""See the package: one task, from the first argument to one line of output."""

import sys

import msgspec

from benchmarks.kafka.load.bulk import Consuming, Producing
from benchmarks.kafka.load.tasks import Task

WORKERS = {"Produce": Producing, "Consume": Consuming}


def main() -> int:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    worker = WORKERS[type(task).__name__](task)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1  # whoever started this is gone
    told = worker.work()
    print(msgspec.json.encode(told).decode(), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
