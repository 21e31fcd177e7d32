"""The log, Kafka requests, groups and transactions on top of it, the way into tables and back, under faults: seeds, and
all that failed."""

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulation.scenarios import MOODS, run

SEEDS = range(60, 120)
"""Those before are run by `make check`, many more by `make sim`."""
STORIES = Path(__file__).with_name("seeds.txt")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What goes wrong here goes wrong on purpose; its warnings would be thousands of lines."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def _check(seed: int) -> None:
    outcome = run(seed)
    if outcome.violation is not None:
        pytest.fail(f"{outcome.violation}\n    see it again: make sim SEED={seed}  (mood: {outcome.mood})")


def _failed_once() -> list[int]:
    lines = STORIES.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("first", SEEDS[::10])
def test_nothing_acknowledged_is_lost_doubled_or_reordered(first: int) -> None:
    for seed in range(first, first + 10):
        _check(seed)


@pytest.mark.parametrize("seed", _failed_once())
def test_what_failed_once_holds(seed: int) -> None:
    _check(seed)


# A simulation that meets no fault proves nothing.


def _check_reached(moods: tuple[str, ...], paths: tuple[str, ...], seeds_max: int) -> None:
    """As many runs as it takes."""
    tally: Counter[str] = Counter()
    for seed in range(seeds_max):
        outcome = run(seed, moods=moods)
        assert outcome.violation is None, f"seed {seed} of {moods}: {outcome.violation}"
        tally += outcome.tally
        if all(tally[path] for path in paths):
            return
    pytest.fail(f"no run met {[path for path in paths if not tally[path]]}")


@pytest.mark.parametrize(
    ("moods", "paths"),
    [
        (("sleepers",), ("void claims", "stale claims", "duplicates avoided", "trims")),
        (("late", "storm"), ("metadata stale read", "metadata late")),
    ],
    ids=["sleepers", "late"],
)
def test_the_rare_paths_are_reached(moods: tuple[str, ...], paths: tuple[str, ...]) -> None:
    _check_reached(moods, paths, seeds_max=21)


def test_the_rare_paths_of_tables_are_reached() -> None:
    paths = (
        "engines killed",
        "foreign delete",
        "foreign expire",
        "foreign rewrite",
        "pipelines killed",
        "table files removed",
        "topics stuck",
    )
    _check_reached(("tables", "tables old", "slow readers"), paths, seeds_max=13)


def test_the_rare_paths_of_typed_tables_are_reached() -> None:
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
    _check_reached(("arranged", "judged"), paths, seeds_max=20)


def test_the_rare_paths_of_kafka_requests_are_reached() -> None:
    paths = (
        "brokers killed",
        "kafka batches given up",
        "kafka connections closed by a broker",
        "kafka fetches sent elsewhere",
        "kafka produce error 45",
        "kafka requests without an answer",
        "kafka topics denied",
        "starts moved",
    )
    _check_reached(tuple(mood.name for mood in MOODS if mood.kafka and not mood.members), paths, seeds_max=41)


def test_the_rare_paths_of_groups_and_transactions_are_reached() -> None:
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
    _check_reached(tuple(mood.name for mood in MOODS if mood.members), paths, seeds_max=17)
