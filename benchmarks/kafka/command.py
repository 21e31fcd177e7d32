"""The command line of a benchmark with a peer: `[PART …] [--only-lakestream] [--runs N] [--quick] [--write]`."""

import argparse
import asyncio
import importlib
import signal
import sys
from dataclasses import dataclass

import msgspec

from benchmarks.common.environment import set_up
from benchmarks.common.report import Row, Subject, page, read_results, report, table, write
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.servers import LAKESTREAM


@dataclass(frozen=True, slots=True)
class Command:
    about: Subject
    package: str
    parts: tuple[str, ...]
    """Modules of the package, each with `async def run(bench) -> list[Row]`."""
    sides: tuple[str, ...]

    def run(self) -> int:
        options = self._options()
        chosen = [part for part in self.parts if part in options.parts or not options.parts]
        sides = (LAKESTREAM,) if options.only_lakestream else self.sides
        try:
            rows = asyncio.run(self._run(chosen, sides, options.runs, options.quick))
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
        if options.write or not (options.parts or options.only_lakestream or options.quick):
            in_order = sorted([*rows, *self._earlier_rows(chosen)], key=lambda row: self.parts.index(row.benchmark))
            results = report(in_order, quick=False)
            write(results, self.about)
            print(page(results, self.about))
        else:
            print("\n".join(table(rows)))
        return 0

    def _options(self) -> argparse.Namespace:
        parts = ", ".join(self.parts)
        parser = argparse.ArgumentParser(prog=f"python -m {self.package}", description=self.about.title)
        parser.add_argument(
            "parts", nargs="*", metavar="PART", help=f"any of {parts} (default: all, and write the results)"
        )
        parser.add_argument(
            "--only-lakestream", action="store_true", help="run without the peer; results are not written"
        )
        parser.add_argument("--runs", type=int, default=3, help="measured runs of each side (3), after one to warm up")
        parser.add_argument(
            "--quick", action="store_true", help="an eighth of the work, no repeats on a busy machine: do not publish"
        )
        parser.add_argument("--write", action="store_true", help="replace the stored results of the parts that ran")
        options = parser.parse_args()
        if unknown := set(options.parts) - set(self.parts):
            parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {parts}")
        if options.write and (options.only_lakestream or options.quick):
            parser.error("--write cannot be combined with --only-lakestream or --quick")
        return options

    def _earlier_rows(self, parts: list[str]) -> list[Row]:
        """Returns the rows of the stored results that this run has not measured."""
        if (last := read_results(self.about)) is None:
            return []
        rows = [row for row in last.rows if row.benchmark not in parts and row.benchmark in self.parts]
        return [msgspec.structs.replace(row, commit=row.commit or last.commit) for row in rows]

    async def _run(self, parts: list[str], sides: tuple[str, ...], runs: int, quick: bool) -> list[Row]:
        rows: list[Row] = []
        task = asyncio.current_task()
        assert task is not None
        # Cancellation stops the servers and deletes gigabytes of files.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with set_up(quick) as stage:
            for part in parts:
                print(f"{part} …", file=sys.stderr, flush=True)
                module = importlib.import_module(f"{self.package}.{part}")
                part_rows = await module.run(Bench(stage, sides, runs))
                print("\n".join(table(part_rows)), file=sys.stderr, flush=True)
                rows += part_rows
        return rows
