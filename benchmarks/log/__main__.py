"""`python -m benchmarks.log [--quick] [--only NAME]`. Each benchmark runs in its own process."""

import argparse
import asyncio
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import uvloop

from benchmarks.common.environment import set_up
from benchmarks.common.report import Row, Subject, page, report, table, write
from lakestream.server import process

NAMES = ("append-disk", "append-s3", "reads", "claims", "partitions", "memory", "opening", "latency")
ABOUT = Subject(
    "log",
    "Costs of the log",
    "Throughput ratios are medians over pairs of runs, in which Lakestream and the peer take turns. CPU is that of the"
    " whole process, load generator included.",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs: do not publish")
    parser.add_argument("--only", choices=NAMES, help="run one benchmark and print its table; results are not written")
    parser.add_argument("--rows-to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in a broker
            rows = runner.run(_run(options.only, options.quick))
        if options.rows_to:
            options.rows_to.write_bytes(msgspec.json.encode(rows))
        else:
            print("\n".join(table(rows)))
        return 0
    results = report([row for name in NAMES for row in _in_own_process(name, options.quick)], options.quick)
    write(results, ABOUT)
    print(page(results, ABOUT))
    return 0


async def _run(name: str, quick: bool) -> list[Row]:
    benchmark = importlib.import_module(f"benchmarks.log.{name.replace('-', '_')}")
    process.tune_gc()  # as a broker does when it starts
    with set_up(quick) as stage:
        rows: list[Row] = await benchmark.run(stage)
        return rows


def _in_own_process(name: str, quick: bool) -> list[Row]:
    print(f"{name} …", file=sys.stderr, flush=True)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "benchmarks.log", "--only", name, "--rows-to", file.name]
        subprocess.run([*command, *(["--quick"] if quick else [])], check=True)
        return msgspec.json.decode(Path(file.name).read_bytes(), type=list[Row])


if __name__ == "__main__":
    sys.exit(main())
