"""The command line of a benchmark with a peer: `[PART …] [--only-lakestream] [--runs N] [--quick] [--write]`."""

import argparse
import asyncio
import importlib
import signal
import sys
from dataclasses import dataclass

import msgspec

from benchmarks.common.report import Row, Subject, page, report, table, write, written
from benchmarks.common.stage import set_up
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.sides import LAKESTREAM


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
            in_order = sorted([*rows, *self._kept(chosen)], key=lambda found: self.parts.index(found.benchmark))
            found = report(in_order, quick=False)
            write(found, self.about)
            print(page(found, self.about))
        else:
            print("\n".join(table(rows)))
        return 0

    def _options(self) -> argparse.Namespace:
        parts = ", ".join(self.parts)
        parser = argparse.ArgumentParser(prog=f"python -m {self.package}", description=self.about.title)
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {parts}; none: all, and write results")
        parser.add_argument("--only-lakestream", action="store_true", help="without the peer; results are not written")
        parser.add_argument("--runs", type=int, default=3, help="of each side that count (3); one more warms up")
        parser.add_argument(
            "--quick", action="store_true", help="an eighth of the work, no repeats on a busy machine; nothing to cite"
        )
        parser.add_argument("--write", action="store_true", help="write the parts that ran into the results of others")
        options = parser.parse_args()
        if unknown := set(options.parts) - set(self.parts):
            parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {parts}")
        if options.write and (options.only_lakestream or options.quick):
            parser.error("--write wants both sides in full: leave --only-lakestream and --quick out")
        return options

    def _kept(self, parts: list[str]) -> list[Row]:
        """Of the last results, what was not measured now."""
        if (last := written(self.about)) is None:
            return []
        kept = [found for found in last.rows if found.benchmark not in parts and found.benchmark in self.parts]
        return [msgspec.structs.replace(found, commit=found.commit or last.commit) for found in kept]

    async def _run(self, parts: list[str], sides: tuple[str, ...], runs: int, quick: bool) -> list[Row]:
        rows: list[Row] = []
        me = asyncio.current_task()
        assert me is not None
        # Servers and gigabytes are cleared away.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
        with set_up(quick) as stage:
            for part in parts:
                print(f"{part} …", file=sys.stderr, flush=True)
                module = importlib.import_module(f"{self.package}.{part}")
                found = await module.run(Bench(stage, sides, runs))
                print("\n".join(table(found)), file=sys.stderr, flush=True)
                rows += found
        return rows
