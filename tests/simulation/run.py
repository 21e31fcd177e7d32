"""`make sim SEEDS=n` runs many seeds, `make sim SEED=k` runs one and prints its history."""

import argparse
import logging
import os
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.scenarios import Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed and print its history")
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds to run")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes")
    options = parser.parse_args()
    logging.disable()  # faults are injected: their warnings are expected
    if options.seed is not None:
        return _one(options.seed)
    return _many(range(options.start, options.start + options.seeds), options.jobs)


def _one(seed: int) -> int:
    outcome = run(seed, trace=True)
    print("\n".join(outcome.lines))
    print(_summary([outcome]))
    if outcome.violation is None:
        print(f"seed {seed} ({outcome.scenario}): passed, digest {outcome.digest}")
        return 0
    print(f"seed {seed} ({outcome.scenario}): {outcome.violation}")
    if outcome.violation.__cause__ is not None:
        traceback.print_exception(outcome.violation.__cause__)
    return 1


def _many(seeds: range, jobs: int) -> int:
    outcomes: list[Outcome] = []
    failed: list[Outcome] = []
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(run, seeds, chunksize=max(1, min(10, len(seeds) // (8 * jobs)))):
            outcomes.append(outcome)
            if outcome.violation is not None:
                failed.append(outcome)
                print(
                    f"seed {outcome.seed} ({outcome.scenario}): {outcome.violation}\n    make sim SEED={outcome.seed}"
                )
            if len(outcomes) % 500 == 0:
                print(f"  {len(outcomes)} runs, {len(failed)} failed", flush=True)
    print(_summary(outcomes))
    print(f"{len(outcomes)} runs, {len(failed)} failed")
    return 1 if failed else 0


def _summary(outcomes: list[Outcome]) -> str:
    tally: Counter[str] = sum((outcome.tally for outcome in outcomes), Counter())
    scenarios = Counter(outcome.scenario for outcome in outcomes)
    hours = sum(outcome.virtual_s for outcome in outcomes) / 3600
    lines = [f"  {name:34} {count:9}" for name, count in sorted(tally.items())]
    lines.append(
        f"  {hours:.0f} virtual hours; " + ", ".join(f"{name} {count}" for name, count in sorted(scenarios.items()))
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
