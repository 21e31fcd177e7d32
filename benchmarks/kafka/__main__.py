"""`python -m benchmarks.kafka [PART …] [--only-lakestream] [--runs N] [--quick] [--write]`: the parts, then a table."""

import argparse
import asyncio
import importlib
import signal
import sys

import msgspec

from benchmarks.common.report import Row, Subject, page, report, table, write, written
from benchmarks.common.stage import set_up
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM

PARTS = ("produce", "consume", "steady", "single", "idle", "cost")
ABOUT = Subject(
    "kafka",
    "Lakestream beside Apache Kafka",
    "Both are asked the same by the same client (confluent-kafka) on the same machine, by turns. Figures are medians,"
    " ratios medians over pairs of runs. CPU is that of the server with all that it started, user and system.",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none: all, and write results")
    parser.add_argument("--only-lakestream", action="store_true", help="without Apache Kafka; results are not written")
    parser.add_argument("--runs", type=int, default=3, help="of each side that count (3); one more warms up")
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of the records, no repeats on a busy machine; nothing to cite"
    )
    parser.add_argument("--write", action="store_true", help="write the parts that ran into the results of the others")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.write and (options.only_lakestream or options.quick):
        parser.error("--write wants both sides in full: leave --only-lakestream and --quick out")
    parts = [part for part in PARTS if part in options.parts or not options.parts]
    sides = (LAKESTREAM,) if options.only_lakestream else (LAKESTREAM, KAFKA, KAFKA_SYNCED)
    try:
        rows = asyncio.run(_run(parts, sides, options.runs, options.quick))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    if options.write or not (options.parts or options.only_lakestream or options.quick):
        in_order = sorted([*rows, *_kept(parts)], key=lambda found: PARTS.index(found.benchmark))
        found = report(in_order, quick=False)
        write(found, ABOUT)
        print(page(found, ABOUT))
    else:
        print("\n".join(table(rows)))
    return 0


def _kept(parts: list[str]) -> list[Row]:
    """Of the last results, what was not measured now."""
    if (last := written(ABOUT)) is None:
        return []
    kept = [found for found in last.rows if found.benchmark not in parts]
    return [msgspec.structs.replace(found, commit=found.commit or last.commit) for found in kept]


async def _run(parts: list[str], sides: tuple[str, ...], runs: int, quick: bool) -> list[Row]:
    rows: list[Row] = []
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)  # servers and gigabytes are cleared away
    with set_up(quick) as stage:
        for part in parts:
            print(f"{part} …", file=sys.stderr, flush=True)
            module = importlib.import_module(f"benchmarks.kafka.{part}")
            rows += await module.run(Bench(stage, sides, runs))
    return rows


if __name__ == "__main__":
    sys.exit(main())
