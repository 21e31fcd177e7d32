"""Simulation of log, Kafka requests, groups, transactions and tables with faults: new seeds, and those that failed."""

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulation.scenarios import SCENARIOS, run

SEEDS = range(60, 120)
"""`make check` runs the seeds before these, `make sim` many more."""
FAILED_SEEDS = Path(__file__).with_name("seeds.txt")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Disables logging: injected faults cause thousands of warnings."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def _check(seed: int) -> None:
    outcome = run(seed)
    if outcome.violation is not None:
        pytest.fail(f"{outcome.violation}\n    repeat: make sim SEED={seed}  (scenario: {outcome.scenario})")


def _failed_seeds() -> list[int]:
    lines = FAILED_SEEDS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("first", SEEDS[::10])
def test_no_rule_is_violated_on_new_seeds(first: int) -> None:
    for seed in range(first, first + 10):
        _check(seed)


@pytest.mark.parametrize("seed", _failed_seeds())
def test_no_rule_is_violated_on_seeds_that_failed(seed: int) -> None:
    _check(seed)


# A simulation without faults tests nothing: rare paths must occur.


def _check_reached(scenarios: tuple[str, ...], paths: tuple[str, ...], seeds_max: int) -> None:
    """Runs seeds until each path has occurred."""
    tally: Counter[str] = Counter()
    for seed in range(seeds_max):
        outcome = run(seed, scenarios=scenarios)
        assert outcome.violation is None, f"seed {seed} of {scenarios}: {outcome.violation}"
        tally += outcome.tally
        if all(tally[path] for path in paths):
            return
    pytest.fail(f"no run reached {[path for path in paths if not tally[path]]}")


@pytest.mark.parametrize(
    ("scenarios", "paths"),
    [
        (("sleepers",), ("void claims", "stale claims", "duplicates avoided", "trims")),
        (("late", "storm"), ("metadata stale read", "metadata late")),
    ],
    ids=["sleepers", "late"],
)
def test_rare_paths_of_the_log_are_reached(scenarios: tuple[str, ...], paths: tuple[str, ...]) -> None:
    _check_reached(scenarios, paths, seeds_max=21)


def test_rare_paths_of_tables_are_reached() -> None:
    paths = (
        "engines killed",
        "foreign delete",
        "foreign expire",
        "foreign rewrite",
        "pipelines killed",
        "table files removed",
        "topics stalled",
    )
    _check_reached(("tables", "stale tables", "slow readers"), paths, seeds_max=21)


def test_rare_paths_of_typed_tables_are_reached() -> None:
    paths = (
        "Delta commits",
        "files in partitions",
        "files sorted by columns",
        "foreign alter",
        "keys with columns",
        "layouts changed",
        "pipelines killed",
        "rows repaired",
        "schemas registered",
        "topics stopped",
        "typed rows",
        "typed rows with bytes",
        "writers recorded",
    )
    _check_reached(("layouts", "invalid records"), paths, seeds_max=20)


def test_rare_paths_of_kafka_requests_are_reached() -> None:
    paths = (
        "brokers killed",
        "kafka batches given up",
        "kafka connections closed by a broker",
        "kafka fetches sent elsewhere",
        "kafka produce error 45",
        "kafka requests without a response",
        "kafka topics denied",
        "starts moved",
    )
    _check_reached(
        tuple(scenario.name for scenario in SCENARIOS if scenario.kafka and not scenario.members), paths, seeds_max=41
    )


def test_rare_paths_of_groups_and_transactions_are_reached() -> None:
    paths = (
        "group commits",
        "group error 16",
        "group error 25",
        "group error 27",
        "group offsets unstable",
        "group zombies",
        "records transformed",
        "topics deleted",
        "transaction error 47",
        "transaction error 90",
        "transactional zombies",
        "transactions aborted",
        "transactions committed",
    )
    _check_reached(tuple(scenario.name for scenario in SCENARIOS if scenario.members), paths, seeds_max=17)
